package agent_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// forwarded is the transport uv, whose connections go through forwarders that can be stopped.
type forwarded struct {
	transport.Transport
	t *testing.T

	mu       sync.Mutex
	stopped  bool
	left     int           // bytes from listeners that are still forwarded
	resumed  chan struct{} // closed when they are forwarded again
	finished sync.WaitGroup
}

func (f *forwarded) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	accepted := testwait.Start(func() error {
		near, err := l.Accept()
		if err != nil {
			return err
		}
		far, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		f.finished.Go(func() { _, _ = io.Copy(far, near); far.Close() })
		f.finished.Go(func() { _, _ = io.Copy(near, stoppable{far, f}); near.Close() })
		return nil
	})
	c, err := f.Transport.Dial(ctx, l.Addr().String())
	if err == nil {
		err = testwait.Finish(f.t, accepted)
	}
	return c, err
}

// stoppable reads what a listener sends, as far as it is forwarded.
type stoppable struct {
	net.Conn
	of *forwarded
}

func (s stoppable) Read(p []byte) (int, error) {
	f := s.of
	f.mu.Lock()
	wait := f.stopped && f.left == 0
	if f.stopped {
		p = p[:min(len(p), f.left)]
		f.left -= len(p)
	}
	resumed := f.resumed
	f.mu.Unlock()
	if wait {
		<-resumed
		return 0, nil
	}
	return s.Conn.Read(p)
}

// stopAfter makes f forward only n more bytes from listeners, until resume is called.
func (f *forwarded) stopAfter(n int) (resume func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped, f.left, f.resumed = true, n, make(chan struct{})
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.stopped = false
		close(f.resumed)
	})
}

// The limit of a call ends the wait for a reply of which only a part arrives, also if the pipe sends it
// inline although it is large, because it answers the request.
func TestInlineAnswerStops(t *testing.T) {
	const elements = 200_000
	f := &forwarded{Transport: uv.New(), t: t}
	t.Cleanup(f.finished.Wait) // after the agents are closed
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Listen, c.Insecure = []string{"uv://127.0.0.1:0"}, true
		c.Funcs = agent.Funcs{manyOnes.Serve(func(_ context.Context, n int) (*tensor.Tensor, error) { return tensor.Zeros(tensor.F32, n) })}
		c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
			o.Transports = []pipe.TransportEntry{{Name: "uv", Transport: f}}
			o.Channels = []pipe.ChannelEntry{{Name: basic.Name, Factory: basic.New()}}
			return pipe.New(o)
		}
	})
	for range 3 { // the first of these opens the bulk connection
		_, err := manyOnes.Call(t.Context(), group[0], "worker1", 2<<20)
		require.NoError(t, err)
	}
	_, err := manyOnes.Call(t.Context(), group[0], "worker1", elements)
	require.NoError(t, err)
	resume := f.stopAfter(100_000)
	defer resume()
	called := testwait.Start(func() error {
		_, err := manyOnes.Call(t.Context(), group[0], "worker1", elements, agent.WithTimeout(100*time.Millisecond))
		return err
	})
	err = testwait.Finish(t, called)
	resume()
	var limit *agent.TimeoutError
	require.ErrorAs(t, err, &limit)
	x, err := manyOnes.Call(t.Context(), group[0], "worker1", elements)
	require.NoError(t, err)
	require.Equal(t, elements, x.Len())
}
