package pipe_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/loglines"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// failingTransport is a transport that fails after a number of connections.
type failingTransport struct {
	transport.Transport
	left  int // connections until it fails
	fault error
}

func (f *failingTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if f.left == 0 {
		return nil, f.fault
	}
	f.left--
	return f.Transport.Dial(ctx, addr)
}

func (f *failingTransport) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := f.Transport.Listen(ctx, addr)
	return &failingListener{l, f}, err
}

type failingListener struct {
	transport.Listener
	transport *failingTransport
}

// Accept accepts a connection of the underlying listener and returns it. If the transport has
// failed, Accept closes the connection first, so that the client finds it closed after it has
// connected.
func (l *failingListener) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err == nil && l.transport.left == 0 {
		c.Close()
	}
	return c, err
}

var errFull = errors.New("no descriptor is left")

// failAfter returns an option that sets the dialect and, unless connections is negative, replaces
// the better transport of a context by one that fails after that number of connections.
func failAfter(network *mem.Network, dialect pipe.Dialect, connections int) func(*pipe.Options) {
	return func(o *pipe.Options) {
		o.Dialect = dialect
		o.HandshakeTimeout = time.Hour // no step waits for the timeout
		if connections >= 0 {
			o.Transports[1].Transport = &failingTransport{mem.New(network), connections, errFull}
		}
	}
}

// noFailure, as a number of connections, is a transport that does not fail.
const noFailure = -1

// TestTransportFailsAfterChoice checks that the pipe uses the other transport if the better one
// fails after it was chosen, at the client or at the server, and that the plans of both ends have
// the reason.
func TestTransportFailsAfterChoice(t *testing.T) {
	for _, c := range []struct {
		name           string
		dialect        pipe.Dialect
		dials, listens int
		why            string
	}{
		{"at the client", pipe.DialectCompatible, 0, noFailure, "no descriptor is left"},
		{"at the client", pipe.DialectNative, 0, noFailure, "no descriptor is left"},
		{"at the server", pipe.DialectNative, noFailure, 0, `(the server closed the connection: EOF|mem: write \S+: broken pipe)`},
	} {
		t.Run(c.name+"/"+string(c.dialect), func(t *testing.T) {
			network := mem.NewNetwork()
			a := both(t, network, failAfter(network, c.dialect, c.dials))
			b := both(t, network, failAfter(network, c.dialect, c.listens))
			l, err := b.Listen(testContext(t), "uv://127.0.0.1:0", "mem://")
			require.NoError(t, err)
			client, server := join(t, a, l)
			for plan, who := range map[*pipe.Plan]string{client.Plan(): "", server.Plan(): "the client: "} {
				require.Equal(t, "uv", plan.Transport)
				require.Equal(t, c.dialect, plan.Dialect)
				require.Regexp(t, "not transport mem +"+who+c.why, plan.String())
			}
			exchange(t, client, server, message(1, []int{10}, []int{1 << 20}))
		})
	}
}

// join makes a dial the last URL of l, and returns the two ends of the pipe.
func join(t *testing.T, a *pipe.Context, l *pipe.Listener) (client, server *pipe.Pipe) {
	t.Helper()
	client, err := a.Dial(testContext(t), l.URLs()[len(l.URLs())-1])
	require.NoError(t, err)
	server, err = l.Accept(testContext(t))
	require.NoError(t, err)
	return client, server
}

// TestServerLearnsOfRetry checks that a client that repeats the handshake reports this to the
// server: the server logs the reason and fails the old handshake, instead of waiting for
// connections that will not come.
func TestServerLearnsOfRetry(t *testing.T) {
	network := mem.NewNetwork()
	var log loglines.Lines
	a := both(t, network, failAfter(network, pipe.DialectNative, 0))
	b := both(t, network, failAfter(network, pipe.DialectNative, noFailure), func(o *pipe.Options) {
		o.Logger = log.Logger()
	})
	l, err := b.Listen(testContext(t), "uv://127.0.0.1:0", "mem://")
	require.NoError(t, err)
	join(t, a, l)
	logged := func() bool {
		return strings.Contains(log.String(), "the client retries the handshake: transport mem: no descriptor is left")
	}
	require.Eventually(t, logged, time.Minute, time.Millisecond)
	require.EqualValues(t, 1, b.Stats().HandshakesFailed)
}

