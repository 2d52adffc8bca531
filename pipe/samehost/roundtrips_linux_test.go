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

// frameLog records the writes and reads of the dialling end, in order.
type frameLog struct {
	mu  sync.Mutex
	all []string
}

func (f *frameLog) add(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, what)
}

// recordingTransport records the frames of its dialled connections.
type recordingTransport struct {
	transport.Transport
	name string
	log  *frameLog
}

func (w recordingTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := w.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return recordingConn{c, c.(transport.Multiplexer), w}, nil
}

type recordingConn struct {
	transport.Conn
	transport.Multiplexer
	of recordingTransport
}

func (c recordingConn) WriteFrames(frames ...transport.Frame) error {
	c.of.log.add(c.of.name + " out")
	return c.Conn.WriteFrames(frames...)
}

func (c recordingConn) NextFrame() (int64, error) {
	n, err := c.Conn.NextFrame()
	if err == nil {
		c.of.log.add(c.of.name + " in")
	}
	return n, err
}

// TestRoundTripsOfOpening checks that opening a native pipe takes one round trip over the dialled
// transport, and a second one if the pipe changes to shared memory. The session adds none.
func TestRoundTripsOfOpening(t *testing.T) {
	if err := shm.New().Viable(); err != nil {
		t.Skip("shared memory does not work here: ", err)
	}
	for direct, want := range map[bool][]string{
		true:  {"shm out", "shm in"},
		false: {"uv out", "uv in", "shm out", "shm in"},
	} {
		log := &frameLog{}
		newEnd := func(wrap func(string, transport.Transport) transport.Transport) *pipe.Context {
			c, err := pipe.New(pipe.Options{
				Dialect: pipe.DialectNative,
				Transports: []pipe.TransportEntry{
					{Name: "uv", Transport: wrap("uv", uv.New())},
					{Name: shm.Name, Priority: 200, Transport: wrap("shm", shm.New())},
				},
				Channels: []pipe.ChannelEntry{{Name: basic.Name, Factory: basic.New()}},
			})
			require.NoError(t, err)
			t.Cleanup(func() { c.Close() })
			return c
		}
		server := newEnd(func(_ string, t transport.Transport) transport.Transport { return t })
		client := newEnd(func(name string, t transport.Transport) transport.Transport { return recordingTransport{t, name, log} })
		l, err := server.Listen(t.Context(), "shm://", "uv://127.0.0.1:0")
		require.NoError(t, err)
		go servePlans(t.Context(), l)
		p, err := client.Dial(t.Context(), shortage{direct: direct}.url(l.URLs()))
		require.NoError(t, err)
		require.Equal(t, shm.Name, p.Plan().Transport)
		require.Equal(t, want, log.all)
		require.NoError(t, p.Write(t.Context(), &pipe.Message{}))
		_, err = readMessage(t.Context(), p)
		require.NoError(t, err)
		p.Abort(nil)
	}
}
