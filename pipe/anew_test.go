package pipe_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/loglines"
	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// ailing is a transport that claims to work, and stops to when it has given out so
// many connections.
type ailing struct {
	transport.Transport
	healthy int
	fault   error
}

func (a *ailing) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if a.healthy == 0 {
		return nil, a.fault
	}
	a.healthy--
	return a.Transport.Dial(ctx, addr)
}

func (a *ailing) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := a.Transport.Listen(ctx, addr)
	return &ailingListener{l, a}, err
}

type ailingListener struct {
	transport.Listener
	of *ailing
}

// Accept hangs up on a peer that thinks itself connected.
func (l *ailingListener) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err == nil && l.of.healthy == 0 {
		c.Close()
	}
	return c, err
}

var errFull = errors.New("no descriptor is left")

// fallingIll replaces the better transport of both.
func fallingIll(network *mem.Network, dialect string, healthy int) func(*pipe.Options) {
	return func(o *pipe.Options) {
		o.Dialect = dialect
		o.HandshakeTimeout = time.Hour // not what ends anything here
		if healthy >= 0 {
			o.Transports[1].Transport = &ailing{mem.New(network), healthy, errFull}
		}
	}
}

const well = -1

// Where the better transport fails once it was chosen, the pipe opens all the same,
// on the other one. Both plans say why, and so does the listener's log.
func TestTransportThatFailsLate(t *testing.T) {
	for _, c := range []struct {
		name           string
		dialect        string
		dials, listens int
		why            string
	}{
		{"at the dialling end", pipe.DialectCompatible, 0, well, "no descriptor is left"},
		{"at the dialling end", pipe.DialectNative, 0, well, "no descriptor is left"},
		{"at the listening end", pipe.DialectNative, well, 0, `(the listening end hung up on it: EOF|mem: write \S+: broken pipe)`},
	} {
		t.Run(c.name+"/"+c.dialect, func(t *testing.T) {
			network := mem.NewNetwork()
			a := both(t, network, fallingIll(network, c.dialect, c.dials))
			b := both(t, network, fallingIll(network, c.dialect, c.listens))
			l, err := b.Listen(testContext(t), "uv://127.0.0.1:0", "mem://")
			require.NoError(t, err)
			client, server := join(t, a, l)
			for plan, who := range map[*pipe.Plan]string{client.Plan(): "", server.Plan(): "the dialling end: "} {
				require.Equal(t, "uv", plan.Transport)
				require.Equal(t, c.dialect, plan.Dialect)
				require.Regexp(t, "not transport mem +"+who+c.why, plan.String())
			}
			exchange(t, client, server, message(1, []int{10}, []int{1 << 20}))
		})
	}
}

// join dials the listener by its last transport.
func join(t *testing.T, a *pipe.Context, l *pipe.Listener) (client, server *pipe.Pipe) {
	t.Helper()
	client, err := a.Dial(testContext(t), l.URLs()[len(l.URLs())-1])
	require.NoError(t, err)
	server, err = l.Accept(testContext(t))
	require.NoError(t, err)
	return client, server
}

// The listening end need not wait for what will not come.
func TestListenerHearsOfTheNewBeginning(t *testing.T) {
	network := mem.NewNetwork()
	var log loglines.Lines
	a := both(t, network, fallingIll(network, pipe.DialectNative, 0))
	b := both(t, network, fallingIll(network, pipe.DialectNative, well), func(o *pipe.Options) {
		o.Logger = log.Logger()
	})
	l, err := b.Listen(testContext(t), "uv://127.0.0.1:0", "mem://")
	require.NoError(t, err)
	join(t, a, l)
	heard := func() bool {
		return strings.Contains(log.String(), "the dialling end begins anew: transport mem: no descriptor is left")
	}
	require.Eventually(t, heard, time.Minute, time.Millisecond)
	require.EqualValues(t, 1, b.Stats().HandshakesFailed)
}

