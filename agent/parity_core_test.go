package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/internal/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/team"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// serveCore makes a worker one of the tests of calls, stress and deadlines.
func serveCore(rank int, c *agent.Config) {
	serveParity(rank, c)
	value, runs, let := future.New[int](), &atomic.Int64{}, future.New[bool]()
	counted := func(work func(x any) error) func(any) (int, error) {
		return func(x any) (int, error) { runs.Add(1); return 0, work(x) }
	}
	c.Funcs = append(c.Funcs,
		agent.Function("return_callee_id", func(ctx context.Context) int { return agent.FromContext(ctx).Self().Rank }),
		agent.Function("set_value", func(ctx context.Context, n int) error {
			if from, _ := agent.Caller(ctx); from.Rank != n {
				return fmt.Errorf("called by %v", from)
			}
			return value.Set(n)
		}),
		agent.AsyncFunction("value", func() *agent.Future[int] { return value }),
		agent.Function("light_rpc", func() int { runs.Add(1); return 0 }),
		agent.Function("heavy_rpc", counted(heavy)),
		agent.Function("runs", func() int { return int(runs.Load()) }),
		agent.Function("my_sleep_func", func(ctx context.Context, seconds float64) (int, error) {
			return 0, pauseFor(ctx, time.Duration(seconds*float64(time.Second)))
		}),
		agent.Function("nested_rpc", nestedAdd),
		agent.Function("timed_out_rpc", func(ctx context.Context) error { _, err := let.Wait(ctx); return err }),
		agent.Function("let_go", func() error { return let.Set(true) }),
		agent.Function("slow_add", func(ctx context.Context, x, y *tensor.Tensor) (*tensor.Tensor, error) {
			if err := pauseFor(ctx, 100*time.Millisecond); err != nil {
				return nil, err
			}
			return addHere(x, y)
		}),
	)
}

// heavy multiplies and divides; sparse tensors by multiplying, since they know no other
// way.
func heavy(x any) error {
	_, sparse := x.(*tensor.Sparse)
	for i := 1; i < 100; i++ {
		for _, op := range []struct {
			name string
			n    any
		}{{"aten::mul", i}, {"aten::div", i + 1}} {
			if sparse && op.name == "aten::div" {
				op.name, op.n = "aten::mul", 1/float64(i+1)
			}
			results, err := operators.Call(context.Background(), op.name, []any{x, op.n}, nil)
			if err != nil {
				return err
			}
			x = results[0]
		}
	}
	return nil
}

// nestedAdd has another worker add.
func nestedAdd(ctx context.Context, rank int, x, y any) (any, error) {
	return agent.One[any](agent.FromContext(ctx).Op(ctx, agent.Rank(rank), "aten::add", x, y))
}

func pauseFor(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// bystander fails a test from a goroutine that is not the test's.
type bystander struct{ *testing.T }

func (b bystander) FailNow() { b.Fail(); runtime.Goexit() }

// atOnce runs a script on all workers at once.
func atOnce(t *testing.T, group []*agent.Agent, s script) {
	var all sync.WaitGroup
	for rank, a := range group {
		all.Go(func() { s(bystander{t}, worker{Agent: a, ctx: t.Context(), n: rank + 1}) })
	}
	all.Wait()
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
		crew := team.Start(t, parityWorld, func(m *team.Member) error { return liveOnCore(m, s) })
		crew.Wait()
	})
}

