package pipe_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// both returns a context with two transports, uv and mem, of which mem has the higher priority, and
// the channel basic. The options are changed by adjust, and the context is closed at the end of the
// test.
func both(t *testing.T, network *mem.Network, adjust ...func(*pipe.Options)) *pipe.Context {
	return newContext(t, path{opts: func() pipe.Options {
		return pipe.Options{
			Name: "both",
			Transports: []pipe.TransportEntry{
				{Name: "uv", Priority: 0, Transport: uv.New()},
				{Name: "mem", Priority: 1, Transport: mem.New(network)},
			},
			Channels: []pipe.ChannelEntry{{Name: "basic", Priority: 1, Factory: basic.New()}},
		}
	}}, adjust...)
}

// TestTransportIsUpgraded checks that a pipe that is dialled over one transport uses the best one
// that both ends share, and the plan has the reason why the dialled one is not used.
func TestTransportIsUpgraded(t *testing.T) {
	network := mem.NewNetwork()
	a, b := both(t, network), both(t, network)
	l, err := b.Listen(testContext(t), "uv://127.0.0.1:0", "mem://upgrade")
	require.NoError(t, err)
	require.Equal(t, "mem://upgrade", l.URLs()[0])
	client, err := a.Dial(testContext(t), l.URLs()[1])
	require.NoError(t, err)
	server, err := l.Accept(testContext(t))
	require.NoError(t, err)
	require.Equal(t, "mem", client.Plan().Transport)
	require.Equal(t, "mem", server.Plan().Transport)
	require.Equal(t, []pipe.Refusal{{Kind: "transport", Name: "uv", Reason: "mem goes before it"}}, server.Plan().Refused)
	require.Equal(t, "both", server.Peer())
	exchange(t, client, server, message(1, []int{10}, []int{20}))
}

// TestTransportIsNotShared checks that if two ends cannot reach each other over the better
// transport, the pipe uses the other one, and the plan has the reason.
func TestTransportIsNotShared(t *testing.T) {
	a, b := both(t, mem.NewNetwork()), both(t, mem.NewNetwork())
	l, err := b.Listen(testContext(t), "uv://127.0.0.1:0", "mem://elsewhere")
	require.NoError(t, err)
	client, err := a.Dial(testContext(t), l.URLs()[1])
	require.NoError(t, err)
	server, err := l.Accept(testContext(t))
	require.NoError(t, err)
	require.Equal(t, "uv", client.Plan().Transport)
	require.Contains(t, server.Plan().String(), "the peer is in another domain")
}

// TestNoCommonChannel checks that without a common channel a pipe opens and carries payloads.
// Writing a tensor fails with ErrNoChannel and the names of the channels, and the pipe stays open.
func TestNoCommonChannel(t *testing.T) {
	path := memPath()
	a := newContext(t, path, func(o *pipe.Options) { o.Channels[0].Name = "mine" })
	b := newContext(t, path)
	client, server := connectContexts(t, a, b, path.url)
	require.Contains(t, client.Plan().String(), "no common channel")
	err := client.Write(testContext(t), message(1, nil, []int{1}))
	require.ErrorIs(t, err, pipe.ErrNoChannel)
	require.ErrorContains(t, err, "channel mine")
	write(t, client, message(2, []int{10}, nil))
	expect(t, server, message(2, []int{10}, nil))
}

func TestWildcardAdvertisesReachedAddress(t *testing.T) {
	a, b := both(t, mem.NewNetwork()), both(t, mem.NewNetwork())
	for _, c := range []struct{ listen, host string }{
		{"uv://0.0.0.0:0", "127.0.0.2"},
		{"uv://:0", "127.0.0.1"},
		{"uv://localhost:0", "localhost"},
		{"uv://[::]:0", "[::1]"},
	} {
		t.Run(c.listen+" by "+c.host, func(t *testing.T) {
			if c.host == "[::1]" && !haveIPv6() {
				t.Skip("this machine has no IPv6 loopback")
			}
			l, err := b.Listen(testContext(t), c.listen)
			require.NoError(t, err)
			url := l.URLs()[0]
			port := url[strings.LastIndex(url, ":"):]
			client, err := a.Dial(testContext(t), "uv://"+c.host+port)
			require.NoError(t, err)
			server, err := l.Accept(testContext(t))
			require.NoError(t, err)
			exchange(t, client, server, message(1, []int{10}, []int{20}))
		})
	}
}

func haveIPv6() bool {
	l, err := net.Listen("tcp6", "[::1]:0")
	if err == nil {
		l.Close()
	}
	return err == nil
}

func TestBadURLs(t *testing.T) {
	c := both(t, mem.NewNetwork())
	for url, text := range map[string]string{
		"127.0.0.1:7000":       "has no scheme",
		"://127.0.0.1:7000":    "has no scheme",
		"":                     "has no scheme",
		"shm://x":              `no transport "shm" is registered`,
		"uv://127.0.0.1:99999": "port",
		"uv://[::1":            "bad address",
		"mem://no-such-server": "no-such-server",
	} {
		_, err := c.Dial(testContext(t), url)
		require.ErrorContains(t, err, text, url)
		var e *pipe.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, "dial", e.Op)
	}
	_, err := c.Listen(testContext(t))
	require.ErrorContains(t, err, "at least one")
	_, err = c.Listen(testContext(t), "uv://127.0.0.1:0", "uv://127.0.0.1:0")
	require.ErrorContains(t, err, "a second one")
	_, err = pipe.New(pipe.Options{})
	require.ErrorContains(t, err, "no usable transport")
}