// A compatible pipe needs several connections, any of which may fail.
func TestTransportThatFailsInTheMiddle(t *testing.T) {
	for healthy := 1; healthy < 4; healthy++ {
		network := mem.NewNetwork()
		a := both(t, network, fallingIll(network, pipe.DialectCompatible, healthy))
		b := both(t, network)
		l, err := b.Listen(testContext(t), "uv://127.0.0.1:0", "mem://")
		require.NoError(t, err)
		client, server := join(t, a, l)
		require.Equal(t, "uv", client.Plan().Transport, healthy)
		exchange(t, client, server, message(1, []int{10}, []int{200_000}))
	}
}

// cramped is a transport whose connections are too many to become sessions.
type cramped struct{ transport.Transport }

func (c cramped) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	conn, err := c.Transport.Dial(ctx, addr)
	return crampedConn{conn}, err
}

type crampedConn struct{ transport.Conn }

func (crampedConn) Multiplex(transport.SessionConfig) (transport.Session, error) {
	return nil, syscall.EMFILE
}

// A native pipe needs more of the system when the connection becomes a session.
func TestSessionThatFailsLate(t *testing.T) {
	network := mem.NewNetwork()
	a := both(t, network, fallingIll(network, pipe.DialectNative, well), func(o *pipe.Options) {
		o.Transports[1].Transport = cramped{mem.New(network)}
	})
	b := both(t, network, fallingIll(network, pipe.DialectNative, well))
	l, err := b.Listen(testContext(t), "uv://127.0.0.1:0", "mem://")
	require.NoError(t, err)
	client, server := join(t, a, l)
	require.Regexp(t, "not transport mem +.*too many open files", client.Plan().String())
	exchange(t, client, server, message(1, []int{10}, []int{200_000}))
}

// unprepared is a transport whose connections cannot become sessions at one end.
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

// What a session needs is had, or not, before the dialling end counts the pipe as open. A
// pipe that was to move stays where it was dialled, and both plans have the reason.
func TestSessionThatCannotBePrepared(t *testing.T) {
	for _, listens := range []bool{false, true} {
		network := mem.NewNetwork()
		ends := [2]*pipe.Context{}
		for i := range ends {
			ends[i] = both(t, network, fallingIll(network, pipe.DialectNative, well), func(o *pipe.Options) {
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

// A policy turns that into an error, which names the cause.
func TestRequiredTransportThatFailsLate(t *testing.T) {
	network := mem.NewNetwork()
	a := both(t, network, fallingIll(network, pipe.DialectNative, 0), func(o *pipe.Options) {
		o.Policy.Transports.Require = []string{"mem"}
	})
	l, err := both(t, network).Listen(testContext(t), "uv://127.0.0.1:0", "mem://")
	require.NoError(t, err)
	_, err = a.Dial(testContext(t), l.URLs()[1])
	require.ErrorIs(t, err, pipe.ErrPolicy)
	require.ErrorContains(t, err, "transport mem: ")
	require.ErrorContains(t, err, "no descriptor is left")
}

// unwell is a transport that does not work here, and says so.
type unwell struct{ transport.Transport }

func (unwell) Viable() error { return probe.NotSupported("mem", "it is Sunday") }

// Who listens on all it knows goes without what does not work; the peer's plan
// says why, too.
func TestListenerPassesOverWhatDoesNotWork(t *testing.T) {
	network := mem.NewNetwork()
	sick := func(o *pipe.Options) { o.Transports[1].Transport = unwell{mem.New(network)} }
	a, b := both(t, network), both(t, network, sick)
	l, err := b.Listen(testContext(t), "uv://127.0.0.1:0", "mem://")
	require.NoError(t, err)
	require.Len(t, l.URLs(), 1)
	client, server := join(t, a, l)
	require.Regexp(t, "not transport mem +the listening end: mem is not supported: it is Sunday", client.Plan().String())
	require.Regexp(t, "not transport mem +mem is not supported: it is Sunday", server.Plan().String())

	_, err = b.Listen(testContext(t), "mem://")
	require.ErrorIs(t, err, pipe.ErrURL)
	require.ErrorContains(t, err, "it is Sunday")
	strict := both(t, network, sick, func(o *pipe.Options) { o.Policy.Transports.Require = []string{"mem"} })
	_, err = strict.Listen(testContext(t), "uv://127.0.0.1:0", "mem://")
	require.ErrorIs(t, err, pipe.ErrURL)
	require.ErrorContains(t, err, "it is Sunday")
}
