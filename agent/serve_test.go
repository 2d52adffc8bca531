package agent_test

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

var (
	exits  = agent.NewFunc[int, int]("test.exits")
	counts = agent.NewFunc[int, int]("test.counts")
)

func exit(context.Context, int) (int, error) {
	runtime.Goexit()
	return 0, nil
}

// If a handler ends its goroutine, the call fails with ErrPanic, the slot is free again, and
// further requests are read.
func TestGoexitOfHandler(t *testing.T) {
	for name, opts := range map[string][]agent.ServeOption{"plain": nil, "short": {agent.WithShort()}} {
		t.Run(name, func(t *testing.T) {
			group := startGroup(t, 2, func(_ int, c *agent.Config) {
				c.MaxHandlers = 1
				c.Funcs = agent.Funcs{exits.Serve(exit, opts...), add.Serve(addTensors)}
			})
			for range 3 {
				_, err := exits.Call(t.Context(), group[0], "worker1", 1)
				require.ErrorIs(t, err, agent.ErrPanic)
				require.ErrorContains(t, err, "Goexit")
				_, err = add.Call(t.Context(), group[0], "worker1", pair{filled(t, 1, 2), filled(t, 1, 2)})
				require.NoError(t, err)
			}
		})
	}
}

// If the function that an interceptor has given to Hold panics, the call fails with ErrPanic.
func TestPanicOfHold(t *testing.T) {
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Funcs = agent.Funcs{counts.Serve(func(context.Context, int) (int, error) { return 1, nil })}
		c.Interceptors = []agent.Interceptor{{Decoded: func(_ context.Context, m *agent.Message) error {
			if m.Kind == agent.KindRequest {
				m.Hold(func(context.Context) error { panic("not today") })
			}
			return nil
		}}}
	})
	_, err := counts.Call(t.Context(), group[0], "worker1", 1)
	require.ErrorIs(t, err, agent.ErrPanic)
	require.ErrorContains(t, err, "not today")
}

// Join fails with ErrConfig for a function with both WithOnce and WithBorrowedArgs: a kept reply
// must not change, and borrowed memory is reused.
func TestOnceAndBorrows(t *testing.T) {
	_, err := agent.Join(t.Context(), agent.Config{
		Name: "a", WorldSize: 1, Store: store.NewMemory(store.Limits{}),
		Funcs: agent.Funcs{firstHalf.Serve(func(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) { return x, nil }, agent.WithOnce(), agent.WithBorrowedArgs())},
	})
	require.ErrorIs(t, err, agent.ErrConfig)
}

// The handler of a request that was cancelled while it waited for a slot does not run.
func TestCancelledWhileQueued(t *testing.T) {
	g := newGate()
	var ran int
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.MaxHandlers = 1
		c.Funcs = agent.Funcs{blocked.Serve(g.serve), counts.Serve(func(context.Context, int) (int, error) {
			ran++
			return ran, nil
		}), add.Serve(addTensors, agent.WithShort())}
	})
	first := blocked.Go(t.Context(), group[0], "worker1", nil)
	<-g.begun
	ctx, cancel := context.WithCancel(t.Context())
	second := counts.Go(ctx, group[0], "worker1", 1)
	cancel()
	_, err := second.Wait(t.Context())
	require.ErrorIs(t, err, context.Canceled)
	// This request comes after the cancellation, and needs no slot.
	_, err = add.Call(t.Context(), group[0], "worker1", pair{filled(t, 1, 2), filled(t, 1, 2)})
	require.NoError(t, err)
	third := counts.Go(t.Context(), group[0], "worker1", 1)
	close(g.proceed)
	_, err = first.Wait(t.Context())
	require.NoError(t, err)
	n, err := third.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

var firstHalf = agent.NewFunc[*tensor.Tensor, *tensor.Tensor]("test.firstHalf")

// The memory of borrowed arguments is reused for later requests, but not before the reply, which
// may be a view of it, was sent.
func TestBorrowedMemoryIsReused(t *testing.T) {
	// The garbage collector would release the memory as well.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	pool := tensor.NewPool(tensor.PoolOptions{})
	group := startGroup(t, 2, func(rank int, c *agent.Config) {
		if rank == 1 {
			c.Allocator = pool
		}
		c.Funcs = agent.Funcs{firstHalf.Serve(func(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
			return x.Slice(0, 0, x.Shape()[0]/2, 1)
		}, agent.WithBorrowedArgs())}
	})
	const n = 1 << 20
	for i := range 20 {
		half, err := firstHalf.Call(t.Context(), group[0], "worker1", filled(t, float32(i), n))
		require.NoError(t, err)
		same, err := tensor.Equal(half, filled(t, float32(i), n/2))
		require.NoError(t, err)
		require.True(t, same, "result %d", i)
	}
	stats := pool.Stats()
	require.Less(t, stats.Mapped, 10, "the other memory was reused: %+v", stats)
	require.Zero(t, stats.Collections)
}
