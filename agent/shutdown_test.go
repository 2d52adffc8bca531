package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

func shutdown(t *testing.T) func(*agent.Agent) error {
	return func(a *agent.Agent) error { return a.Shutdown(t.Context()) }
}

// Shutdown waits for calls that handlers have begun and not waited for, and for the calls that
// these cause. Here three workers contribute to the first round before any call is made: the sum of
// that round has no active call, and no worker may leave before a second round has the same sum.
func TestShutdownWaitsForCallsOfHandlers(t *testing.T) {
	hop := agent.NewFunc[int, int]("test.hop")
	var begun [4]chan *agent.Future[int] // calls begun by the handler of each rank
	var release chan struct{}
	configure := func(rank int, c *agent.Config) {
		if rank == 0 {
			release = make(chan struct{})
		}
		begun[rank] = make(chan *agent.Future[int], 1)
		c.Funcs = agent.Funcs{hop.Serve(func(ctx context.Context, n int) (int, error) {
			if rank == 3 {
				<-release
				return n, nil
			}
			begun[rank] <- hop.Go(context.WithoutCancel(ctx), agent.FromContext(ctx), agent.Rank(rank+1), n+1)
			return 0, nil
		})}
	}
	simulate(t, 4, configure, func(t *testing.T, group []*agent.Agent) {
		down := make([]<-chan error, 4)
		for _, rank := range []int{3, 2, 1} { // before they have any call
			down[rank] = testwait.Start(func() error { return group[rank].Shutdown(t.Context()) })
		}
		pass(time.Second) // their contributions are made
		_, err := hop.Call(t.Context(), group[0], "worker1", 0)
		require.NoError(t, err)
		down[0] = testwait.Start(func() error { return group[0].Shutdown(t.Context()) })
		pass(time.Second)
		for _, ch := range down {
			require.Empty(t, ch, "the call to the last worker is under way")
		}
		testwait.Finish(t, begun[1])
		toTheLast := testwait.Finish(t, begun[2])
		close(release)
		n, err := toTheLast.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, n)
		for _, ch := range down {
			require.NoError(t, testwait.Finish(t, ch))
		}
	})
}

func TestShutdownAfterDeath(t *testing.T) {
	for gone := range 3 {
		t.Run(fmt.Sprint(gone), func(t *testing.T) {
			group := startGroup(t, 3, serveAdd())
			require.NoError(t, group[gone].Close())
			rest := append(append([]*agent.Agent(nil), group[:gone]...), group[gone+1:]...)
			for i, err := range each(t, rest, shutdown(t)) {
				var e *agent.Error
				require.ErrorIs(t, err, agent.ErrUnreachable)
				require.IsType(t, e, err, "exactly one *Error")
				require.ErrorAs(t, err, &e)
				require.Equal(t, "shutdown", e.Op)
				if i > 0 && e.Worker == "worker0" {
					continue // that worker had closed before this one called it
				}
				require.Equal(t, fmt.Sprintf("worker%d", gone), e.Worker)
			}
			for _, a := range rest {
				isClosed(t, a)
			}
		})
	}
}

// isClosed requires that calls, Barrier and Shutdown of the closed agent a fail with ErrClosed, and
// that Close returns nil.
func isClosed(t *testing.T, a *agent.Agent) {
	t.Helper()
	x := filled(t, 1, 1)
	for _, to := range []agent.To{"worker0", "worker1", a.Self().To()} {
		_, err := add.Call(t.Context(), a, to, pair{x, x})
		require.ErrorIs(t, err, agent.ErrClosed)
		_, err = add.Go(t.Context(), a, to, pair{x, x}).Wait(t.Context())
		require.ErrorIs(t, err, agent.ErrClosed)
	}
	require.ErrorIs(t, a.Barrier(t.Context()), agent.ErrClosed)
	require.ErrorIs(t, a.Shutdown(t.Context()), agent.ErrClosed)
	require.NoError(t, a.Close())
}

