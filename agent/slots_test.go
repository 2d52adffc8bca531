package agent_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// depth is how often a call calls on, from one worker to the next.
type depth struct{ Left, Workers int }

var descend = agent.NewFunc[depth, int]("test.descend")

// goDown calls the next worker until the depth is reached, and counts the way back.
func goDown(ctx context.Context, d depth) (int, error) {
	if d.Left == 0 {
		return 0, nil
	}
	a := agent.FromContext(ctx)
	next := agent.Rank((a.Self().Rank + 1) % d.Workers)
	n, err := descend.Call(ctx, a, next, depth{d.Left - 1, d.Workers})
	return n + 1, err
}

func oneHandler(funcs ...agent.Served) func(int, *agent.Config) {
	return func(_ int, c *agent.Config) { c.MaxHandlers, c.Funcs = 1, funcs }
}

// A place for a handler is free again when the handler has returned.
func TestSlotsComeBack(t *testing.T) {
	group := startGroup(t, 2, oneHandler(descend.Serve(goDown)))
	for range 20 {
		_, err := descend.Call(t.Context(), group[0], "worker1", depth{})
		require.NoError(t, err)
	}
}

// Calls within calls, around a ring of workers that run one handler each.
func TestNestedWithOneSlot(t *testing.T) {
	group := startGroup(t, 3, oneHandler(descend.Serve(goDown)))
	n, err := descend.Call(t.Context(), group[0], "worker1", depth{100, 3})
	require.NoError(t, err)
	require.Equal(t, 100, n)
}

// Handlers that all wait for each other at once.
func TestAllHandlersWait(t *testing.T) {
	group := startGroup(t, 3, oneHandler(descend.Serve(goDown)))
	var futures []*agent.Future[int]
	for i := range 60 {
		for _, a := range group {
			futures = append(futures, descend.Go(t.Context(), a, agent.Rank(i%3), depth{i % 7, 3}))
		}
	}
	for i, f := range futures {
		n, err := f.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, i/3%7, n)
	}
}

// weaver serves handlers that start goroutines, all of which call the next worker, and
// counts how many run: those of which no goroutine waits for a call.
type weaver struct {
	places  int64 // of each worker
	running [3]atomic.Int64
	tooMany atomic.Int64
}

const (
	threads = 3 // of each handler
	weaves  = 1 + threads*(1+threads*(1+threads))
)

func (w *weaver) begin(rank int) {
	if w.running[rank].Add(1) > w.places {
		w.tooMany.Add(1)
	}
}

// weave counts the handlers below it, and itself.
func (w *weaver) weave(ctx context.Context, d depth) (int, error) {
	a := agent.FromContext(ctx)
	rank := a.Self().Rank
	w.begin(rank)
	var sum atomic.Int64
	var errs [threads]error
	if d.Left > 0 {
		w.running[rank].Add(-1)
		var all sync.WaitGroup
		for i := range threads {
			all.Go(func() {
				n, err := descend.Call(ctx, a, agent.Rank((rank+1)%d.Workers), depth{d.Left - 1, d.Workers})
				sum.Add(int64(n))
				errs[i] = err
			})
		}
		all.Wait()
		w.begin(rank)
	}
	w.running[rank].Add(-1)
	return int(sum.Load()) + 1, errors.Join(errs[:]...)
}

// Handlers whose goroutines call others, all at once, neither keep each other out nor run
// in greater numbers than they may.
func TestGoroutinesOfHandlers(t *testing.T) {
	for name, places := range map[string]int64{"one": 1, "several": 4} {
		run := func(t *testing.T, start func(configure func(int, *agent.Config), f func(*testing.T, []*agent.Agent))) {
			w := &weaver{places: places}
			start(func(_ int, c *agent.Config) {
				c.MaxHandlers, c.Funcs = int(places), agent.Funcs{descend.Serve(w.weave)}
			}, func(t *testing.T, group []*agent.Agent) { weaveAll(t, w, group) })
		}
		t.Run(name, func(t *testing.T) {
			run(t, func(configure func(int, *agent.Config), f func(*testing.T, []*agent.Agent)) {
				f(t, startGroup(t, 3, configure))
			})
		})
		t.Run(name+" simulated", func(t *testing.T) {
			run(t, func(configure func(int, *agent.Config), f func(*testing.T, []*agent.Agent)) {
				simulate(t, 3, configure, func(t *testing.T, group []*agent.Agent) {
					f(t, group)
					synctest.Wait()
					for _, a := range group {
						require.Zero(t, a.Metrics().RunningHandlers, "all places are free again")
					}
				})
			})
		})
	}
}

