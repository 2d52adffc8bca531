package dist_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// parityWorld is the number of workers in PyTorch's tests.
const parityWorld = 4

// script is the part of each worker of a group, in this process or in its own.
type script func(t require.TestingT, w *worker)

// worker is one of the workers that run a script concurrently.
type worker struct {
	*agent.Agent
	graph *dist.Autograd
	marks *marks
	ctx   context.Context
	rank  int
	last  int // the rank that next has returned last
}

// at returns the destination of the worker whose rank is distance larger, modulo the number of workers.
func (w *worker) at(distance int) agent.To {
	return agent.To(fmt.Sprint("worker", (w.rank+distance)%parityWorld))
}

// next returns the destination of another worker: of the one after that of the last call of next.
func (w *worker) next() agent.To {
	w.last = (w.last + 1) % parityWorld
	if w.last == w.rank {
		w.last = (w.last + 1) % parityWorld
	}
	return agent.To(fmt.Sprint("worker", w.last))
}

// others returns the destinations of all other workers.
func (w *worker) others() (all []agent.To) {
	for distance := 1; distance < parityWorld; distance++ {
		all = append(all, w.at(distance))
	}
	return all
}

// inContext runs f within a new Context of w, which it closes then.
func (w *worker) inContext(t require.TestingT, f func(ctx context.Context, c *dist.Context)) {
	ctx, c, err := dist.WithContext(w.ctx, w.Agent)
	require.NoError(t, err)
	defer c.Close()
	f(ctx, c)
}

// barrier waits until all workers have called it.
func (w *worker) barrier(t require.TestingT) { require.NoError(t, w.Barrier(w.ctx)) }

// marks are the Contexts of other workers of which this one has got a message.
type marks struct {
	mu      sync.Mutex
	ids     map[int]dist.ID // by the distance from the worker that has made the Context
	known   map[dist.ID]bool
	changed chan struct{} // closed at the next change
}

// mark is a Context, and the distance of the receiver from the worker that has made it.
type mark struct {
	ID       dist.ID
	Distance int
}

var setDone = agent.NewFunc[mark, agent.None]("set_rpc_done")

// newMarks returns marks of a worker, without any.
func newMarks() *marks {
	return &marks{ids: map[int]dist.ID{}, known: map[dist.ID]bool{}, changed: make(chan struct{})}
}

// set records a mark.
func (m *marks) set(_ context.Context, v mark) (agent.None, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ids[v.Distance], m.known[v.ID] = v.ID, true
	close(m.changed)
	m.changed = make(chan struct{})
	return agent.None{}, nil
}

// all returns the Contexts of all marks.
func (m *marks) all() (all []dist.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.known {
		all = append(all, id)
	}
	return all
}

