package samehost_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// flights records the writes and the reads of the dialling end, in order.
type flights struct {
	mu  sync.Mutex
	all []string
}

func (f *flights) add(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, what)
}

// watched is a transport of which the connections that are dialled note their frames.
type watched struct {
	transport.Transport
	name string
	log  *flights
}

func (w watched) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := w.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	watching := watchedConn{c, c.(transport.Multiplexer), w}
	if p, ok := c.(transport.SessionPreparer); ok {
		return watchedPreparer{watching, p}, nil
	}
	return watching, nil
}

type watchedConn struct {
	transport.Conn
	transport.Multiplexer
	of watched
}

type watchedPreparer struct {
	watchedConn
	transport.SessionPreparer
}

func (c watchedConn) WriteFrames(frames ...transport.Frame) error {
	c.of.log.add(c.of.name + " out")
	return c.Conn.WriteFrames(frames...)
}

func (c watchedConn) NextFrame() (int64, error) {
	n, err := c.Conn.NextFrame()
	if err == nil {
		c.of.log.add(c.of.name + " in")
	}
	return n, err
}

// A native pipe takes one round trip to open, and another where it moves to shared
// memory: what its session needs comes along.
func TestRoundTripsOfOpening(t *testing.T) {
	if err := shm.New().Viable(); err != nil {
		t.Skip("shared memory does not work here: ", err)
	}
	for direct, want := range map[bool][]string{
		true:  {"shm out", "shm in"},
		false: {"uv out", "uv in", "shm out", "shm in"},
	} {
		log := &flights{}
		newEnd := func(watch func(string, transport.Transport) transport.Transport) *pipe.Context {
			c, err := pipe.New(pipe.Options{
				Dialect: pipe.DialectNative,
				Transports: []pipe.TransportEntry{
					{Name: "uv", Transport: watch("uv", uv.New())},
					{Name: shm.Name, Priority: 200, Transport: watch("shm", shm.New())},
				},
				Channels: []pipe.ChannelEntry{{Name: basic.Name, Factory: basic.New()}},
			})
			require.NoError(t, err)
			t.Cleanup(func() { c.Close() })
			return c
		}
		there := newEnd(func(_ string, t transport.Transport) transport.Transport { return t })
		here := newEnd(func(name string, t transport.Transport) transport.Transport { return watched{t, name, log} })
		l, err := there.Listen(t.Context(), "shm://", "uv://127.0.0.1:0")
		require.NoError(t, err)
		go describeAll(t.Context(), l)
		p, err := here.Dial(t.Context(), shortage{direct: direct}.url(l.URLs()))
		require.NoError(t, err)
		require.Equal(t, shm.Name, p.Plan().Transport)
		require.Equal(t, want, log.all)
		require.NoError(t, p.Write(t.Context(), &pipe.Message{}))
		_, err = read(t.Context(), p)
		require.NoError(t, err)
		p.Abort(nil)
	}
}
