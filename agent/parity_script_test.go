package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// parityWorld is the number of workers in PyTorch's tests.
const parityWorld = 4

// script is the part of each worker of a group, in this process or in its own.
type script func(t require.TestingT, w worker)

type worker struct {
	*agent.Agent
	ctx context.Context
	n   int // rank + 1, as in PyTorch's tests
}

// next returns the destination of the worker whose rank is n larger, modulo the number of workers.
func (w worker) next(n int) agent.To { return agent.Rank((w.Self().Rank + n) % parityWorld) }

// nextName returns the name of the worker of the next rank, which errors contain in place of the
// rank.
func (w worker) nextName() string { return fmt.Sprintf("worker%d", (w.Self().Rank+1)%parityWorld) }

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

// runAll runs the script s on each worker of group concurrently and waits for all. Each worker
// shuts down at the end of its script, unless the script has closed it. A worker that fails the
// test cancels the context of the other scripts.
func runAll(t *testing.T, group []*agent.Agent, s script) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var all sync.WaitGroup
	for rank, a := range group {
		all.Go(func() {
			t := goroutineT{t, cancel}
			s(t, worker{Agent: a, ctx: ctx, n: rank + 1})
			if err := a.Shutdown(ctx); !errors.Is(err, agent.ErrClosed) {
				require.NoError(t, err)
			}
		})
	}
	all.Wait()
}

// inOneProcess runs the parity case id as a subtest: the script s, on four workers of this process
// that serve serveParity.
func inOneProcess(t *testing.T, id string, s script) {
	t.Helper()
	parity.Case(t, id, func(t *testing.T) { runAll(t, startGroup(t, parityWorld, serveParity), s) })
}

// inSimulatedTime runs the parity case id as a subtest: the script s, on four workers in a bubble
// of testing/synctest that configure has configured.
func inSimulatedTime(t *testing.T, id string, configure func(int, *agent.Config), s script) {
	t.Helper()
	parity.Case(t, id, func(t *testing.T) {
		simulate(t, parityWorld, configure, func(t *testing.T, group []*agent.Agent) { runAll(t, group, s) })
	})
}

// inProcesses runs the parity case id as a subtest: the script s, on four workers that are
// processes and serve serveCore.
func inProcesses(t *testing.T, id string, s script) {
	t.Helper()
	parity.Case(t, id, func(t *testing.T) {
		group := procgroup.Start(t, parityWorld, func(m *procgroup.Member) error { return runScript(m, s) })
		group.Wait()
	})
}

// runScript joins the process m, runs the script s and shuts down. It returns the error of Join or
// Shutdown, and panics if the script fails. The script may have closed the agent.
func runScript(m *procgroup.Member, s script) error {
	a, err := joinCore(m)
	if err != nil {
		return err
	}
	s(panicT{}, worker{Agent: a, ctx: m.Context(), n: m.Rank + 1})
	err = a.Shutdown(m.Context())
	if errors.Is(err, agent.ErrClosed) {
		err = nil // the script has closed the agent
	}
	return err
}

func joinCore(m *procgroup.Member) (*agent.Agent, error) {
	c := agent.Config{Name: m.Name(), Rank: m.Rank, WorldSize: m.World, Rendezvous: m.Store, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	serveCore(m.Rank, &c)
	return agent.Join(m.Context(), c)
}

// panicT panics on failures, in processes without a test.
type panicT struct{}

func (panicT) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (panicT) FailNow()                          { panic("failed") }

// parityRegistry returns a new registry with the types and errors that the messages of the parity
// tests contain.
func parityRegistry() *codec.Registry {
	r := codec.NewRegistry()
	for name, sample := range map[string]any{
		"parity.WorkerInfo": agent.WorkerInfo{}, "parity.myClass": myClass{}, "parity.tensorClass": tensorClass{},
		"parity.nested": nested{}, "parity.knownError": &codeError{},
	} {
		if err := r.Register(name, sample); err != nil {
			panic(err)
		}
	}
	if err := r.RegisterError("parity.errQuota", errQuota); err != nil {
		panic(err)
	}
	return r
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

// integer returns a new int64 tensor without dimensions that holds n. It panics on an error.
func integer(n int64) *tensor.Tensor {
	x, err := tensor.FromSlice([]int64{n})
	if err != nil {
		panic(err)
	}
	return x
}

func equalTensor(t require.TestingT, want, got *tensor.Tensor) {
	require.NotNil(t, got)
	same, err := tensor.Equal(want, got)
	require.NoError(t, err)
	require.True(t, same, "%v is not %v", got, want)
}

// buildSparse returns a new sparse tensor of shape 2 by 3 with the values 3, 4 and 5, the one that
// PyTorch's tests use.
func buildSparse(t require.TestingT) *tensor.Sparse { return sparseOf(t, 3, 4, 5) }

// sparseOf returns a new sparse tensor of shape 2 by 3 with the three given values at the indices
// of buildSparse.
func sparseOf(t require.TestingT, values ...int64) *tensor.Sparse {
	indices, err := tensor.FromSlice([]int64{0, 1, 1, 2, 0, 2}, 2, 3)
	require.NoError(t, err)
	list, err := tensor.FromSlice(values, 3)
	require.NoError(t, err)
	s, err := tensor.NewSparse(indices, list, 2, 3)
	require.NoError(t, err)
	return s
}

func equalSparse(t require.TestingT, want *tensor.Sparse, got any) {
	require.IsType(t, want, got)
	require.Equal(t, want.Shape(), got.(*tensor.Sparse).Shape())
	x, err := want.ToDense()
	require.NoError(t, err)
	y, err := got.(*tensor.Sparse).ToDense()
	require.NoError(t, err)
	equalTensor(t, x, y)
}
