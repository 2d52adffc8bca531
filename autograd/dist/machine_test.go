package dist_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// TestMachine lets three or four workers build random graphs by calls of each other, in simulated time, while
// messages are lost, delayed, repeated and overtaken, and pipes break. Each pass gives exactly the gradients of
// the same computation without calls, or fails with a known error; in the end no table has anything left. More
// runs: go test ./autograd/dist -run TestMachine -rapid.checks 10000
func TestMachine(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		if race.Enabled && rapid.IntRange(0, 3).Draw(rt, "with the race detector") > 0 {
			return // each run takes long
		}
		var failed any
		synctest.Test(t, func(b *testing.T) {
			defer func() { failed = recover() }() // rapid fails by a panic, on another goroutine than this one
			runMachine(b, rt)
		})
		if failed != nil {
			panic(failed)
		}
	})
}

// machine is a group of workers, and the faults of its messages.
type machine struct {
	*group
	links *simnet.Network

	calm bool // no message has a fault, and no pipe breaks: nothing may fail

	mu   sync.Mutex
	rng  *rand.Rand
	rate float64 // the share of messages with a fault
}

// fault is the FaultHook of all workers.
func (m *machine) fault(*agent.Message) agent.Fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rng.Float64() >= m.rate {
		return agent.Fault{}
	}
	delay := time.Duration(m.rng.Int64N(int64(3 * time.Second)))
	switch m.rng.IntN(6) {
	case 0, 1:
		return agent.Fault{Drop: true}
	case 2:
		return agent.Fault{Err: errInjected}
	case 3:
		return agent.Fault{Extra: 1 + m.rng.IntN(2)}
	case 4:
		return agent.Fault{Extra: 1, Delay: delay}
	default:
		return agent.Fault{Delay: delay}
	}
}

var errInjected = errors.New("injected failure")

func (m *machine) setRate(rate float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rate = rate
}

// formula is a step of a computation: an operator of two earlier values, on a worker that is reached over
// others.
type formula struct {
	Op   string
	X, Y int // numbers of earlier values, modulo their count
	Path []int
	Opts int
}

// operators of formulas: a function, and what it computes.
var operatorsOfFormulas = map[string]func(context.Context, variable, variable) (variable, error){
	"mul": autograd.Mul, "add": autograd.Add,
	"scale": func(ctx context.Context, x, _ variable) (variable, error) { return autograd.MulNumber(ctx, x, 3) }, // does not use y
	"none":  func(ctx context.Context, x, _ variable) (variable, error) { return x.Detach(), nil },
}

type applyArgs struct {
	Path []string
	Op   string
	Args pair
}

var (
	apply     = agent.NewFunc[applyArgs, variable]("machine.apply")
	applyOnce = agent.NewFunc[applyArgs, variable]("machine.applyOnce")
)

func applyFormula(ctx context.Context, v applyArgs) (variable, error) {
	if len(v.Path) > 0 {
		return apply.Call(ctx, agent.FromContext(ctx), agent.To(v.Path[0]), applyArgs{v.Path[1:], v.Op, v.Args}, agent.WithTimeout(5*time.Second))
	}
	return operatorsOfFormulas[v.Op](ctx, v.Args.X, v.Args.Y)
}

func (m *machine) configure(_ int, c *agent.Config, o *dist.Options) {
	c.Timeout, c.FaultHook = 10*time.Second, m.fault
	c.Funcs = append(c.Funcs, apply.Serve(applyFormula), applyOnce.Serve(applyFormula, agent.WithOnce()))
	o.LostAfter = 20 * time.Second
}

