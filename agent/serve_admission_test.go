package agent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

var (
	blocked = agent.NewFunc[*tensor.Tensor, agent.None]("test.blocked")
	fanOut  = agent.NewFunc[int, int]("test.fanOut")
)

// gate blocks the handlers of blocked: each sends to begun when it starts, and returns once proceed
// is closed.
type gate struct{ begun, proceed chan struct{} }

func newGate() gate { return gate{begun: make(chan struct{}, 1000), proceed: make(chan struct{})} }

func (g gate) serve(ctx context.Context, _ *tensor.Tensor) (agent.None, error) {
	g.begun <- struct{}{}
	select {
	case <-g.proceed:
		return agent.None{}, nil
	case <-ctx.Done():
		return agent.None{}, context.Cause(ctx)
	}
}

// A caller sends no more requests at once than Limits.CallBytes of the called worker admits; the
// others wait at the caller and succeed later.
func TestCallBytesOfTheCallee(t *testing.T) {
	g := newGate()
	group := startGroup(t, 2, func(rank int, c *agent.Config) {
		c.Funcs = agent.Funcs{blocked.Serve(g.serve)}
		if rank == 1 {
			c.Limits.CallBytes = 2000 // some three calls
		}
	})
	results := make(chan error)
	const calls = 20
	for range calls {
		go func() {
			_, err := blocked.Call(t.Context(), group[0], "worker1", nil)
			results <- err
		}()
	}
	for range 2 {
		<-g.begun
	}
	require.LessOrEqual(t, len(g.begun), 2, "the others wait at the caller")
	close(g.proceed)
	for range calls {
		require.NoError(t, <-results)
	}
}

// Calls that a handler makes exceed Limits.CallBytes without waiting. Beyond a bound the called
// worker rejects them with ErrOverloaded.
func TestNestedCallsAreBounded(t *testing.T) {
	g := newGate()
	group := startGroup(t, 2, func(rank int, c *agent.Config) {
		c.Limits.CallBytes = 4000
		c.Funcs = agent.Funcs{blocked.Serve(g.serve), fanOut.Serve(func(ctx context.Context, n int) (int, error) {
			var last *agent.Future[agent.None]
			for range n {
				last = blocked.Go(ctx, agent.FromContext(ctx), "worker1", nil)
			}
			_, err := last.Wait(ctx) // none of the others ends before
			for range 4000/600 + 1 { // more than there is room for
				<-g.begun
			}
			close(g.proceed)
			return n, err
		})}
	})
	_, err := fanOut.Call(t.Context(), group[0], "worker0", 100)
	require.ErrorIs(t, err, agent.ErrOverloaded)
}

// A large call waits until other large calls have ended and free their memory at the called worker.
// Small calls do not wait, and a waiting call can be cancelled.
func TestLargeCallsWaitForMemory(t *testing.T) {
	g := newGate()
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Limits.LargeBytes = 4 << 20
		c.Funcs = agent.Funcs{blocked.Serve(g.serve), add.Serve(addTensors)}
	})
	large := filled(t, 1, 1<<20)
	first := blocked.Go(t.Context(), group[0], "worker1", large)
	<-g.begun
	second := blocked.Go(t.Context(), group[0], "worker1", large)
	// Small calls do not wait for it.
	_, err := add.Call(t.Context(), group[0], "worker1", pair{filled(t, 1, 2), filled(t, 2, 2)})
	require.NoError(t, err)
	require.Empty(t, g.begun)
	ctx, cancel := context.WithCancelCause(t.Context())
	third := blocked.Go(ctx, group[0], "worker1", large)
	why := errors.New("not wanted any more")
	cancel(why)
	_, err = third.Wait(t.Context())
	require.ErrorIs(t, err, why)
	close(g.proceed)
	for _, f := range []*agent.Future[agent.None]{first, second} {
		_, err := f.Wait(t.Context())
		require.NoError(t, err)
	}
}

// Large calls that a handler makes exceed Limits.LargeBytes without waiting. Beyond a bound they
// fail with ErrOverloaded, until the memory of others is free again.
func TestLargeCallsOfHandlers(t *testing.T) {
	const limit = 2 << 20 // the bound is eight times that
	part := filled(t, 1, 2*limit/4)
	g := newGate()
	type outcome struct{ held, overload, next error }
	outcomes := make(chan outcome, 1)
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Limits.LargeBytes = limit
		c.Funcs = agent.Funcs{blocked.Serve(g.serve), fanOut.Serve(func(ctx context.Context, n int) (int, error) {
			a := agent.FromContext(ctx)
			var calls []*agent.Future[agent.None]
			for range n {
				calls = append(calls, blocked.Go(ctx, a, "worker1", part))
				<-g.begun
			}
			var o outcome
			_, o.overload = blocked.Call(ctx, a, "worker1", part, agent.WithTimeout(10*time.Second))
			close(g.proceed)
			_, o.held = future.WaitAll(ctx, calls...)
			for range 2 * n { // their memory is free again
				_, err := blocked.Call(ctx, a, "worker1", part)
				o.next = errors.Join(o.next, err)
			}
			outcomes <- o
			return n, nil
		})}
	})
	_, err := fanOut.Call(t.Context(), group[0], "worker0", 4)
	require.NoError(t, err)
	o := <-outcomes
	require.NoError(t, o.held)
	require.ErrorIs(t, o.overload, agent.ErrOverloaded)
	require.NoError(t, o.next)
}

// A large call of a handler that alone exceeds the bound for such calls is admitted if it is the
// only one.
func TestVeryLargeCallOfHandler(t *testing.T) {
	g := newGate()
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Limits.LargeBytes = 1 << 19
		c.Funcs = agent.Funcs{blocked.Serve(g.serve), fanOut.Serve(func(ctx context.Context, n int) (int, error) {
			x, err := tensor.Zeros(tensor.U8, n)
			if err == nil {
				_, err = blocked.Call(ctx, agent.FromContext(ctx), "worker1", x)
			}
			return n, err
		})}
	})
	close(g.proceed)
	_, err := fanOut.Call(t.Context(), group[0], "worker0", 5<<20)
	require.NoError(t, err)
}
