package rref_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// parityWorld is the number of workers in PyTorch's tests.
const parityWorld = 4

// script is the part of each worker of a group, in this process or in its own.
type script func(t require.TestingT, w worker)

// worker is one of the workers that run a script concurrently.
type worker struct {
	*agent.Agent
	refs *rref.Refs
	ctx  context.Context
	n    int // rank + 1, as in PyTorch's tests
}

// next returns the destination of the worker whose rank is n larger, modulo the number of workers.
func (w worker) next(n int) agent.To {
	return agent.To(fmt.Sprintf("worker%d", (w.Self().Rank+n)%parityWorld))
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
// test cancels the context of the other scripts.
func (g *group) each(s script) {
	ctx, cancel := context.WithCancelCause(g.t.Context())
	defer cancel(nil)
	var all sync.WaitGroup
	for rank, a := range g.agents {
		all.Go(func() { s(goroutineT{g.t, cancel}, worker{a, g.refs[rank], ctx, rank + 1}) })
	}
	all.Wait()
}

// finish shuts the workers of g down concurrently, unless they are already. It requires that all
// succeed, and that no worker has a value or a reference after that. If the test has failed, a worker
// may be busy, and finish does nothing.
func (g *group) finish() {
	if g.t.Failed() {
		return
	}
	g.each(func(t require.TestingT, w worker) {
		if err := w.Shutdown(w.ctx); !errors.Is(err, agent.ErrClosed) {
			require.NoError(t, err)
		}
	})
	for _, r := range g.refs {
		require.Equal(g.t, empty, r.Metrics())
	}
}

// configuration changes what a worker of a parity case serves.
type configuration func(rank int, c *agent.Config, o *rref.Options)

// inOneProcess runs the parity case id as a subtest: the script s on four workers of this process, and
// then finish.
func inOneProcess(t *testing.T, id string, s script) {
	t.Helper()
	parity.Case(t, id, func(t *testing.T) {
		g := start(t, parityWorld, serveParity)
		g.each(s)
		g.finish()
	})
}

// inSimulatedTime runs the parity case id as inOneProcess does, in a bubble of testing/synctest.
// configure may be nil.
func inSimulatedTime(t *testing.T, id string, configure configuration, s script) {
	t.Helper()
	parity.Case(t, id, func(t *testing.T) {
		simulate(t, parityWorld, configure, func(g *group) {
			g.each(s)
			g.finish()
		})
	})
}

// simulate runs f with n workers in a bubble of testing/synctest. configure may be nil.
func simulate(t *testing.T, n int, configure configuration, f func(g *group)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(start(t, n, func(rank int, c *agent.Config, o *rref.Options) {
			serveParity(rank, c, o)
			if configure != nil {
				configure(rank, c, o)
			}
		}))
	})
}

// inProcesses runs the parity case id as a subtest: the script s on four workers that are processes.
// Each shuts down after it and requires that it has no value or reference then.
func inProcesses(t *testing.T, id string, s script) {
	t.Helper()
	parity.Case(t, id, func(t *testing.T) {
		procgroup.Start(t, parityWorld, func(m *procgroup.Member) error {
			c := agent.Config{
				Name: m.Name(), Rank: m.Rank, WorldSize: m.World, Rendezvous: m.Store,
				Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
			}
			o := rref.Options{}
			serveParity(m.Rank, &c, &o)
			refs := rref.New(o)
			c.Extensions = []agent.Extension{refs}
			a, err := agent.Join(m.Context(), c)
			if err != nil {
				return err
			}
			s(panicT{}, worker{a, refs, m.Context(), m.Rank + 1})
			if err := a.Shutdown(m.Context()); err != nil {
				return err
			}
			if left := refs.Metrics(); fmt.Sprint(left) != fmt.Sprint(empty) {
				return fmt.Errorf("left after the shutdown: %v", left)
			}
			return nil
		}).Wait()
	})
}

// panicT panics on failures, in processes without a test.
type panicT struct{}

func (panicT) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (panicT) FailNow()                          { panic("failed") }

var operators = aten.Default()

// sum adds the values, numbers and dense or sparse tensors, one after the other. The error is that of
// the operator, or the result is not a T.
func sum[T any](values ...any) (T, error) {
	total := values[0]
	for _, v := range values[1:] {
		if _, ok := total.(int); ok {
			total, v = v, total // operators take a tensor first
		}
		if a, ok := total.(int); ok {
			if b, ok := v.(int); ok {
				total = a + b
				continue
			}
		}
		results, err := operators.Call(context.Background(), "aten::add", []any{total, v}, nil)
		if err != nil {
			var zero T
			return zero, err
		}
		total = results[0]
	}
	return agent.One[T]([]any{total}, nil)
}

// requireSum requires that got is the sum of values.
func requireSum[T any](t require.TestingT, got T, err error, values ...any) {
	require.NoError(t, err)
	want, err := sum[T](values...)
	require.NoError(t, err)
	requireEqual(t, want, got)
}

// requireEqual requires that both are equal, tensors element by element.
func requireEqual(t require.TestingT, want, got any) {
	require.IsType(t, want, got)
	switch want := want.(type) {
	case *tensor.Tensor:
		require.NotNil(t, got)
		same, err := tensor.Equal(want, got.(*tensor.Tensor))
		require.NoError(t, err)
		require.True(t, same, "%v is not %v", got, want)
	case *tensor.Sparse:
		require.Equal(t, want.Shape(), got.(*tensor.Sparse).Shape())
		x, err := want.ToDense()
		require.NoError(t, err)
		y, err := got.(*tensor.Sparse).ToDense()
		require.NoError(t, err)
		requireEqual(t, x, y)
	default:
		require.Equal(t, want, got)
	}
}

// full returns a new float32 tensor of this shape whose elements are value. It panics on an error.
func full(value float32, shape ...int) *tensor.Tensor {
	x, err := tensor.Zeros(tensor.F32, shape...)
	if err == nil {
		err = tensor.Fill(x, value)
	}
	if err != nil {
		panic(err)
	}
	return x
}

// ones returns a new 2 by 2 tensor of ones, the argument of most of PyTorch's tests.
func ones() *tensor.Tensor { return full(1, 2, 2) }

// integers returns a new int64 tensor with these elements and this shape. It panics on an error.
func integers(values []int64, shape ...int) *tensor.Tensor {
	x, err := tensor.FromSlice(values, shape...)
	if err != nil {
		panic(err)
	}
	return x
}

// buildSparse returns a new sparse tensor of shape 2 by 3 with the values 3, 4 and 5, the one that
// PyTorch's tests use. It panics on an error.
func buildSparse() *tensor.Sparse {
	s, err := tensor.NewSparse(integers([]int64{0, 1, 1, 2, 0, 2}, 2, 3), integers([]int64{3, 4, 5}, 3), 2, 3)
	if err != nil {
		panic(err)
	}
	return s
}
