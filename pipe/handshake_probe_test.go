package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/loglines"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// probed is a channel between ends of one process that must be probed. Its probe may fail.
type probed struct {
	xth.Factory
	offer string
	fault error

	mu     sync.Mutex
	seen   []string // the peer's offers that were probed
	sent   []string // this end's offers, as Probe received them
	linked []string // the peer's offers, as New received them
}

func newProbed(offer string, fault error) *probed {
	return &probed{Factory: xth.New(), offer: offer, fault: fault}
}

func (m *probed) Offer(theirs []byte) []byte { return []byte(m.offer + answering(theirs)) }

func answering(offer []byte) string {
	if offer == nil {
		return ""
	}
	return ", answering " + string(offer)
}

func (m *probed) Probe(offer, sent []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = append(m.seen, string(offer))
	m.sent = append(m.sent, string(sent))
	return m.fault
}

func (m *probed) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	m.mu.Lock()
	m.linked = append(m.linked, string(link.Offer))
	m.mu.Unlock()
	return m.Factory.New(ctx, link, role)
}

// with returns an option that gives a context the channel basic and, unless m is nil, m as its best
// channel, named "probed".
func with(m *probed) func(*pipe.Options) {
	return func(o *pipe.Options) {
		o.Channels = []pipe.ChannelEntry{{Name: "basic", Priority: 1, Factory: basic.New()}}
		if m != nil {
			o.Channels = append(o.Channels, pipe.ChannelEntry{Name: "probed", Priority: 2, Factory: m})
		}
	}
}

// bothDialects runs f as a subtest for each dialect, with a path over the memory of this process.
func bothDialects(t *testing.T, f func(t *testing.T, p path)) {
	for _, p := range []path{memPath(), nativePath()} {
		t.Run(string(p.dialect), func(t *testing.T) { f(t, p) })
	}
}

// TestChannelIsProbedByBothEnds checks that each end probes the best channel once, with the offer
// of the peer, and that the pipe uses it.
func TestChannelIsProbedByBothEnds(t *testing.T) {
	bothDialects(t, func(t *testing.T, p path) {
		dials, listens := newProbed("from the client", nil), newProbed("from the server", nil)
		client, server := connectContexts(t, newContext(t, p, with(dials)), newContext(t, p, with(listens)), p.url)
		require.Equal(t, []string{"from the server, answering from the client"}, dials.seen)
		require.Equal(t, []string{"from the client"}, listens.seen)
		require.Equal(t, []string{"from the client"}, dials.sent)
		require.Equal(t, []string{""}, listens.sent)
		for _, end := range []*probed{dials, listens} {
			require.Equal(t, end.seen, end.linked)
		}
		for _, end := range []*pipe.Pipe{client, server} {
			got, _ := end.Plan().Channel(device.CPU(), device.CPU())
			require.Equal(t, "probed", got)
		}
		exchange(t, client, server, message(1, []int{10}, []int{200_000}))
	})
}

// TestTooManyProbedChannels checks that the first 16 channels that must be probed are, and that the
// plan has the reason why the others are not used.
func TestTooManyProbedChannels(t *testing.T) {
	bothDialects(t, func(t *testing.T, p path) {
		var ends [2]*pipe.Context
		for i := range ends {
			ends[i] = newContext(t, p, with(nil), func(o *pipe.Options) {
				for k := range 18 {
					o.Channels = append(o.Channels, pipe.ChannelEntry{
						Name: fmt.Sprintf("probed%02d", k), Priority: 20 - k, Factory: newProbed("offer", errors.New("it is forbidden")),
					})
				}
			})
		}
		client, server := connectContexts(t, ends[0], ends[1], p.url)
		for _, end := range []*pipe.Pipe{client, server} {
			got, _ := end.Plan().Channel(device.CPU(), device.CPU())
			require.Equal(t, "basic", got)
			reasons := map[string]string{}
			for _, r := range end.Plan().Refused {
				reasons[r.Name] = r.Reason
			}
			require.Contains(t, reasons["probed15"], "it is forbidden")
			require.Contains(t, reasons["probed16"], "16 channels before it must be probed too")
			require.Contains(t, reasons["probed17"], "16 channels before it must be probed too")
		}
		exchange(t, client, server, message(1, []int{10}, []int{200_000}))
	})
}