// await waits for the mark with that distance, and returns its Context. The error is the cause of ctx.
func (m *marks) await(ctx context.Context, distance int) (dist.ID, error) {
	for {
		m.mu.Lock()
		id, ok := m.ids[distance]
		changed := m.changed
		m.mu.Unlock()
		if ok {
			return id, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// markDone tells the worker whose rank is distance larger, within the Context c of ctx, of c.
func (w *worker) markDone(t require.TestingT, ctx context.Context, c *dist.Context, distance int) {
	_, err := setDone.Call(ctx, w.Agent, w.at(distance), mark{c.ID(), distance})
	require.NoError(t, err)
}

// marked waits for the mark of the worker whose rank is distance smaller, and returns this worker's
// part of its Context.
func (w *worker) marked(t require.TestingT, distance int) *dist.Context {
	id, err := w.marks.await(w.ctx, distance)
	require.NoError(t, err)
	c, err := id.Context(w.Agent)
	require.NoError(t, err)
	return c
}

// requireCleanedUp requires that this worker soon has none of the Contexts that others have told it of.
func (w *worker) requireCleanedUp(t require.TestingT) {
	for _, id := range w.marks.all() {
		require.Eventually(t, func() bool {
			_, err := id.Context(w.Agent)
			return errors.Is(err, dist.ErrNoContext)
		}, testwait.Limit, time.Millisecond, "the autograd context %d is left on %s", id, w.Self().Name)
	}
}

// goroutineT fails a test from another goroutine, and cancels the context of the other workers,
// which may be waiting for this one.
type goroutineT struct {
	*testing.T
	cancel context.CancelCauseFunc
}

func (b goroutineT) FailNow() {
	b.Fail()
	b.cancel(errors.New("another worker failed"))
	runtime.Goexit()
}

// each runs the script s on each worker of g concurrently and waits for all. A worker that fails the
// test cancels the context of the other scripts. all has the marks by rank.
func (g *group) each(all []*marks, s script) {
	ctx, cancel := context.WithCancelCause(g.t.Context())
	defer cancel(nil)
	var wg sync.WaitGroup
	for rank, a := range g.agents {
		wg.Go(func() {
			s(goroutineT{g.t, cancel}, &worker{Agent: a, graph: g.graphs[rank], marks: all[rank], ctx: ctx, rank: rank, last: rank})
		})
	}
	wg.Wait()
}

// noRefs is the metrics of a worker without references.
var noRefs = map[string]int64{"owner_rrefs": 0, "forks": 0, "pending_children": 0, "user_rrefs": 0, "pending_users": 0}

// startParity joins the workers of a parity case, and returns them with their marks. configure may be
// nil.
func startParity(t *testing.T, configure configuration) (*group, []*marks) {
	all := make([]*marks, parityWorld)
	for rank := range all {
		all[rank] = newMarks()
	}
	return start(t, parityWorld, func(rank int, c *agent.Config, o *dist.Options) {
		c.Funcs = append(c.Funcs, parityFunctions(all[rank])...)
		if configure != nil {
			configure(rank, c, o)
		}
	}), all
}

// inOneProcess runs the parity case id as a subtest: the script s on four workers of this process. It
// then requires that no worker has a Context, and after the shutdown no reference.
func inOneProcess(t *testing.T, id string, s script) {
	t.Helper()
	inOneProcessWith(t, id, nil, s)
}

// inOneProcessWith runs a parity case as inOneProcess does. configure changes the workers, and may be
// nil.
func inOneProcessWith(t *testing.T, id string, configure configuration, s script) {
	t.Helper()
	parity.Case(t, id, func(t *testing.T) { runScripts(t, configure, s) })
}

// inSimulatedTime runs a parity case as inOneProcessWith does, in a bubble of testing/synctest.
func inSimulatedTime(t *testing.T, id string, configure configuration, s script) {
	t.Helper()
	parity.Case(t, id, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { runScripts(t, configure, s) })
	})
}

// runScripts runs the script s on four workers of this process, and then finish.
func runScripts(t *testing.T, configure configuration, s script) {
	t.Helper()
	g, all := startParity(t, configure)
	g.each(all, s)
	g.finish()
}

// finish requires that no worker has a Context, shuts all down, and requires that none has a reference. If
// the test has failed, a worker may be busy, and finish does nothing.
func (g *group) finish() {
	g.t.Helper()
	if g.t.Failed() {
		return
	}
	g.requireEmpty()
	g.shutdown()
	for _, r := range g.refs {
		require.Equal(g.t, noRefs, r.Metrics())
	}
}

// inProcesses runs the parity case id as a subtest: the script s on four workers that are processes.
// Each shuts down after it, unless the script returns false, and requires that it has no Context then.
// control runs in the process of the test, and may be nil.
func inProcesses(t *testing.T, id string, control func(*procgroup.Group), s func(t require.TestingT, w *worker, m *procgroup.Member) bool) {
	t.Helper()
	parity.Case(t, id, func(t *testing.T) {
		group := procgroup.Start(t, parityWorld, func(m *procgroup.Member) error {
			seen, graph := newMarks(), dist.New(dist.Options{})
			a, err := agent.Join(m.Context(), agent.Config{
				Name: m.Name(), Rank: m.Rank, WorldSize: m.World, Rendezvous: m.Store,
				Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)), Funcs: append(functions(), parityFunctions(seen)...),
				Extensions: []agent.Extension{rref.New(rref.Options{Methods: methods()}), graph},
			})
			if err != nil {
				return err
			}
			w := &worker{Agent: a, graph: graph, marks: seen, ctx: m.Context(), rank: m.Rank, last: m.Rank}
			if !s(panicT{}, w, m) {
				return a.Close()
			}
			if err := a.Shutdown(m.Context()); err != nil {
				return err
			}
			require.Equal(panicT{}, empty, graph.Metrics())
			return nil
		})
		if control != nil {
			control(group)
			return
		}
		group.Wait()
	})
}

// panicT panics on failures, in processes without a test.
type panicT struct{}

func (panicT) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (panicT) FailNow()                          { panic("failed") }

// randomTensor returns a tensor of this shape with random elements in [0, 1). It panics on an error.
func randomTensor[T float32 | float64](shape ...int) *tensor.Tensor {
	n := 1
	for _, size := range shape {
		n *= size
	}
	data := make([]T, n)
	for i := range data {
		data[i] = T(rand.Float32())
	}
	x, err := tensor.FromSlice(data, shape...)
	if err != nil {
		panic(err)
	}
	return x
}

// random returns a leaf of float32 elements in [0, 1) that requires a gradient. It panics on an error.
func random(shape ...int) *autograd.Variable {
	x, err := autograd.Parameter(randomTensor[float32](shape...))
	if err != nil {
		panic(err)
	}
	return x
}
