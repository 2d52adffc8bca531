package agent_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// A function that has been quick runs on the goroutine that reads messages. In these tests it does
// something else then.

var quick = agent.NewFunc[int, int]("test.quick")

// startQuick starts a group, over each transport, whose worker1 serves quick with f. It calls quick with 0,
// for which f must return at once, until that is known to be quick, and then test.
func startQuick(t *testing.T, f func(ctx context.Context, n int) (int, error), test func(t *testing.T, a *agent.Agent)) {
	for name, listen := range map[string][]string{"any": nil, "uv": {"uv://127.0.0.1:0"}} {
		t.Run(name, func(t *testing.T) {
			group := startGroup(t, 2, func(_ int, c *agent.Config) {
				c.Funcs = agent.Funcs{quick.Serve(f), echo.Serve(func(_ context.Context, n int) (int, error) { return n, nil })}
				c.Listen = listen
			})
			for range 3 * 8 {
				_, err := quick.Call(t.Context(), group[0], "worker1", 0)
				require.NoError(t, err)
			}
			test(t, group[0])
		})
	}
}

// While it blocks, other calls of the same worker are served, and it can be cancelled.
func TestQuickFunctionThatBlocks(t *testing.T) {
	f := func(ctx context.Context, n int) (int, error) {
		if n > 0 {
			<-ctx.Done()
		}
		return n, nil
	}
	startQuick(t, f, func(t *testing.T, a *agent.Agent) {
		for range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			blocked := quick.Go(ctx, a, "worker1", 1)
			for n := range 4 {
				got, err := echo.Call(t.Context(), a, "worker1", n)
				require.NoError(t, err)
				require.Equal(t, n, got)
			}
			require.False(t, blocked.IsDone())
			cancel()
			_, err := blocked.Wait(t.Context())
			require.ErrorIs(t, err, context.Canceled)
		}
	})
}

// Calls that come together run at once.
func TestQuickFunctionsThatMeet(t *testing.T) {
	const calls = 16
	var meeting atomic.Pointer[sync.WaitGroup]
	f := func(_ context.Context, n int) (int, error) {
		if n > 0 {
			meeting.Load().Done()
			meeting.Load().Wait()
		}
		return n, nil
	}
	startQuick(t, f, func(t *testing.T, a *agent.Agent) {
		all := &sync.WaitGroup{}
		all.Add(calls)
		meeting.Store(all)
		var futures []*agent.Future[int]
		for range calls {
			futures = append(futures, quick.Go(t.Context(), a, "worker1", 1))
		}
		for _, f := range futures {
			_, err := f.Wait(t.Context())
			require.NoError(t, err)
		}
	})
}

// It may call back the worker that has called it, on the same connection.
func TestQuickFunctionThatCalls(t *testing.T) {
	f := func(ctx context.Context, n int) (int, error) {
		if n == 0 {
			return 0, nil
		}
		caller, _ := agent.Caller(ctx)
		return echo.Call(ctx, agent.FromContext(ctx), caller.To(), n)
	}
	startQuick(t, f, func(t *testing.T, a *agent.Agent) {
		const callers = 4
		outcomes := make(chan error, callers)
		for range callers {
			go func() {
				var err error
				for n := 1; n <= 50 && err == nil; n++ {
					var got int
					if got, err = quick.Call(t.Context(), a, "worker1", n); err == nil {
						err = want(n, got)
					}
				}
				outcomes <- err
			}()
		}
		for range callers {
			require.NoError(t, testwait.Finish(t, outcomes))
		}
	})
}

// It may end its goroutine, or panic.
func TestQuickFunctionThatEnds(t *testing.T) {
	f := func(_ context.Context, n int) (int, error) {
		switch n {
		case 1:
			runtime.Goexit()
		case 2:
			panic("test")
		}
		return n, nil
	}
	startQuick(t, f, func(t *testing.T, a *agent.Agent) {
		for n := range 6 {
			_, err := quick.Call(t.Context(), a, "worker1", n%3)
			if n%3 == 0 {
				require.NoError(t, err)
			} else {
				require.ErrorAs(t, err, new(*agent.PanicError))
			}
		}
	})
}
