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
	"github.com/tensorpipe-go/tensorpipe/internal/loglines"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// moody is a channel between ends of one process that has to be tried, and may
// not like what it is shown.
type moody struct {
	xth.Factory
	shows string
	fault error

	mu     sync.Mutex
	seen   []string
	shown  []string // when it was tried
	linked []string // what was seen, as the channel is told
}

func newMoody(shows string, fault error) *moody {
	return &moody{Factory: xth.New(), shows: shows, fault: fault}
}

func (m *moody) Offer(theirs []byte) []byte { return []byte(m.shows + answering(theirs)) }

func answering(offer []byte) string {
	if offer == nil {
		return ""
	}
	return ", answering " + string(offer)
}

func (m *moody) Probe(offer, shown []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = append(m.seen, string(offer))
	m.shown = append(m.shown, string(shown))
	return m.fault
}

func (m *moody) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	m.mu.Lock()
	m.linked = append(m.linked, string(link.Offer))
	m.mu.Unlock()
	return m.Factory.New(ctx, link, role)
}

// with makes m the best channel of a context.
func with(m *moody) func(*pipe.Options) {
	return func(o *pipe.Options) {
		o.Channels = []pipe.ChannelEntry{{Name: "basic", Priority: 1, Factory: basic.New()}}
		if m != nil {
			o.Channels = append(o.Channels, pipe.ChannelEntry{Name: "moody", Priority: 2, Factory: m})
		}
	}
}

// bothDialects runs f in each dialect.
func bothDialects(t *testing.T, f func(t *testing.T, p path)) {
	for _, p := range []path{memPath(), nativePath()} {
		t.Run(p.dialect, func(t *testing.T) { f(t, p) })
	}
}

// Both ends try the channel with what the other one shows, once, and use it.
func TestChannelIsTriedByBothEnds(t *testing.T) {
	bothDialects(t, func(t *testing.T, p path) {
		dials, listens := newMoody("of the dialling end", nil), newMoody("of the listening end", nil)
		client, server := connectContexts(t, newContext(t, p, with(dials)), newContext(t, p, with(listens)), p.url)
		require.Equal(t, []string{"of the listening end, answering of the dialling end"}, dials.seen)
		require.Equal(t, []string{"of the dialling end"}, listens.seen)
		require.Equal(t, []string{"of the dialling end"}, dials.shown)
		require.Equal(t, []string{""}, listens.shown)
		for _, end := range []*moody{dials, listens} {
			require.Equal(t, end.seen, end.linked)
		}
		for _, end := range []*pipe.Pipe{client, server} {
			got, _ := end.Plan().Channel(device.CPU(), device.CPU())
			require.Equal(t, "moody", got)
		}
		exchange(t, client, server, message(1, []int{10}, []int{200_000}))
	})
}

// The next channel is used where one of the ends finds that the best one does
// not work, and both plans say why. Nobody accepts a pipe that was begun in vain.
func TestChannelThatDoesNotWorkIsRefused(t *testing.T) {
	fault := errors.New("it is forbidden")
	for _, c := range []struct {
		name             string
		dials, listens   error
		atDial, atListen string
	}{
		{"by the listening end", nil, fault, "the listening end: it is forbidden", "it is forbidden"},
		{"by the dialling end", fault, nil, "it is forbidden", "the dialling end: it is forbidden"},
		{"by both", fault, fault, "the listening end: it is forbidden", "it is forbidden"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bothDialects(t, func(t *testing.T, p path) {
				dials, listens := newMoody("dials", c.dials), newMoody("listens", c.listens)
				client, server := connectContexts(t, newContext(t, p, with(dials)), newContext(t, p, with(listens)), p.url)
				require.Contains(t, client.Plan().Refused, pipe.Refusal{What: "channel", Name: "moody", Reason: c.atDial})
				require.Contains(t, server.Plan().Refused, pipe.Refusal{What: "channel", Name: "moody", Reason: c.atListen})
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

// A policy that requires the channel fails the opening with the reason, at the
// end that has the policy.
func TestRequiredChannelThatDoesNotWork(t *testing.T) {
	fault := errors.New("it is forbidden")
	bothDialects(t, func(t *testing.T, p path) {
		for _, c := range []struct{ dials, listens error }{{fault, nil}, {nil, fault}} {
			require_ := func(o *pipe.Options) { o.Policy.Channels.Require = []string{"moody"} }
			a := newContext(t, p, with(newMoody("dials", c.dials)), require_)
			b := newContext(t, p, with(newMoody("listens", c.listens)))
			l, err := b.Listen(testContext(t), p.url)
			require.NoError(t, err)
			_, err = a.Dial(testContext(t), l.URLs()[0])
			require.ErrorIs(t, err, pipe.ErrPolicy)
			require.ErrorContains(t, err, "it is forbidden")
		}
		var log loglines.Lines
		logged := func(o *pipe.Options) { o.Logger = log.Logger() }
		a := newContext(t, p, with(newMoody("dials", fault)))
		b := newContext(t, p, with(newMoody("listens", nil)), logged, func(o *pipe.Options) { o.Policy.Channels.Require = []string{"moody"} })
		l, err := b.Listen(testContext(t), p.url)
		require.NoError(t, err)
		_, err = a.Dial(testContext(t), l.URLs()[0])
		require.Error(t, err)
		require.NoError(t, l.Close())
		require.Contains(t, log.String(), "the dialling end: it is forbidden")
	})
}

// An end that shows nothing is not tried: an older one, or one whose channel has
// no need of it.
func TestChannelIsNotTriedWithoutAnOffer(t *testing.T) {
	bothDialects(t, func(t *testing.T, p path) {
		old := func(o *pipe.Options) {
			o.Channels = []pipe.ChannelEntry{{Name: "moody", Priority: 2, Factory: xth.New()}}
		}
		listens := newMoody("listens", errors.New("it is forbidden"))
		client, server := connectContexts(t, newContext(t, p, old), newContext(t, p, with(listens)), p.url)
		require.Empty(t, listens.seen)
		exchange(t, client, server, message(1, nil, []int{200_000}))

		dials := newMoody("dials", errors.New("it is forbidden"))
		client, server = connectContexts(t, newContext(t, p, with(dials)), newContext(t, p, old), p.url)
		require.Empty(t, dials.seen)
		exchange(t, client, server, message(1, nil, []int{200_000}))
	})
}

// Several channels that do not work are given up one after the other.
func TestSeveralChannelsDoNotWork(t *testing.T) {
	many := func(fault error) func(*pipe.Options) {
		return func(o *pipe.Options) {
			with(nil)(o)
			for i := range 3 {
				o.Channels = append(o.Channels, pipe.ChannelEntry{
					Name: fmt.Sprint("moody", i), Priority: 10 + i, Factory: newMoody("moody", fault)})
			}
		}
	}
	p := nativePath()
	client, server := connectContexts(t,
		newContext(t, p, many(errors.New("it is forbidden"))), newContext(t, p, many(nil)), p.url)
	got, _ := client.Plan().Channel(device.CPU(), device.CPU())
	require.Equal(t, "basic", got)
	require.Equal(t, 3, strings.Count(server.Plan().String(), "the dialling end: it is forbidden"))
	exchange(t, client, server, message(1, nil, []int{200_000}))
}