// liveOnCore runs a script in a process, and waits for the others at the end.
func liveOnCore(m *team.Member, s script) error {
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

// add has a worker add, by the operator.
func (w worker) add(t require.TestingT, to agent.To, x, y any) any {
	sum, err := agent.One[any](w.Op(w.ctx, to, "aten::add", x, y))
	require.NoError(t, err)
	return sum
}

func TestParityAdd(t *testing.T) {
	inProcesses(t, "rpc/RpcTest.test_self_add", func(t require.TestingT, w worker) {
		later := w.OpAsync(w.ctx, w.Self().To(), "aten::add", full(1, 2, 2), 1)
		require.Equal(t, full(2, 2, 2).String(), w.add(t, w.Self().To(), full(1, 2, 2), full(1, 2, 2)).(*tensor.Tensor).String())
		sum, err := agent.One[*tensor.Tensor](later.Wait(w.ctx))
		require.NoError(t, err)
		equalTensor(t, full(2, 2, 2), sum)
	})
	inProcesses(t, "rpc/RpcTest.test_add", func(t require.TestingT, w worker) {
		equalTensor(t, full(2, w.n, w.n), w.add(t, agent.To(w.nextName()), full(1, w.n, w.n), full(1, w.n, w.n)).(*tensor.Tensor))
	})
	together(t, "rpc/RpcTest.test_add_with_id", func(t require.TestingT, w worker) {
		info, err := w.Worker(w.ctx, agent.To(w.nextName()))
		require.NoError(t, err)
		require.Equal(t, agent.WorkerInfo{Name: w.nextName(), Rank: w.n % parityWorld}, info)
		equalTensor(t, full(2, w.n, w.n), w.add(t, info.To(), full(1, w.n, w.n), full(1, w.n, w.n)).(*tensor.Tensor))
	})
	together(t, "rpc/RpcTest.test_scalar_add", func(t require.TestingT, w worker) {
		equalTensor(t, full(float32(1+w.n), w.n, w.n), w.add(t, w.next(1), full(1, w.n, w.n), w.n).(*tensor.Tensor))
	})
	together(t, "rpc/RpcTest.test_async_add", func(t require.TestingT, w worker) {
		sum, err := agent.One[*tensor.Tensor](w.OpAsync(w.ctx, w.next(1), "aten::add", full(1, w.n, w.n), full(1, w.n, w.n)).Wait(w.ctx))
		require.NoError(t, err)
		equalTensor(t, full(2, w.n, w.n), sum)
	})
	together(t, "rpc/RpcTest.test_nonzero", func(t require.TestingT, w worker) {
		x := full(1, parityWorld, parityWorld)
		data, err := tensor.MutableData[float32](x)
		require.NoError(t, err)
		data[w.Self().Rank*(parityWorld+1)] = 0
		got, err := agent.One[*tensor.Tensor](w.Op(w.ctx, w.next(1), "aten::nonzero", x))
		require.NoError(t, err)
		var places []int64 // by hand: all but the one on the diagonal, row by row
		for row := range int64(parityWorld) {
			for column := range int64(parityWorld) {
				if row != column || row != int64(w.Self().Rank) {
					places = append(places, row, column)
				}
			}
		}
		want, err := tensor.FromSlice(places, parityWorld*parityWorld-1, 2)
		require.NoError(t, err)
		equalTensor(t, want, got)
	})
}

func TestParityCalls(t *testing.T) {
	inTime(t, "rpc/RpcTest.test_int_callee", serveCore, func(t require.TestingT, w worker) {
		id, err := agent.One[int](w.Invoke(w.ctx, agent.Rank(w.n%parityWorld), "return_callee_id"))
		require.NoError(t, err)
		require.Equal(t, w.n%parityWorld, id)
	})
	together(t, "rpc/RpcTest.test_multi_rpc", func(t require.TestingT, w worker) {
		for range 20 {
			equalTensor(t, full(2, 2, 2), w.add(t, w.next(1), full(1, 2, 2), full(1, 2, 2)).(*tensor.Tensor))
		}
	})
	inProcesses(t, "rpc/TensorPipeAgentRpcTest.test_multi_rpc_sparse", func(t require.TestingT, w worker) {
		for i := range 20 {
			x := times(t, buildSparse(t), i+w.n)
			equalSparse(t, times(t, x, 2), w.add(t, w.next(1), x, x))
		}
	})
	inProcesses(t, "rpc/RpcTest.test_expected_src", func(t require.TestingT, w worker) {
		_, err := w.Invoke(w.ctx, w.next(1), "set_value", w.Self().Rank)
		require.NoError(t, err)
		value, err := agent.One[int](w.Invoke(w.ctx, w.Self().To(), "value"))
		require.NoError(t, err)
		require.Equal(t, (w.Self().Rank+parityWorld-1)%parityWorld, value)
		_, err = w.Invoke(w.ctx, w.next(1), "set_value", w.n) // which is who else
		require.ErrorContains(t, err, "called by "+w.Self().String())
	})
	inProcesses(t, "rpc/RpcTest.test_nested_rpc", func(t require.TestingT, w worker) {
		sum, err := agent.One[*tensor.Tensor](w.Invoke(w.ctx, w.next(1), "nested_rpc", w.Self().Rank, full(1, 2, 2), 1))
		require.NoError(t, err)
		equalTensor(t, full(2, 2, 2), sum)
	})
	inTime(t, "rpc/TensorPipeAgentRpcTest.test_nested_rpc_sparse", serveCore, func(t require.TestingT, w worker) {
		x := buildSparse(t)
		sum, err := agent.One[any](w.Invoke(w.ctx, w.next(1), "nested_rpc", w.Self().Rank, x, x))
		require.NoError(t, err)
		equalSparse(t, times(t, x, 2), sum)
	})
	together(t, "rpc/RpcTest.test_future_wait_twice", func(t require.TestingT, w worker) {
		var all []*agent.Future[[]any]
		for range 20 {
			all = append(all, w.InvokeAsync(w.ctx, w.next(1), "raise_func"))
		}
		_, err := future.WaitAll(w.ctx, all...)
		require.ErrorContains(t, err, expectedErr)
		for _, f := range all {
			_, err := f.Wait(w.ctx)
			require.ErrorContains(t, err, expectedErr)
		}
	})
}

// times is a sparse tensor n times.
func times(t require.TestingT, x *tensor.Sparse, n int) *tensor.Sparse {
	results, err := operators.Call(context.Background(), "aten::mul", []any{x, n}, nil)
	require.NoError(t, err)
	return results[0].(*tensor.Sparse)
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