func weaveAll(t *testing.T, w *weaver, group []*agent.Agent) {
	var futures []*agent.Future[int]
	for range 8 {
		for _, a := range group {
			futures = append(futures, descend.Go(t.Context(), a, a.Self().To(), depth{3, 3}, agent.Timeout(0)))
		}
	}
	for _, f := range futures {
		n, err := f.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, weaves, n)
	}
	require.Zero(t, w.tooMany.Load(), "more handlers at once than may be")
}

// A handler gives its place away when the first of its goroutines waits, and has one again
// when the last comes back: not before, though others have come back, and not while
// another handler is there.
func TestPlaceOfSeveralGoroutines(t *testing.T) {
	p := &pacer{}
	simulate(t, 2, p.serve, func(t *testing.T, group []*agent.Agent) {
		running := func() int { synctest.Wait(); return group[0].Metrics().RunningHandlers }
		close(p.second)
		divided := split.Go(t.Context(), group[1], "worker0", 7, agent.Timeout(0))
		require.Zero(t, running(), "all of it waits")
		other := hold.Go(t.Context(), group[1], "worker0", 2, agent.Timeout(0))
		require.Equal(t, 1, running())
		close(p.ends[0])
		require.Equal(t, 1, running())
		close(p.ends[1])
		require.Equal(t, 1, running())
		require.False(t, divided.IsDone(), "the other one has the place")
		close(p.ends[2])
		require.Zero(t, running())
		for _, f := range []*agent.Future[int]{divided, other} {
			_, err := f.Wait(t.Context())
			require.NoError(t, err)
		}
	})
}

// pacer has a handler with two goroutines at the first of two workers, which runs one at a
// time. Each makes a call that ends at its step, the second when it may.
type pacer struct {
	ends   [3]chan struct{}
	second chan struct{}
}

var (
	hold  = agent.NewFunc[int, int]("test.hold")
	split = agent.NewFunc[int, int]("test.split")
)

func (p *pacer) serve(rank int, c *agent.Config) {
	c.Funcs = agent.Funcs{hold.Serve(func(_ context.Context, n int) (int, error) { <-p.ends[n]; return n, nil })}
	if rank == 1 {
		return
	}
	for i := range p.ends { // they are of the bubble of a test
		p.ends[i] = make(chan struct{})
	}
	p.second = make(chan struct{})
	c.MaxHandlers = 1
	c.Funcs = append(c.Funcs, split.Serve(func(ctx context.Context, n int) (int, error) {
		var all sync.WaitGroup
		var errs [2]error
		for i := range errs {
			all.Go(func() {
				if i == 1 {
					<-p.second
				}
				_, errs[i] = hold.Call(ctx, agent.FromContext(ctx), "worker1", i)
			})
		}
		all.Wait()
		return n, errors.Join(errs[:]...)
	}))
}

// One goroutine of a handler is back and waits for a place, while another one makes a call.
// If that comes back too, one place is enough for both; else the handler has none.
func TestOnePlaceForAllGoroutines(t *testing.T) {
	for name, early := range map[string]bool{"both are back": false, "one waits": true} {
		t.Run(name, func(t *testing.T) {
			p := &pacer{}
			simulate(t, 2, p.serve, func(t *testing.T, group []*agent.Agent) {
				divided := split.Go(t.Context(), group[1], "worker0", 7, agent.Timeout(0))
				synctest.Wait()
				other := hold.Go(t.Context(), group[1], "worker0", 2, agent.Timeout(0)) // has the place
				steps := []chan struct{}{p.ends[0], p.second, p.ends[1], p.ends[2]}
				if early {
					steps[2], steps[3] = steps[3], steps[2]
				}
				for i, step := range steps {
					synctest.Wait()
					require.False(t, divided.IsDone())
					require.Equal(t, early && i == 3, group[0].Metrics().RunningHandlers == 0)
					close(step)
				}
				synctest.Wait()
				require.True(t, divided.IsDone())
				for _, f := range []*agent.Future[int]{divided, other} {
					_, err := f.Wait(t.Context())
					require.NoError(t, err)
				}
				require.Zero(t, group[0].Metrics().RunningHandlers)
			})
		})
	}
}