// TestHandshakeTimesOut checks that Dial fails with ErrHandshakeTimeout after HandshakeTimeout if
// the server does not answer, and with the cause of its ctx if that has ended. Both count as failed
// handshakes.
func TestHandshakeTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.NewNetwork()
		stalled, err := mem.New(network).Listen(t.Context(), "stalled")
		require.NoError(t, err)
		defer stalled.Close()
		c := both(t, network, defaultTimeouts)
		begin := time.Now()
		_, err = c.Dial(context.Background(), "mem://stalled")
		require.ErrorIs(t, err, pipe.ErrHandshakeTimeout)
		require.ErrorIs(t, err, pipe.ErrHandshake)
		require.ErrorContains(t, err, "handshake timed out while waiting for the answer")
		require.Equal(t, 10*time.Second, time.Since(begin))

		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errEnough)
		_, err = c.Dial(ctx, "mem://stalled")
		require.ErrorIs(t, err, errEnough)
		require.ErrorContains(t, err, errEnough.Error()+" while dialling")
		require.Equal(t, uint64(2), c.Stats().HandshakesFailed)
	})
}

// TestPipeIsNotAccepted checks that a pipe that finds the backlog of Accept full for
// HandshakeTimeout is closed at both ends. An earlier one in the backlog can still be accepted.
func TestPipeIsNotAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := memPath()
		a := newContext(t, path)
		b := newContext(t, path, func(o *pipe.Options) { o.Limits.MaxAcceptBacklog = 1 })
		l, err := b.Listen(t.Context(), path.url)
		require.NoError(t, err)
		first, err := a.Dial(t.Context(), l.URLs()[0])
		require.NoError(t, err)
		synctest.Wait() // the first is in the backlog
		second, err := a.Dial(t.Context(), l.URLs()[0])
		require.NoError(t, err)
		_, err = second.Next(t.Context())
		require.ErrorIs(t, err, pipe.ErrPeerClosed)
		synctest.Wait()
		require.Zero(t, b.Stats().HandshakesInProgress)

		server, err := l.Accept(t.Context())
		require.NoError(t, err)
		write(t, first, message(1, []int{1}, nil))
		expect(t, server, message(1, []int{1}, nil))
	})
}

func TestListenerCloseLeavesAcceptedPipes(t *testing.T) {
	path := memPath()
	a, b := newContext(t, path), newContext(t, path)
	l, err := b.Listen(testContext(t), path.url)
	require.NoError(t, err)
	url := l.URLs()[0]
	client, err := a.Dial(testContext(t), url)
	require.NoError(t, err)
	server, err := l.Accept(testContext(t))
	require.NoError(t, err)
	waiting, err := a.Dial(testContext(t), url) // opened, and never accepted
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	require.Equal(t, url, l.URLs()[0])

	_, err = waiting.Next(testContext(t))
	require.Error(t, err)
	exchange(t, client, server, message(1, []int{10}, []int{10}))
	_, err = a.Dial(testContext(t), url)
	require.Error(t, err)
}

// TestPlanHasReasonForNotViable checks that a channel that does not work on this machine is not
// used; the next one by priority is. The plan has the channel's error as the reason.
func TestPlanHasReasonForNotViable(t *testing.T) {
	path := memPath()
	client, _ := connect(t, path, func(o *pipe.Options) {
		o.Channels = append(o.Channels, pipe.ChannelEntry{Name: "notViable", Priority: 1 << 20, Factory: notViable{basic.New()}})
	})
	require.Contains(t, client.Plan().Refused, pipe.Refusal{Kind: "channel", Name: "notViable", Reason: "notViable is not supported: no hardware"})
	name, ok := client.Plan().Channel(device.CPU(), device.CPU())
	require.True(t, ok)
	require.Equal(t, "basic", name)
}

type notViable struct{ basic.Factory }

func (notViable) Viable() error { return probe.NotSupported("notViable", "no hardware") }

func TestErrorsAreNetErrors(t *testing.T) {
	var err error = &pipe.Error{Op: "dial", Peer: "uv://x", Conn: "reply", Err: pipe.ErrHandshakeTimeout}
	require.Equal(t, "pipe: dial uv://x (reply connection): handshake timed out", err.Error())
	var timeout interface{ Timeout() bool }
	require.True(t, errors.As(err, &timeout) && timeout.Timeout())
	require.False(t, (&pipe.Error{Err: pipe.ErrProtocol}).Timeout())
	require.Equal(t, "pipe: write: "+pipe.ErrClosed.Error(), (&pipe.Error{Op: "write", Err: pipe.ErrClosed}).Error())
}
