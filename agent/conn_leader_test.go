package agent_test

import (
	"context"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// A short function may take part in a barrier or an all-gather whose messages come on the
// connection on which the function was called.
func TestShortFunctionsInGroupOperations(t *testing.T) {
	for name, meet := range map[string]func(ctx context.Context, a *agent.Agent) error{
		"barrier": func(ctx context.Context, a *agent.Agent) error { return a.Barrier(ctx) },
		"all-gather": func(ctx context.Context, a *agent.Agent) error {
			all, err := agent.AllGather(ctx, a, a.Self().Rank)
			if err == nil {
				err = want(1, all["worker1"])
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := agent.NewFunc[agent.None, agent.None]("test.meet")
			configure := func(_ int, c *agent.Config) {
				c.Funcs = agent.Funcs{f.Serve(func(ctx context.Context, _ agent.None) (agent.None, error) {
					return agent.None{}, meet(ctx, agent.FromContext(ctx))
				}, agent.WithShort())}
			}
			simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
				for rank, a := range group {
					there := f.Go(t.Context(), a, agent.Rank(1-rank), agent.None{})
					synctest.Wait()
					require.NoError(t, meet(t.Context(), a))
					_, err := there.Wait(t.Context())
					require.NoError(t, err)
				}
			})
		})
	}
}

// Many short functions at once may call back the worker that called them, on the connection on
// which they were called.
func TestShortFunctionsThatCall(t *testing.T) {
	const callers = 8
	back := agent.NewFunc[int, int]("test.back")
	rounds := 50
	if race.Enabled {
		rounds = 10
	}
	configure := func(_ int, c *agent.Config) {
		c.Funcs = agent.Funcs{
			echo.Serve(func(_ context.Context, n int) (int, error) { return n, nil }, agent.WithShort()),
			back.Serve(func(ctx context.Context, n int) (int, error) {
				caller, _ := agent.Caller(ctx)
				return echo.Call(ctx, agent.FromContext(ctx), caller.To(), n)
			}, agent.WithShort()),
		}
	}
	for name, listen := range map[string][]string{"any": nil, "uv": {"uv://127.0.0.1:0"}} {
		t.Run(name, func(t *testing.T) {
			group := startGroup(t, 2, func(rank int, c *agent.Config) { configure(rank, c); c.Listen = listen })
			outcomes := make(chan error, 2*callers)
			for rank, a := range group {
				for range callers {
					go func() {
						var err error
						for n := 0; n < rounds && err == nil; n++ {
							var got int
							if got, err = back.Call(t.Context(), a, agent.Rank(1-rank), n); err == nil {
								err = want(n, got)
							}
						}
						outcomes <- err
					}()
				}
			}
			for range 2 * callers {
				require.NoError(t, testwait.Finish(t, outcomes))
			}
		})
	}
}

// The calls of a short function end, before their limit, when the pipe on which the function was
// called ends.
func TestShortFunctionWhoseCallerDies(t *testing.T) {
	h := &hanging{}
	var outcome chan error // of the bubble
	wait := agent.NewFunc[agent.None, agent.None]("test.wait")
	configure := func(rank int, c *agent.Config) {
		h.serve(rank, c)
		outcome = make(chan error, 1)
		c.Funcs = append(c.Funcs, wait.Serve(func(ctx context.Context, _ agent.None) (agent.None, error) {
			caller, _ := agent.Caller(ctx)
			_, err := hang.Call(ctx, agent.FromContext(ctx), caller.To(), agent.None{})
			outcome <- err
			return agent.None{}, err
		}, agent.WithShort()))
	}
	simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
		begun := time.Now()
		f := wait.Go(t.Context(), group[1], "worker0", agent.None{})
		synctest.Wait()
		require.NoError(t, group[1].Close())
		_, err := f.Wait(t.Context())
		require.ErrorIs(t, err, agent.ErrClosed)
		require.Error(t, <-outcome) // of the pipe, or of the handler at the agent that was closed
		require.Less(t, time.Since(begun), time.Minute, "it ends before its limit")
	})
}

var stackOf = agent.NewFunc[*tensor.Tensor, string]("test.whereabouts")

// A handler runs on the goroutine that has read its request, whether the request is small or large.
// While the handler waits, another goroutine reads the messages of the connection.
func TestHandlersRunWhereRequestsAreRead(t *testing.T) {
	for name, elements := range map[string]int{"small": 1, "large": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			wait, stacks := make(chan struct{}), make(chan string, 1)
			group := startGroup(t, 2, func(_ int, c *agent.Config) {
				c.Funcs = agent.Funcs{
					stackOf.Serve(func(context.Context, *tensor.Tensor) (string, error) {
						stacks <- string(debug.Stack())
						<-wait
						return "here", nil
					}),
					descend.Serve(serveDescend),
				}
			})
			x, err := tensor.FromSlice(make([]float32, elements), elements)
			require.NoError(t, err)
			blocked := stackOf.Go(t.Context(), group[0], "worker1", x)
			require.Contains(t, <-stacks, "(*conn).readLoop")

			_, err = descend.Call(t.Context(), group[0], "worker1", depth{})
			require.NoError(t, err)
			close(wait)
			where, err := blocked.Wait(t.Context())
			require.NoError(t, err)
			require.Equal(t, "here", where)
		})
	}
}

// If a function that is not short ends before another goroutine has begun to read, its goroutine
// continues to read: calls in a row then run on one goroutine. With one processor the other goroutine
// does not begin before that, unless the function is preempted. A call to the caller in between, or
// the end of the goroutine by the function, leaves a goroutine that reads.
func TestGoroutineOfRequestReadsOn(t *testing.T) {
	which, leave := agent.NewFunc[bool, string]("test.which"), agent.NewFunc[agent.None, agent.None]("test.leave")
	configure := func(_ int, c *agent.Config) {
		c.Listen = []string{"uv://127.0.0.1:0"}
		c.Funcs = agent.Funcs{
			echo.Serve(func(_ context.Context, n int) (int, error) { return n, nil }),
			which.Serve(func(ctx context.Context, call bool) (string, error) {
				if call {
					caller, _ := agent.Caller(ctx)
					if _, err := echo.Call(ctx, agent.FromContext(ctx), caller.To(), 1); err != nil {
						return "", err
					}
				}
				goroutine, _, _ := strings.Cut(string(debug.Stack()), " [")
				return goroutine, nil
			}),
			leave.Serve(func(context.Context, agent.None) (agent.None, error) { runtime.Goexit(); panic("unreachable") }),
		}
	}
	group := startGroup(t, 2, configure)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	same := 0
	last := ""
	for n := range 100 {
		goroutine, err := which.Call(t.Context(), group[0], "worker1", n%10 == 5)
		require.NoError(t, err)
		if goroutine == last {
			same++
		}
		last = goroutine
		if n%20 == 19 {
			_, err := leave.Call(t.Context(), group[0], "worker1", agent.None{})
			require.Error(t, err, "the function has ended its goroutine")
		}
	}
	require.Greater(t, same, 10, "of 99 pairs")
}