// TestTransportFailsDuringMove checks, in the compatible dialect, which needs several connections,
// that the pipe uses the other transport whichever of them is the first that cannot be opened.
func TestTransportFailsDuringMove(t *testing.T) {
	for connections := 1; connections < 4; connections++ {
		network := mem.NewNetwork()
		a := both(t, network, failAfter(network, pipe.DialectCompatible, connections))
		b := both(t, network)
		l, err := b.Listen(testContext(t), "uv://127.0.0.1:0", "mem://")
		require.NoError(t, err)
		client, server := join(t, a, l)
		require.Equal(t, "uv", client.Plan().Transport, connections)
		exchange(t, client, server, message(1, []int{10}, []int{200_000}))
	}
}

// noSessions is a transport that has no descriptors to multiplex its connections.
type noSessions struct{ transport.Transport }

func (c noSessions) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	conn, err := c.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return unmultiplexedConn{conn, conn.(transport.Multiplexer)}, nil
}

type unmultiplexedConn struct {
	transport.Conn
	transport.Multiplexer
}

func (unmultiplexedConn) Multiplex(transport.SessionConfig) (transport.Session, error) {
	return nil, syscall.EMFILE
}

// TestSessionFailsAfterChoice checks that the client repeats the handshake without a transport
// whose connection the system cannot multiplex.
func TestSessionFailsAfterChoice(t *testing.T) {
	network := mem.NewNetwork()
	a := both(t, network, failAfter(network, pipe.DialectNative, noFailure), func(o *pipe.Options) {
		o.Transports[1].Transport = noSessions{mem.New(network)}
	})
	b := both(t, network, failAfter(network, pipe.DialectNative, noFailure))
	l, err := b.Listen(testContext(t), "uv://127.0.0.1:0", "mem://")
	require.NoError(t, err)
	client, server := join(t, a, l)
	require.Regexp(t, "not transport mem +.*too many open files", client.Plan().String())
	exchange(t, client, server, message(1, []int{10}, []int{200_000}))
}

// unprepared is a transport whose connections cannot prepare a session at one end.
type unprepared struct{ transport.Transport }

func (u unprepared) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := u.Transport.Dial(ctx, addr)
	return unpreparedConn{c, c.(transport.Multiplexer)}, err
}

func (u unprepared) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := u.Transport.Listen(ctx, addr)
	return unpreparedListener{l}, err
}

type unpreparedListener struct{ transport.Listener }

func (l unpreparedListener) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return unpreparedConn{c, c.(transport.Multiplexer)}, nil
}

type unpreparedConn struct {
	transport.Conn
	transport.Multiplexer
}

func (unpreparedConn) PrepareSession(transport.SessionConfig) error { return syscall.EMFILE }

// TestSessionCannotBePrepared checks what happens if one end cannot acquire what a session over the
// better transport needs. A pipe that was dialled over the other transport stays there, and both
// plans have the reason. A Dial over the better transport itself fails with the reason.
func TestSessionCannotBePrepared(t *testing.T) {
	for _, listens := range []bool{false, true} {
		network := mem.NewNetwork()
		ends := [2]*pipe.Context{}
		for i := range ends {
			ends[i] = both(t, network, failAfter(network, pipe.DialectNative, noFailure), func(o *pipe.Options) {
				if listens == (i == 1) {
					o.Transports[1].Transport = unprepared{mem.New(network)}
				}
			})
		}
		l, err := ends[1].Listen(testContext(t), "mem://", "uv://127.0.0.1:0")
		require.NoError(t, err)
		client, server := join(t, ends[0], l)
		for _, plan := range []*pipe.Plan{client.Plan(), server.Plan()} {
			require.Equal(t, "uv", plan.Transport)
			require.Regexp(t, "not transport mem +.*too many open files", plan.String())
		}
		exchange(t, client, server, message(1, []int{10}, []int{200_000}))

		_, err = ends[0].Dial(testContext(t), l.URLs()[0])
		require.ErrorIs(t, err, pipe.ErrHandshake)
		require.ErrorContains(t, err, "too many open files")
	}
}