func runMachine(b *testing.T, t *rapid.T) {
	n := rapid.IntRange(3, 4).Draw(t, "workers")
	m := &machine{rng: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "faults"), 1)), links: simnet.New(mem.New(mem.NewNetwork()))}
	m.group = startOn(b, m.links, n, m.configure)
	defer func() {
		for _, a := range m.agents {
			_ = a.Close() // shut down, unless the test has failed
		}
	}()
	rates := []float64{0, 0, 0.01, 0.05, 0.2}
	rate, cuts := rapid.SampledFrom(rates).Draw(t, "rate"), rapid.IntRange(0, 2).Draw(t, "broken pipes")
	m.setRate(rate)
	m.calm = rate == 0 && cuts == 0
	var programs []*program
	for range rapid.IntRange(1, 3).Draw(t, "programs") {
		programs = append(programs, drawProgram(t, n))
	}
	var wg sync.WaitGroup
	errs := make([]error, len(programs))
	for i, p := range programs {
		wg.Go(func() { errs[i] = p.run(b.Context(), m) })
	}
	for range cuts {
		sleep(time.Duration(rapid.IntRange(0, 5000).Draw(t, "milliseconds")) * time.Millisecond)
		which := rapid.IntRange(0, 99).Draw(t, "link")
		if links := m.links.Links(); len(links) > 0 {
			links[which%len(links)].Cut()
		}
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		b.Log(err) // rapid prints the last failure, and not the first one
		t.Fatal(err)
	}
	m.setRate(0)
	sleep(3 * time.Minute) // until late messages have come, and clean-up messages were sent again
	for i, a := range m.graphs {
		require.Equal(t, empty, a.Metrics(), "worker%d", i)
		require.Equal(t, map[string]int{"contexts": 0, "usages": 0, "cleanups": 0}, a.Tables(), "worker%d", i)
	}
}

// program is a computation of one worker, in a Context.
type program struct {
	origin int
	leaves int
	steps  []formula
	passes int
	zero   bool
}

func drawProgram(t *rapid.T, workers int) *program {
	worker := rapid.IntRange(0, workers-1)
	p := &program{
		origin: worker.Draw(t, "origin"), leaves: rapid.IntRange(1, 3).Draw(t, "leaves"),
		passes: rapid.IntRange(1, 2).Draw(t, "passes"), zero: rapid.IntRange(0, 3).Draw(t, "zeros for unused ones") > 0,
	}
	for range rapid.IntRange(1, 6).Draw(t, "steps") {
		p.steps = append(p.steps, formula{
			Op: rapid.SampledFrom([]string{"mul", "mul", "add", "scale", "none"}).Draw(t, "operator"),
			X:  rapid.IntRange(0, 9).Draw(t, "x"), Y: rapid.IntRange(0, 9).Draw(t, "y"),
			Path: rapid.SliceOfN(worker, 0, 4).Draw(t, "path"), Opts: rapid.IntRange(0, 3).Draw(t, "options"),
		})
	}
	return p
}

// compute computes the values of the steps by call, and returns the sum of the last one.
func (p *program) compute(ctx context.Context, xs []variable, call func(context.Context, formula, variable, variable) (variable, error)) (variable, error) {
	for _, s := range p.steps {
		z, err := call(ctx, s, xs[s.X%len(xs)], xs[s.Y%len(xs)])
		if err != nil {
			return nil, err
		}
		xs = append(xs, z)
	}
	root := xs[len(xs)-1]
	root, err := autograd.Add(ctx, root, xs[0]) // requires a gradient in any case
	if err != nil {
		return nil, err
	}
	return autograd.Sum(ctx, root)
}

func (p *program) newLeaves() (all []variable) {
	for i := range p.leaves {
		all = append(all, parameter(1+float32(i)/4, 2))
	}
	return all
}

// local returns the gradients of the computation without calls, by leaf, nil for a leaf without one.
func (p *program) local(ctx context.Context) (grads [][]float32, err error) {
	xs := p.newLeaves()
	root, err := p.compute(ctx, xs, func(ctx context.Context, s formula, x, y variable) (variable, error) {
		return operatorsOfFormulas[s.Op](ctx, x, y)
	})
	if err == nil {
		err = autograd.Backward(ctx, []variable{root})
	}
	for _, x := range xs[:p.leaves] {
		grads = append(grads, numbersOf(x.Grad()))
	}
	return grads, err
}

