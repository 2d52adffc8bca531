package agent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

var errOwnDeadline = errors.New("own cause of a deadline")

// blocking are operations of worker 0 of three that end with their context only. A call of
// textBlocks blocks, and no other worker takes part in collective operations.
var blocking = map[string]func(ctx context.Context, a *agent.Agent) error{
	"call": func(ctx context.Context, a *agent.Agent) error {
		_, err := textBlocks.Call(ctx, a, "worker1", agent.None{}, agent.WithTimeout(0))
		return err
	},
	"future": func(ctx context.Context, a *agent.Agent) error {
		_, err := textBlocks.Go(ctx, a, "worker1", agent.None{}, agent.WithTimeout(0)).Wait(context.Background())
		return err
	},
	"wait": func(ctx context.Context, a *agent.Agent) error {
		f := textBlocks.Go(context.Background(), a, "worker1", agent.None{}, agent.WithTimeout(0))
		defer f.Cancel(nil)
		_, err := f.Wait(ctx)
		return err
	},
	"wait for all": func(ctx context.Context, a *agent.Agent) error {
		f := textBlocks.Go(context.Background(), a, "worker1", agent.None{}, agent.WithTimeout(0))
		defer f.Cancel(nil)
		_, err := future.WaitAll(ctx, f)
		return err
	},
	"call with retries": func(ctx context.Context, a *agent.Agent) error {
		_, err := textBlocks.Call(ctx, a, "worker1", agent.None{}, agent.WithTimeout(0), agent.WithRetry(agent.Retry{}))
		return err
	},
	"stream": func(ctx context.Context, a *agent.Agent) error {
		_, err := collect(textEndless.Call(ctx, a, "worker1", 1, agent.WithTimeout(0)))
		return err
	},
	"barrier": func(ctx context.Context, a *agent.Agent) error { return a.Barrier(ctx) },
	"all-gather, not led here": func(ctx context.Context, a *agent.Agent) error {
		_, err := agent.AllGather(ctx, a, 1, "worker1", "worker0")
		return err
	},
}

// textEndless is a stream whose handler sends nothing until its context ends.
var textEndless = agent.NewServerStream[int, int]("test.endless")

func serveEndless(rank int, c *agent.Config) {
	listen := c.Listen
	serveTexts(rank, c)
	c.Listen = listen
	c.Funcs = append(c.Funcs, textEndless.Serve(func(ctx context.Context, _ int, _ *agent.SendStream[int]) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}))
}

// When the deadline of its context passes, each operation of an agent fails with an error that
// matches ErrTimeout and context.DeadlineExceeded; when its context is cancelled, with an error that
// matches neither.
func TestDeadlineOfContext(t *testing.T) {
	const wait = time.Second
	requireTimeout := func(t *testing.T, err error) {
		require.ErrorIs(t, err, agent.ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	try := func(t *testing.T, op func(context.Context) error) {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		requireTimeout(t, op(ctx))
		requireTimeout(t, op(ctx)) // it has passed

		own, cancelOwn := context.WithTimeoutCause(t.Context(), wait, errOwnDeadline)
		defer cancelOwn()
		requireTimeout(t, op(own))

		stopped, stop := context.WithCancel(t.Context())
		defer time.AfterFunc(wait, stop).Stop()
		err := op(stopped)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, agent.ErrTimeout)
	}
	for name, op := range blocking {
		t.Run(name, func(t *testing.T) {
			simulate(t, 3, serveEndless, func(t *testing.T, group []*agent.Agent) {
				try(t, func(ctx context.Context) error { return op(ctx, group[0]) })
			})
		})
	}
	t.Run("between retries", func(t *testing.T) {
		simulate(t, 2, serveEndless, func(t *testing.T, group []*agent.Agent) {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			_, err := textBlocks.Call(ctx, group[0], "worker1", agent.None{},
				agent.WithTimeout(time.Millisecond), agent.WithRetry(agent.Retry{Max: 1, Delay: time.Hour}))
			requireTimeout(t, err)
			require.EqualError(t, err, "agent: call test.block on worker1: "+
				"context deadline exceeded, while waiting to retry after: no reply within the call's limit of 1ms")
		})
	})
	t.Run("join", func(t *testing.T) {
		simulate(t, 1, nil, func(t *testing.T, _ []*agent.Agent) {
			s := memoryStore(t)
			try(t, func(ctx context.Context) error {
				c := member(s, 1, 2)
				inMemory(&c, mem.NewNetwork())
				_, err := agent.Join(ctx, c)
				return err
			})
		})
	})
	t.Run("shutdown", func(t *testing.T) {
		simulate(t, 2, serveEndless, func(t *testing.T, group []*agent.Agent) {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			requireTimeout(t, group[0].Shutdown(ctx)) // the other worker does not shut down
		})
	})
}

// The error of a handler about a deadline of its own is no timeout of the call.
func TestDeadlineOfHandlerItself(t *testing.T) {
	waits := agent.NewFunc[agent.None, agent.None]("test.waits")
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Funcs = agent.Funcs{waits.Serve(func(context.Context, agent.None) (agent.None, error) {
			return agent.None{}, context.DeadlineExceeded
		})}
	})
	_, err := waits.Call(t.Context(), group[0], "worker1", agent.None{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, agent.ErrTimeout)
}