// TestRequiredTransportFailsAfterChoice checks that Dial fails with ErrPolicy and the reason if the
// policy requires the transport that has failed.
func TestRequiredTransportFailsAfterChoice(t *testing.T) {
	network := mem.NewNetwork()
	a := both(t, network, failAfter(network, pipe.DialectNative, 0), func(o *pipe.Options) {
		o.Policy.Transports.Require = []string{"mem"}
	})
	l, err := both(t, network).Listen(testContext(t), "uv://127.0.0.1:0", "mem://")
	require.NoError(t, err)
	_, err = a.Dial(testContext(t), l.URLs()[1])
	require.ErrorIs(t, err, pipe.ErrPolicy)
	require.ErrorContains(t, err, "transport mem: ")
	require.ErrorContains(t, err, "no descriptor is left")
}

// unusable is a transport that is not viable on this machine.
type unusable struct{ transport.Transport }

func (unusable) Viable() error { return probe.NotSupported("mem", "it is Sunday") }

// TestServerSkipsUnusableTransport checks that Listen with several URLs skips a transport that does
// not work on this machine, and that the plans of both ends have the reason. Listen fails if no
// other transport is left or the policy requires that one.
func TestServerSkipsUnusableTransport(t *testing.T) {
	network := mem.NewNetwork()
	withoutMem := func(o *pipe.Options) { o.Transports[1].Transport = unusable{mem.New(network)} }
	a, b := both(t, network), both(t, network, withoutMem)
	l, err := b.Listen(testContext(t), "uv://127.0.0.1:0", "mem://")
	require.NoError(t, err)
	require.Len(t, l.URLs(), 1)
	client, server := join(t, a, l)
	require.Regexp(t, "not transport mem +the server: mem is not supported: it is Sunday", client.Plan().String())
	require.Regexp(t, "not transport mem +mem is not supported: it is Sunday", server.Plan().String())

	_, err = b.Listen(testContext(t), "mem://")
	require.ErrorIs(t, err, pipe.ErrURL)
	require.ErrorContains(t, err, "it is Sunday")
	strict := both(t, network, withoutMem, func(o *pipe.Options) { o.Policy.Transports.Require = []string{"mem"} })
	_, err = strict.Listen(testContext(t), "uv://127.0.0.1:0", "mem://")
	require.ErrorIs(t, err, pipe.ErrURL)
	require.ErrorContains(t, err, "it is Sunday")
}

// TestRejectedClientStaysConnected checks that a rejected client receives the reason, and that a
// client that stays connected keeps its connection and its handshake slot until HandshakeTimeout
// and no longer.
func TestRejectedClientStaysConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.NewNetwork()
		only := pipe.TransportEntry{Name: "mem", Transport: mem.New(network)}
		c, err := pipe.New(pipe.Options{Transports: []pipe.TransportEntry{only}, Limits: pipe.Limits{MaxHandshakesInProgress: 1}})
		require.NoError(t, err)
		defer c.Close()
		l, err := c.Listen(t.Context(), "mem://here")
		require.NoError(t, err)
		client, err := mem.New(network).Dial(t.Context(), "here")
		require.NoError(t, err)
		defer client.Close()

		hello := wire.SpontaneousConnection{ContextName: "client"}
		brochure := wire.Brochure{TransportDomainDescriptors: map[string]string{}}
		brochure.Mark(wire.Marker{MaxVersion: wire.VersionNative})
		require.NoError(t, client.WriteFrames(transport.Frame{hello.Append(nil)}, transport.Frame{brochure.Append(nil)}))
		n, err := client.NextFrame()
		require.NoError(t, err)
		text := make([]byte, n)
		require.NoError(t, client.ReadBody(text))
		answer, err := wire.DecodeBrochureAnswer(text, wire.Limits{})
		require.NoError(t, err)
		refusal, refused := answer.Refusal()
		require.True(t, refused)
		require.Equal(t, wire.RefusedByTransport, refusal.Kind)
		require.Contains(t, refusal.Text, "transport mem: the peer does not offer it")
		require.EqualValues(t, 1, c.Stats().HandshakesFailed)

		_, err = c.Dial(t.Context(), l.URLs()[0])
		require.Error(t, err, "the slot is taken")
		<-time.NewTimer(10 * time.Second).C
		synctest.Wait()
		require.Error(t, client.WriteFrames(transport.Frame{}))
		_, err = c.Dial(t.Context(), l.URLs()[0])
		require.NoError(t, err)
	})
}
