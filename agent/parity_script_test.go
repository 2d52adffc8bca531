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
	"github.com/tensorpipe-go/tensorpipe/internal/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/team"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// parityWorld is how many workers upstream's tests have.
const parityWorld = 4

// script is what each worker of a group does, in this process or in one of its own.
type script func(t require.TestingT, w worker)

type worker struct {
	*agent.Agent
	ctx context.Context
	n   int // its rank and one more, as upstream's tests have it
}

// next is the worker n ranks further on.
func (w worker) next(n int) agent.To { return agent.Rank((w.Self().Rank + n) % parityWorld) }

// nextName is next as errors call it.
func (w worker) nextName() string { return fmt.Sprintf("worker%d", (w.Self().Rank+1)%parityWorld) }

// bystander fails a test from a goroutine that is not the test's, and cancels the context of
// the other workers, which may be waiting for this one.
type bystander struct {
	*testing.T
	cancel context.CancelCauseFunc
}

func (b bystander) FailNow() {
	b.Fail()
	b.cancel(errors.New("another worker failed"))
	runtime.Goexit()
}

// atOnce runs a script on all workers of this process concurrently. Each worker shuts down at
// the end of its script, unless the script has closed it.
func atOnce(t *testing.T, group []*agent.Agent, s script) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var all sync.WaitGroup
	for rank, a := range group {
		all.Go(func() {
			t := bystander{t, cancel}
			s(t, worker{Agent: a, ctx: ctx, n: rank + 1})
			if err := a.Shutdown(ctx); !errors.Is(err, agent.ErrClosed) {
				require.NoError(t, err)
			}
		})
	}
	all.Wait()
}

// inOneProcess runs a parity case with four workers of this process at once.
func inOneProcess(t *testing.T, id string, s script) {
	t.Helper()
	parity.Case(t, id, func(t *testing.T) { atOnce(t, startGroup(t, parityWorld, serveParity), s) })
}

// inTime runs a parity case with four workers at once, in simulated time.
func inTime(t *testing.T, id string, configure func(int, *agent.Config), s script) {
	t.Helper()
	parity.Case(t, id, func(t *testing.T) {
		simulate(t, parityWorld, configure, func(t *testing.T, group []*agent.Agent) { atOnce(t, group, s) })
	})
}

// inProcesses runs a parity case with four processes.
func inProcesses(t *testing.T, id string, s script) {
	t.Helper()
	parity.Case(t, id, func(t *testing.T) {
		crew := team.Start(t, parityWorld, func(m *team.Member) error { return runScript(m, s) })
		crew.Wait()
	})
}

// runScript runs a script in a process, and then shuts down with the others.
func runScript(m *team.Member, s script) error {
	a, err := joinCore(m)
	if err != nil {
		return err
	}
	s(panicking{}, worker{Agent: a, ctx: m.Context(), n: m.Rank + 1})
	err = a.Shutdown(m.Context())
	if errors.Is(err, agent.ErrClosed) {
		err = nil // by the script
	}
	return err
}

func joinCore(m *team.Member) (*agent.Agent, error) {
	c := agent.Config{Name: m.Name(), Rank: m.Rank, WorldSize: m.World, Rendezvous: m.Store, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	serveCore(m.Rank, &c)
	return agent.Join(m.Context(), c)
}

// panicking fails where there is no test.
type panicking struct{}

func (panicking) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (panicking) FailNow()                          { panic("failed") }

// parityRegistry knows the types of the parity tests.
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

// full is a tensor of that value.
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

// integer is a tensor of one number, without dimensions.
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

// buildSparse is upstream's sparse tensor of three integers.
func buildSparse(t require.TestingT) *tensor.Sparse { return sparseOf(t, 3, 4, 5) }

// sparseOf is a sparse tensor with these values at the places of buildSparse.
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
