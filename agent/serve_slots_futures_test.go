package agent_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// waits are the ways to wait for a call that returns a future.
var waits = map[string]func(ctx context.Context, f *agent.Future[int]) (int, error){
	"Wait": func(ctx context.Context, f *agent.Future[int]) (int, error) { return f.Wait(ctx) },
	"All": func(ctx context.Context, f *agent.Future[int]) (int, error) {
		if _, err := future.All(f, f).Wait(ctx); err != nil {
			return 0, err
		}
		return f.Result()
	},
	"WaitAll": func(ctx context.Context, f *agent.Future[int]) (int, error) {
		all, err := future.WaitAll(ctx, f, f)
		if err != nil {
			return 0, err
		}
		return all[1], nil
	},
	"Await": func(ctx context.Context, f *agent.Future[int]) (int, error) {
		if err := future.Await(ctx, f, future.Of("done")); err != nil {
			return 0, err
		}
		return f.Result()
	},
	"Settle": func(ctx context.Context, f *agent.Future[int]) (int, error) {
		if err := future.Settle(ctx, f); err != nil {
			return 0, err
		}
		return f.Result()
	},
	"Then": func(ctx context.Context, f *agent.Future[int]) (int, error) {
		return future.Then(f, (*agent.Future[int]).Result).Wait(context.WithoutCancel(ctx))
	},
}

// A handler that waits for a future has no slot during the wait; if the handler is short, another
// goroutine reads the messages. So nested calls around two workers with one slot each succeed.
func TestHandlersWaitForFutures(t *testing.T) {
	for name, wait := range waits {
		down := func(ctx context.Context, d depth) (int, error) {
			if d.Left == 0 {
				return 0, nil
			}
			a := agent.FromContext(ctx)
			next := agent.Rank((a.Self().Rank + 1) % d.Workers)
			n, err := wait(ctx, descend.Go(ctx, a, next, depth{d.Left - 1, d.Workers}))
			return n + 1, err
		}
		for kind, opts := range map[string][]agent.ServeOption{"": nil, ", short": {agent.WithShort()}} {
			t.Run(name+kind, func(t *testing.T) {
				simulate(t, 2, oneHandler(descend.Serve(down, opts...)), func(t *testing.T, group []*agent.Agent) {
					n, err := descend.Call(t.Context(), group[0], "worker1", depth{20, 2})
					require.NoError(t, err)
					require.Equal(t, 20, n)
					synctest.Wait()
					for _, a := range group {
						require.Zero(t, a.Metrics().RunningHandlers, "all slots are free again")
					}
				})
			})
		}
	}
}

// serveFutures is a handler that calls the next worker several times, waits for the futures of
// these calls, and returns the number of handlers that this has run, including itself. It counts
// itself as running except while it waits.
func (w *fanOutHandler) serveFutures(ctx context.Context, d depth) (int, error) {
	a := agent.FromContext(ctx)
	rank := a.Self().Rank
	w.begin(rank)
	defer w.running[rank].Add(-1)
	if d.Left == 0 {
		return 1, nil
	}
	var futures []*agent.Future[int]
	w.running[rank].Add(-1)
	for range threads {
		futures = append(futures, descend.Go(ctx, a, agent.Rank((rank+1)%d.Workers), depth{d.Left - 1, d.Workers}))
	}
	all, err := future.WaitAll(ctx, futures...)
	w.begin(rank)
	sum := 1
	for _, n := range all {
		sum += n
	}
	return sum, err
}

// No more handlers run than there are slots, also when several handlers that waited for futures
// continue.
func TestSlotsOfHandlersThatWaitForFutures(t *testing.T) {
	w := &fanOutHandler{slots: 2}
	configure := func(_ int, c *agent.Config) {
		c.MaxHandlers, c.Funcs = int(w.slots), agent.Funcs{descend.Serve(w.serveFutures)}
	}
	simulate(t, 3, configure, func(t *testing.T, group []*agent.Agent) { callFanOut(t, w, group) })
}
