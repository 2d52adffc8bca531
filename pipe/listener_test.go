package pipe_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

func TestParityOfClosedContext(t *testing.T) {
	for _, name := range []string{"mem", "uv", "shm"} {
		parity.Case(t, "tensorpipe/transport.ListenerCreateAfterClosingContextAndThenGetAddress@"+name, func(t *testing.T) {
			listenAfterClosingContext(t, pathNamed(name+"+basic+native"))
		})
	}
}

// listenAfterClosingContext requires that Listen and Dial of a closed context return ErrClosed and
// nil, for a free address and one in use, and leave no connection open.
func listenAfterClosingContext(t *testing.T, path path) {
	leakcheck.Check(t)
	other, err := newContext(t, path).Listen(testContext(t), path.url)
	require.NoError(t, err)
	var opened atomic.Int64
	c := newContext(t, path, func(o *pipe.Options) {
		o.Transports[0].Transport = counted{o.Transports[0].Transport, &opened}
	})
	require.NoError(t, c.Close())
	for _, url := range []string{path.url, other.URLs()[0]} {
		l, err := c.Listen(testContext(t), url)
		require.ErrorIs(t, err, pipe.ErrClosed)
		require.Nil(t, l)
		p, err := c.Dial(testContext(t), url)
		require.ErrorIs(t, err, pipe.ErrClosed)
		require.Nil(t, p)
	}
	require.Zero(t, opened.Load())
}

// counted is a transport that counts calls of Listen and Dial.
type counted struct {
	transport.Transport
	calls *atomic.Int64
}

func (c counted) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	c.calls.Add(1)
	return c.Transport.Listen(ctx, addr)
}

func (c counted) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c.calls.Add(1)
	return c.Transport.Dial(ctx, addr)
}

// stalled is a transport whose Listen blocks until its context ends.
type stalled struct {
	transport.Transport
	ended *atomic.Bool
}

func (s stalled) Listen(ctx context.Context, _ string) (transport.Listener, error) {
	<-ctx.Done()
	s.ended.Store(true)
	return nil, ctx.Err()
}

// TestCloseDuringListen checks that Close of a context makes a blocked call of Listen return
// ErrClosed, and returns after the transport's Listen has ended.
func TestCloseDuringListen(t *testing.T) {
	var ended atomic.Bool
	c := newContext(t, memPath(), func(o *pipe.Options) {
		o.Transports[0].Transport = stalled{o.Transports[0].Transport, &ended}
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	listening := testwait.StartBlocked(t, "Listen", func() error {
		_, err := c.Listen(ctx, memPath().url)
		return err
	})
	require.NoError(t, c.Close())
	require.True(t, ended.Load())
	require.ErrorIs(t, testwait.Finish(t, listening), pipe.ErrClosed)
}