func TestShutdownDeadline(t *testing.T) {
	park := agent.NewFunc[agent.None, agent.None]("test.park")
	configure := func(_ int, c *agent.Config) {
		c.Funcs = agent.Funcs{park.Serve(func(ctx context.Context, _ agent.None) (agent.None, error) {
			<-ctx.Done()
			return agent.None{}, ctx.Err()
		})}
	}
	simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
		call := park.Go(t.Context(), group[0], "worker1", agent.None{})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		errs := each(t, group, func(a *agent.Agent) error { return a.Shutdown(ctx) })
		for _, err := range errs {
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		// The first context to end; that fails the call of the other one.
		require.ErrorContains(t, errors.Join(errs...), "calls and handlers pending: 1: ")
		_, err := call.Wait(t.Context())
		require.Error(t, err) // of the handler, whose context has ended, or of this agent
		isClosed(t, group[0])
	})
}

// Shutdown with the context of a handler fails and does not close the agent.
func TestShutdownByHandler(t *testing.T) {
	stop := agent.NewFunc[agent.None, agent.None]("test.stop")
	for name, opts := range map[string][]agent.ServeOption{"short": {agent.WithShort()}, "plain": nil} {
		t.Run(name, func(t *testing.T) {
			group := startGroup(t, 2, func(_ int, c *agent.Config) {
				c.Funcs = agent.Funcs{stop.Serve(func(ctx context.Context, _ agent.None) (agent.None, error) {
					return agent.None{}, agent.FromContext(ctx).Shutdown(ctx)
				}, opts...)}
			})
			_, err := stop.Call(t.Context(), group[0], "worker1", agent.None{})
			require.ErrorContains(t, err, "a handler cannot wait until no handlers run")
			requireAll(t, group, shutdown(t))
		})
	}
}

// After all workers have shut down, a group with the same names can be formed again on the same
// store.
func TestJoinAgain(t *testing.T) {
	s := store.NewMemory(store.Limits{})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	for range 3 {
		group := startGroup(t, 3, func(rank int, c *agent.Config) { c.Store = s; serveAdd()(rank, c) })
		x := filled(t, 1, 2)
		for _, a := range group {
			_, err := add.Call(t.Context(), a, agent.Rank((a.Self().Rank+1)%3), pair{x, x})
			require.NoError(t, err)
		}
		requireAll(t, group, shutdown(t))
		for _, a := range group {
			isClosed(t, a)
		}
	}
}

// Shutdown succeeds at all workers although the first one serves the store: it closes the store
// only after all others have left.
func TestShutdownWithEmbeddedStore(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	url := "tcp://" + freeport.Addr(t)
	group := make([]*agent.Agent, 3)
	joining := make([]<-chan error, 3)
	for rank := range group {
		joining[rank] = testwait.Start(func() (err error) {
			group[rank], err = agent.Join(ctx, agent.Config{
				Name: fmt.Sprintf("worker%d", rank), Rank: rank, WorldSize: 3, Rendezvous: url, Logger: slog.New(slog.DiscardHandler),
			})
			return err
		})
	}
	for _, ch := range joining {
		require.NoError(t, testwait.Finish(t, ch))
	}
	requireAll(t, group, shutdown(t))
}

// Shutdown of one worker in a dynamic group waits until its calls and handlers have ended. The
// others can still call each other.
func TestShutdownInDynamicGroup(t *testing.T) {
	slow := agent.NewFunc[int, int]("test.slow")
	begun, release := make(chan struct{}, 4), make(chan struct{})
	group := startGroup(t, 3, func(_ int, c *agent.Config) {
		c.WorldSize = 0
		c.Funcs = agent.Funcs{slow.Serve(func(_ context.Context, n int) (int, error) {
			begun <- struct{}{}
			<-release
			return n, nil
		})}
	})
	calls := []*agent.Future[int]{
		slow.Go(t.Context(), group[1], "worker0", 1),
		slow.Go(t.Context(), group[0], "worker1", 2),
	}
	testwait.Finish(t, begun)
	testwait.Finish(t, begun)
	leaving := testwait.Start(func() error { return group[1].Shutdown(t.Context()) })
	close(release)
	for i, f := range calls {
		n, err := f.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, i+1, n)
	}
	require.NoError(t, testwait.Finish(t, leaving))
	n, err := slow.Call(t.Context(), group[0], "worker2", 7)
	require.NoError(t, err)
	require.Equal(t, 7, n)
	_, err = slow.Call(t.Context(), group[0], "worker1", 7)
	require.Error(t, err)
	requireAll(t, []*agent.Agent{group[0], group[2]}, shutdown(t))
}
