package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// While a function waits for the store, the worker serves other requests of the same pipe: if the
// function is short, another goroutine reads messages; if not, the handler slot is free.
func TestServingWhileFunctionWaitsForStore(t *testing.T) {
	ask := agent.NewFunc[agent.None, agent.None]("test.ask")
	for way, opts := range map[string][]agent.ServeOption{"short": {agent.WithShort()}, "plain": nil} {
		for name, wait := range map[string]func(ctx context.Context, a *agent.Agent) error{
			"barrier":    func(ctx context.Context, a *agent.Agent) error { return a.Barrier(ctx) },
			"all-gather": func(ctx context.Context, a *agent.Agent) error { _, err := agent.AllGather(ctx, a, 1); return err },
			"of some":    func(ctx context.Context, a *agent.Agent) error { return a.Barrier(ctx, "worker1", "worker9") },
			"workers":    func(ctx context.Context, a *agent.Agent) error { _, err := a.Workers(ctx); return err },
			"worker":     func(ctx context.Context, a *agent.Agent) error { _, err := a.Worker(ctx, "worker9"); return err },
		} {
			t.Run(name+", "+way, func(t *testing.T) {
				var s losableStore
				configure := func(rank int, c *agent.Config) {
					c.WorldSize, c.MaxHandlers = 0, 1
					if rank == 1 {
						s.Store = c.Store
						c.Store = &s
					}
					c.Funcs = agent.Funcs{
						echo.Serve(func(_ context.Context, n int) (int, error) { return n, nil }, opts...),
						ask.Serve(func(ctx context.Context, _ agent.None) (agent.None, error) {
							return agent.None{}, wait(ctx, agent.FromContext(ctx))
						}, opts...),
					}
				}
				simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
					_, err := echo.Call(t.Context(), group[0], "worker1", 1)
					require.NoError(t, err, "the pipe is open")
					asked := make(chan struct{}, 1)
					way := func(ctx context.Context) error {
						asked <- struct{}{}
						<-ctx.Done()
						return ctx.Err()
					}
					s.lost.Store(&way)
					ctx, cancel := context.WithCancel(t.Context())
					f := ask.Go(ctx, group[0], "worker1", agent.None{})
					<-asked
					begun := time.Now()
					got, err := echo.Call(t.Context(), group[0], "worker1", 7)
					require.NoError(t, err)
					require.Equal(t, 7, got)
					require.Zero(t, time.Since(begun))
					require.False(t, f.IsDone())
					cancel()
					_, err = f.Wait(t.Context())
					require.ErrorIs(t, err, context.Canceled)
					synctest.Wait()
					s.lost.Store(nil)
				})
			})
		}
	}
}
