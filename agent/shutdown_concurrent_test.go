package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// A Shutdown that is called during another one waits for that and returns nil as well. A later
// Shutdown returns ErrClosed.
func TestConcurrentShutdowns(t *testing.T) {
	simulate(t, 2, nil, func(t *testing.T, group []*agent.Agent) {
		var down []<-chan error
		for range 3 {
			down = append(down, testwait.Start(func() error { return group[0].Shutdown(t.Context()) }))
		}
		pass(time.Second)
		down = append(down, testwait.Start(func() error { return group[1].Shutdown(t.Context()) }))
		for _, ch := range down {
			require.NoError(t, testwait.Finish(t, ch))
		}
		for _, a := range group {
			require.ErrorIs(t, a.Shutdown(t.Context()), agent.ErrClosed)
		}
	})
}

// pass blocks for d, which in a bubble of testing/synctest advances the time of the bubble.
func pass(d time.Duration) { <-time.NewTimer(d).C }

// If a Shutdown fails, a concurrent Shutdown returns the same error.
func TestConcurrentShutdownsFail(t *testing.T) {
	h := &hanging{}
	simulate(t, 2, h.serve, func(t *testing.T, group []*agent.Agent) {
		hang.Go(t.Context(), group[0], "worker1", agent.None{}, agent.WithTimeout(0))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		first := testwait.Start(func() error { return group[0].Shutdown(ctx) })
		synctest.Wait()
		second := testwait.Start(func() error { return group[0].Shutdown(t.Context()) })
		err := <-first
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, err, <-second)
	})
}

// When the context of a second, concurrent Shutdown ends, the agent is closed and both return at
// that time: the second with the error of its context, the first with ErrClosed.
func TestShutdownContextOfSecondCaller(t *testing.T) {
	h := &hanging{}
	simulate(t, 2, h.serve, func(t *testing.T, group []*agent.Agent) {
		hang.Go(t.Context(), group[0], "worker1", agent.None{}, agent.WithTimeout(0))
		first := testwait.Start(func() error { return group[0].Shutdown(t.Context()) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		var e *agent.Error
		err := group[0].Shutdown(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.IsType(t, e, err, "exactly one *Error")
		require.ErrorAs(t, err, &e)
		require.Equal(t, "shutdown", e.Op)
		require.Equal(t, time.Second, time.Since(begun))
		require.ErrorIs(t, <-first, agent.ErrClosed)
		isClosed(t, group[0])
	})
}

// Shutdown waits for callbacks of call futures and for the calls that they make, also for callbacks
// of derived futures and those added after the call has ended.
func TestShutdownWaitsForCallbacks(t *testing.T) {
	for name, then := range map[string]func(f *agent.Future[int], fn func()){
		"callback": func(f *agent.Future[int], fn func()) { _ = f.OnDone(func(*agent.Future[int]) { fn() }) },
		"late callback": func(f *agent.Future[int], fn func()) {
			synctest.Wait()
			_ = f.OnDone(func(*agent.Future[int]) { fn() })
		},
		"second callback": func(f *agent.Future[int], fn func()) {
			same := func(f *agent.Future[int]) (int, error) { return f.Result() }
			future.Then(future.Then(f, same), func(*agent.Future[int]) (int, error) { fn(); return 0, nil })
		},
		"cancelled": func(f *agent.Future[int], fn func()) {
			_ = f.OnDone(func(*agent.Future[int]) { fn() })
			f.Cancel(nil)
		},
	} {
		for kind, opts := range map[string][]agent.CallOption{"": nil, ", with retries": {agent.WithRetry(agent.Retry{})}} {
			t.Run(name+kind, func(t *testing.T) {
				configure := func(_ int, c *agent.Config) {
					c.Funcs = agent.Funcs{echo.Serve(func(_ context.Context, n int) (int, error) { return n, nil })}
				}
				simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
					goOn, called := make(chan struct{}), make(chan error, 1)
					then(echo.Go(t.Context(), group[0], "worker1", 1, opts...), func() {
						<-goOn
						_, err := echo.Call(t.Context(), group[0], "worker1", 2)
						called <- err
					})
					var down []<-chan error
					for _, a := range group {
						down = append(down, testwait.Start(func() error { return a.Shutdown(t.Context()) }))
					}
					pass(time.Second)
					for _, ch := range down {
						require.Empty(t, ch)
					}
					close(goOn)
					require.NoError(t, <-called)
					for _, ch := range down {
						require.NoError(t, <-ch)
					}
				})
			})
		}
	}
}

// WaitAll and WaitAllOrFail return the error of a call that fails before its request is sent.
func TestWaitAllOfUnsentCalls(t *testing.T) {
	group := startGroup(t, 1, nil)
	for name, begin := range map[string]func(ctx context.Context){
		"by name":  func(ctx context.Context) { group[0].InvokeAsync(ctx, "worker0", "f", agent.Named{}, agent.Named{}) },
		"operator": func(ctx context.Context) { group[0].OpAsync(ctx, "worker0", "f", agent.Named{}, agent.Named{}) },
		"function": func(ctx context.Context) { echo.Go(ctx, group[0], "worker0", 1, agent.WithTimeout(-1)) },
	} {
		t.Run(name, func(t *testing.T) {
			for wait, waitAll := range map[string]func(context.Context, func(context.Context) error) error{
				"WaitAll": agent.WaitAll, "WaitAllOrFail": agent.WaitAllOrFail,
			} {
				err := waitAll(t.Context(), func(ctx context.Context) error { begin(ctx); return nil })
				var e *agent.Error
				require.ErrorAs(t, err, &e, wait)
				require.Equal(t, "call", e.Op)
			}
		})
	}
}