// TestFailedProbeExcludesChannel checks that the pipe uses the next channel if the probe of the
// best one fails at either end, and that both plans have the reason. Accept returns only the pipe
// of the successful handshake.
func TestFailedProbeExcludesChannel(t *testing.T) {
	fault := errors.New("it is forbidden")
	for _, c := range []struct {
		name             string
		dials, listens   error
		atDial, atListen string
	}{
		{"by the server", nil, fault, "the server: it is forbidden", "it is forbidden"},
		{"by the client", fault, nil, "it is forbidden", "the client: it is forbidden"},
		{"by both", fault, fault, "the server: it is forbidden", "it is forbidden"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bothDialects(t, func(t *testing.T, p path) {
				dials, listens := newProbed("dials", c.dials), newProbed("listens", c.listens)
				client, server := connectContexts(t, newContext(t, p, with(dials)), newContext(t, p, with(listens)), p.url)
				require.Contains(t, client.Plan().Refused, pipe.Refusal{Kind: "channel", Name: "probed", Reason: c.atDial})
				require.Contains(t, server.Plan().Refused, pipe.Refusal{Kind: "channel", Name: "probed", Reason: c.atListen})
				for _, end := range []*pipe.Pipe{client, server} {
					got, _ := end.Plan().Channel(device.CPU(), device.CPU())
					require.Equal(t, "basic", got)
				}
				require.Len(t, listens.seen, 1)
				exchange(t, client, server, message(1, []int{10}, []int{200_000}))
			})
		})
	}
}

// TestRequiredChannelFailsProbe checks that opening a pipe fails if the probe fails of a channel
// that the policy of one end requires, and that this end has the reason.
func TestRequiredChannelFailsProbe(t *testing.T) {
	fault := errors.New("it is forbidden")
	bothDialects(t, func(t *testing.T, p path) {
		for _, c := range []struct{ dials, listens error }{{fault, nil}, {nil, fault}} {
			required := func(o *pipe.Options) { o.Policy.Channels.Require = []string{"probed"} }
			a := newContext(t, p, with(newProbed("dials", c.dials)), required)
			b := newContext(t, p, with(newProbed("listens", c.listens)))
			l, err := b.Listen(testContext(t), p.url)
			require.NoError(t, err)
			_, err = a.Dial(testContext(t), l.URLs()[0])
			require.ErrorIs(t, err, pipe.ErrPolicy)
			require.ErrorContains(t, err, "it is forbidden")
		}
		var log loglines.Lines
		logged := func(o *pipe.Options) { o.Logger = log.Logger() }
		a := newContext(t, p, with(newProbed("dials", fault)))
		b := newContext(t, p, with(newProbed("listens", nil)), logged, func(o *pipe.Options) { o.Policy.Channels.Require = []string{"probed"} })
		l, err := b.Listen(testContext(t), p.url)
		require.NoError(t, err)
		_, err = a.Dial(testContext(t), l.URLs()[0])
		require.Error(t, err)
		require.NoError(t, l.Close())
		require.Contains(t, log.String(), "the client: it is forbidden")
	})
}

// TestChannelIsNotProbedWithoutOffer checks that a channel is used without a probe if the peer
// sends no offer for it, because the peer is an older version or its channel needs no probe.
func TestChannelIsNotProbedWithoutOffer(t *testing.T) {
	bothDialects(t, func(t *testing.T, p path) {
		old := func(o *pipe.Options) {
			o.Channels = []pipe.ChannelEntry{{Name: "probed", Priority: 2, Factory: xth.New()}}
		}
		listens := newProbed("listens", errors.New("it is forbidden"))
		client, server := connectContexts(t, newContext(t, p, old), newContext(t, p, with(listens)), p.url)
		require.Empty(t, listens.seen)
		exchange(t, client, server, message(1, nil, []int{200_000}))

		dials := newProbed("dials", errors.New("it is forbidden"))
		client, server = connectContexts(t, newContext(t, p, with(dials)), newContext(t, p, old), p.url)
		require.Empty(t, dials.seen)
		exchange(t, client, server, message(1, nil, []int{200_000}))
	})
}

// TestSeveralChannelsFailProbe checks that several channels whose probes fail at the client are
// excluded one after the other, until one works.
func TestSeveralChannelsFailProbe(t *testing.T) {
	many := func(fault error) func(*pipe.Options) {
		return func(o *pipe.Options) {
			with(nil)(o)
			for i := range 3 {
				o.Channels = append(o.Channels, pipe.ChannelEntry{
					Name: fmt.Sprint("probed", i), Priority: 10 + i, Factory: newProbed("probed", fault)})
			}
		}
	}
	p := nativePath()
	client, server := connectContexts(t,
		newContext(t, p, many(errors.New("it is forbidden"))), newContext(t, p, many(nil)), p.url)
	got, _ := client.Plan().Channel(device.CPU(), device.CPU())
	require.Equal(t, "basic", got)
	require.Equal(t, 3, strings.Count(server.Plan().String(), "the client: it is forbidden"))
	exchange(t, client, server, message(1, nil, []int{200_000}))
}
