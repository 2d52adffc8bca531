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

// depth is the number of further calls, each of which is made to the next of Workers.
type depth struct{ Left, Workers int }

var descend = agent.NewFunc[depth, int]("test.descend")

// serveDescend is a handler that calls the next of d.Workers workers, whose handler does the same,
// until d.Left is 0. It returns the number of calls.
func serveDescend(ctx context.Context, d depth) (int, error) {
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

// The slot of a handler is free after the handler has returned: one slot serves many calls, one
// after the other.
func TestSlotsAreReleased(t *testing.T) {
	group := startGroup(t, 2, oneHandler(descend.Serve(serveDescend)))
	for range 20 {
		_, err := descend.Call(t.Context(), group[0], "worker1", depth{})
		require.NoError(t, err)
	}
}

// A hundred calls nested around a ring of three workers with one handler slot each succeed.
func TestNestedCallsWithOneSlot(t *testing.T) {
	group := startGroup(t, 3, oneHandler(descend.Serve(serveDescend)))
	n, err := descend.Call(t.Context(), group[0], "worker1", depth{100, 3})
	require.NoError(t, err)
	require.Equal(t, 100, n)
}

// Many handlers of three workers with one slot each wait for each other at once, and all calls
// succeed.
func TestAllHandlersWaitForEachOther(t *testing.T) {
	group := startGroup(t, 3, oneHandler(descend.Serve(serveDescend)))
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

// fanOutHandler serves handlers that start goroutines, each of which calls the next worker. It
// counts the handlers that run: those of which no goroutine waits for a call.
type fanOutHandler struct {
	slots   int64 // of each worker
	running [3]atomic.Int64
	tooMany atomic.Int64
}

const (
	threads     = 3 // of each handler
	fanOutCount = 1 + threads*(1+threads*(1+threads))
)

func (w *fanOutHandler) begin(rank int) {
	if w.running[rank].Add(1) > w.slots {
		w.tooMany.Add(1)
	}
}

// serveGoroutines is a handler that calls the next worker from several goroutines, waits for them,
// and returns the number of handlers that this has run, including itself. It counts itself as
// running except while it waits.
func (w *fanOutHandler) serveGoroutines(ctx context.Context, d depth) (int, error) {
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

// Handlers whose goroutines make calls, all at once, do not block each other, and no more of the
// handlers run than there are slots.
func TestGoroutinesOfHandlers(t *testing.T) {
	for name, slots := range map[string]int64{"one": 1, "several": 4} {
		run := func(t *testing.T, start func(configure func(int, *agent.Config), f func(*testing.T, []*agent.Agent))) {
			w := &fanOutHandler{slots: slots}
			start(func(_ int, c *agent.Config) {
				c.MaxHandlers, c.Funcs = int(slots), agent.Funcs{descend.Serve(w.serveGoroutines)}
			}, func(t *testing.T, group []*agent.Agent) { callFanOut(t, w, group) })
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
						require.Zero(t, a.Metrics().RunningHandlers, "all slots are free again")
					}
				})
			})
		})
	}
}

func callFanOut(t *testing.T, w *fanOutHandler, group []*agent.Agent) {
	var futures []*agent.Future[int]
	for range 8 {
		for _, a := range group {
			futures = append(futures, descend.Go(t.Context(), a, a.Self().To(), depth{3, 3}, agent.WithTimeout(0)))
		}
	}
	for _, f := range futures {
		n, err := f.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, fanOutCount, n)
	}
	require.Zero(t, w.tooMany.Load(), "more handlers than slots")
}

// A handler gives its slot away when the first of its goroutines waits for a call. It has a slot
// again only when the last of them has its reply, and not while another handler has the slot.
func TestSlotOfSeveralGoroutines(t *testing.T) {
	p := &stepper{}
	simulate(t, 2, p.serve, func(t *testing.T, group []*agent.Agent) {
		running := func() int { synctest.Wait(); return group[0].Metrics().RunningHandlers }
		close(p.second)
		divided := split.Go(t.Context(), group[1], "worker0", 7, agent.WithTimeout(0))
		require.Zero(t, running(), "all its goroutines wait")
		other := hold.Go(t.Context(), group[1], "worker0", 2, agent.WithTimeout(0))
		require.Equal(t, 1, running())
		close(p.ends[0])
		require.Equal(t, 1, running())
		close(p.ends[1])
		require.Equal(t, 1, running())
		require.False(t, divided.IsDone(), "the other handler has the slot")
		close(p.ends[2])
		require.Zero(t, running())
		for _, f := range []*agent.Future[int]{divided, other} {
			_, err := f.Wait(t.Context())
			require.NoError(t, err)
		}
	})
}

// stepper serves a handler with two goroutines at the first of two workers, which has one slot.
// Each goroutine makes a call that ends when its channel is closed; the second one waits for second
// before.
type stepper struct {
	ends   [3]chan struct{}
	second chan struct{}
}

var (
	hold  = agent.NewFunc[int, int]("test.hold")
	split = agent.NewFunc[int, int]("test.split")
)

func (p *stepper) serve(rank int, c *agent.Config) {
	c.Funcs = agent.Funcs{hold.Serve(func(_ context.Context, n int) (int, error) { <-p.ends[n]; return n, nil })}
	if rank == 1 {
		return
	}
	for i := range p.ends { // within the bubble of the test
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

// One goroutine of a handler has its reply and waits for a slot while another one makes a call. If
// the other one gets its reply as well, one slot is enough for both. If it still waits when the
// slot is free, the handler has no slot.
func TestOneSlotForAllGoroutines(t *testing.T) {
	for name, early := range map[string]bool{"both return": false, "one waits": true} {
		t.Run(name, func(t *testing.T) {
			p := &stepper{}
			simulate(t, 2, p.serve, func(t *testing.T, group []*agent.Agent) {
				divided := split.Go(t.Context(), group[1], "worker0", 7, agent.WithTimeout(0))
				synctest.Wait()
				other := hold.Go(t.Context(), group[1], "worker0", 2, agent.WithTimeout(0)) // has the slot
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