// numbersOf returns the elements of the dense tensor v, nil if there is none or if all are 0.
func numbersOf(v autograd.Value) []float32 {
	if v.IsZero() {
		return nil
	}
	t, err := v.Tensor().Contiguous()
	if err != nil {
		return nil
	}
	all, err := tensor.Data[float32](t)
	if err != nil {
		return nil
	}
	for _, e := range all {
		if e != 0 {
			return all
		}
	}
	return nil
}

// run runs the program, and returns an error if its gradients are not those of local, or if it fails
// otherwise than programs may.
func (p *program) run(ctx context.Context, m *machine) error {
	want, err := p.local(ctx)
	if err != nil {
		return err
	}
	a := m.agents[p.origin]
	ctx, c, err := dist.WithContext(ctx, a)
	if err != nil {
		return err
	}
	defer c.Close()
	xs := p.newLeaves()
	root, err := p.compute(ctx, xs, func(ctx context.Context, s formula, x, y variable) (z variable, err error) {
		for range 20 { // a failed call is made again by the program
			if z, err = callFormula(ctx, a, s, x, y); err == nil || m.calm || !isMachineError(err) {
				return z, err
			}
		}
		return nil, err
	})
	if err != nil {
		return m.unexpected("forward", err)
	}
	for pass := range p.passes {
		err := c.BackwardWith(ctx, dist.PassOptions{RetainGraph: true, UnusedZero: p.zero}, root)
		if errors.Is(err, dist.ErrUnused) && !p.zero {
			return nil
		}
		if err != nil {
			return m.unexpected("pass", err) // some gradients may have been added
		}
		for i, x := range xs[:p.leaves] {
			g, err := c.Gradient(x)
			if err != nil && !errors.Is(err, autograd.ErrNoGradient) {
				return err
			}
			got := numbersOf(g)
			for k := range max(len(got), len(want[i])) {
				if len(got) != len(want[i]) || math.Abs(float64(got[k]/(want[i][k]*float32(pass+1))-1)) > 1e-5 { // all are positive
					return fmt.Errorf("the gradient of leaf %d is %v after pass %d of %+v, want a multiple of %v", i, got, pass, p, want[i])
				}
			}
		}
	}
	return nil
}

func callFormula(ctx context.Context, a *agent.Agent, s formula, x, y variable) (variable, error) {
	if len(s.Path) == 0 {
		return operatorsOfFormulas[s.Op](ctx, x, y)
	}
	var path []string
	for _, n := range s.Path {
		path = append(path, fmt.Sprint("worker", n))
	}
	f, opts := apply, []agent.CallOption{agent.WithTimeout(4 * time.Second)}
	if s.Opts&1 != 0 {
		opts = append(opts, agent.WithRetry(agent.Retry{Max: 3, Delay: time.Second}))
	}
	if s.Opts&2 != 0 {
		f = applyOnce
	}
	return f.Call(ctx, a, agent.To(path[0]), applyArgs{path[1:], s.Op, pair{x, y}}, opts...)
}

func isMachineError(err error) bool {
	return isExpected(err) || errors.Is(err, errInjected) || hasText(err)
}

// unexpected returns nil if err is an error that lost messages may cause, and messages are lost.
func (m *machine) unexpected(op string, err error) error {
	if !m.calm && isMachineError(err) {
		return nil
	}
	return fmt.Errorf("%s: %w", op, err)
}

// hasText reports whether err is the error of a handler, whose identity is lost on its way.
func hasText(err error) bool {
	for _, known := range append([]error{errInjected}, expected...) {
		if strings.Contains(err.Error(), known.Error()) {
			return true
		}
	}
	return false
}
