package agent_test

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// serveCore is a configure function for startGroup: it makes the worker serve the functions of
// serveParity and those of the tests of calls, stress and deadlines.
func serveCore(rank int, c *agent.Config) {
	serveParity(rank, c)
	value, runs, let := future.New[int](), &atomic.Int64{}, future.New[bool]()
	counted := func(work func(x any) error) func(any) (int, error) {
		return func(x any) (int, error) { runs.Add(1); return 0, work(x) }
	}
	c.Funcs = append(c.Funcs,
		agent.ReflectFunc("return_callee_id", func(ctx context.Context) int { return agent.FromContext(ctx).Self().Rank }),
		agent.ReflectFunc("set_value", func(ctx context.Context, n int) error {
			if from, _ := agent.Caller(ctx); from.Rank != n {
				return fmt.Errorf("called by %v", from)
			}
			return value.Set(n)
		}),
		agent.ReflectAsyncFunc("value", func() *agent.Future[int] { return value }),
		agent.ReflectFunc("light_rpc", func() int { runs.Add(1); return 0 }),
		agent.ReflectFunc("heavy_rpc", counted(heavy)),
		agent.ReflectFunc("runs", func() int { return int(runs.Load()) }),
		agent.ReflectFunc("my_sleep_func", func(ctx context.Context, seconds float64) (int, error) {
			return 0, pauseFor(ctx, time.Duration(seconds*float64(time.Second)))
		}),
		agent.ReflectFunc("nested_rpc", nestedAdd),
		agent.ReflectFunc("my_script_func", func(x *tensor.Tensor) (*tensor.Tensor, error) { return addLocal(x, x) }),
		agent.ReflectFunc("timed_out_rpc", func(ctx context.Context) error { _, err := let.Wait(ctx); return err }),
		agent.ReflectFunc("let_go", func() error { return let.Set(true) }),
		agent.ReflectFunc("slow_add", func(ctx context.Context, x, y *tensor.Tensor) (*tensor.Tensor, error) {
			if err := pauseFor(ctx, 100*time.Millisecond); err != nil {
				return nil, err
			}
			return addLocal(x, y)
		}),
	)
}

// heavy multiplies x, a dense or sparse tensor, by 1 to 99 and divides it by 2 to 100. It returns
// an error unless each value of the result is a hundredth of that of x. x itself does not change.
func heavy(x any) error {
	first, err := floats(x)
	for i := 1; i < 100 && err == nil; i++ {
		for _, op := range []struct {
			name string
			n    int
		}{{"aten::mul", i}, {"aten::div", i + 1}} {
			if x, err = agent.One[any](operators.Call(context.Background(), op.name, []any{x, op.n}, nil)); err != nil {
				return err
			}
		}
	}
	if err != nil {
		return err
	}
	last, err := floats(x)
	if len(last) != len(first) {
		return fmt.Errorf("%d values became %d", len(first), len(last))
	}
	for i := range last {
		if math.Abs(100*last[i]-first[i]) > 1e-4*math.Abs(first[i]) {
			return fmt.Errorf("%v is no hundredth of %v", last[i], first[i])
		}
	}
	return err
}

// heavyDense returns a new dense tensor of ones as the argument of heavy: 100 by 100 as in
// PyTorch's tests, or 20 by 20 under the race detector.
func heavyDense() *tensor.Tensor { return full(1, race.Pick(100, 20), race.Pick(100, 20)) }

// floats returns a copy of the values of x, a dense tensor, or of the stored values of x, a sparse
// one, as float64. The error is not nil if x is no tensor or its dtype is neither int64 nor
// float32.
func floats(x any) (out []float64, err error) {
	if s, ok := x.(*tensor.Sparse); ok {
		x = s.Values()
	}
	t, ok := x.(*tensor.Tensor)
	if !ok {
		return nil, fmt.Errorf("a %T has no values", x)
	}
	if t.DType() == tensor.I64 {
		data, err := tensor.Data[int64](t)
		for _, v := range data {
			out = append(out, float64(v))
		}
		return out, err
	}
	data, err := tensor.Data[float32](t)
	for _, v := range data {
		out = append(out, float64(v))
	}
	return out, err
}

// nestedAdd is a handler that calls aten::add with x and y at the worker of the given rank and
// returns the sum.
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

// add calls aten::add with x and y at the worker that to addresses, and returns the sum. It fails
// the test if the call fails.
func (w worker) add(t require.TestingT, to agent.To, x, y any) any {
	sum, err := agent.One[any](w.Op(w.ctx, to, "aten::add", x, y))
	require.NoError(t, err)
	return sum
}

func TestParityAdd(t *testing.T) {
	inProcesses(t, "rpc/RpcTest.test_self_add", func(t require.TestingT, w worker) {
		later := w.OpAsync(w.ctx, w.Self().To(), "aten::add", full(1, 2, 2), 1)
		equalTensor(t, full(2, 2, 2), w.add(t, w.Self().To(), full(1, 2, 2), 1).(*tensor.Tensor))
		equalTensor(t, full(3, 2, 2), w.add(t, w.Self().To(), full(1, 2, 2), full(2, 2, 2)).(*tensor.Tensor))
		sum, err := agent.One[*tensor.Tensor](later.Wait(w.ctx))
		require.NoError(t, err)
		equalTensor(t, full(2, 2, 2), sum)
	})
	inProcesses(t, "rpc/RpcTest.test_add", func(t require.TestingT, w worker) {
		equalTensor(t, full(2, w.n, w.n), w.add(t, agent.To(w.nextName()), full(1, w.n, w.n), full(1, w.n, w.n)).(*tensor.Tensor))
	})
	inOneProcess(t, "rpc/RpcTest.test_add_with_id", func(t require.TestingT, w worker) {
		info, err := w.Worker(w.ctx, agent.To(w.nextName()))
		require.NoError(t, err)
		require.Equal(t, agent.WorkerInfo{Name: w.nextName(), Rank: w.n % parityWorld}, info)
		equalTensor(t, full(2, w.n, w.n), w.add(t, info.To(), full(1, w.n, w.n), full(1, w.n, w.n)).(*tensor.Tensor))
	})
	inOneProcess(t, "rpc/RpcTest.test_scalar_add", func(t require.TestingT, w worker) {
		equalTensor(t, full(float32(1+w.n), w.n, w.n), w.add(t, w.next(1), full(1, w.n, w.n), w.n).(*tensor.Tensor))
	})
	inOneProcess(t, "rpc/RpcTest.test_async_add", func(t require.TestingT, w worker) {
		sum, err := agent.One[*tensor.Tensor](w.OpAsync(w.ctx, w.next(1), "aten::add", full(1, w.n, w.n), full(1, w.n, w.n)).Wait(w.ctx))
		require.NoError(t, err)
		equalTensor(t, full(2, w.n, w.n), sum)
	})
	inOneProcess(t, "rpc/RpcTest.test_nonzero", func(t require.TestingT, w worker) {
		x := full(1, parityWorld, parityWorld)
		data, err := tensor.MutableData[float32](x)
		require.NoError(t, err)
		data[w.Self().Rank*(parityWorld+1)] = 0
		got, err := agent.One[*tensor.Tensor](w.Op(w.ctx, w.next(1), "aten::nonzero", x))
		require.NoError(t, err)
		var places []int64 // expected indices: all but the one on the diagonal, row by row
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
	inSimulatedTime(t, "rpc/RpcTest.test_int_callee", serveCore, func(t require.TestingT, w worker) {
		id, err := agent.One[int](w.Invoke(w.ctx, agent.Rank(w.n%parityWorld), "return_callee_id"))
		require.NoError(t, err)
		require.Equal(t, w.n%parityWorld, id)
	})
	inOneProcess(t, "rpc/RpcTest.test_multi_rpc", func(t require.TestingT, w worker) {
		for range 20 {
			equalTensor(t, full(2, 2, 2), w.add(t, w.next(1), full(1, 2, 2), full(1, 2, 2)).(*tensor.Tensor))
		}
	})
	inProcesses(t, "rpc/TensorPipeAgentRpcTest.test_multi_rpc_sparse", func(t require.TestingT, w worker) {
		for i := range 20 {
			n := int64(i + w.n)
			equalSparse(t, sparseOf(t, 6*n, 8*n, 10*n), w.add(t, w.next(1), sparseOf(t, 3*n, 4*n, 5*n), sparseOf(t, 3*n, 4*n, 5*n)))
		}
	})
	inProcesses(t, "rpc/RpcTest.test_expected_src", func(t require.TestingT, w worker) {
		_, err := w.Invoke(w.ctx, w.next(1), "set_value", w.Self().Rank)
		require.NoError(t, err)
		value, err := agent.One[int](w.Invoke(w.ctx, w.Self().To(), "value"))
		require.NoError(t, err)
		require.Equal(t, (w.Self().Rank+parityWorld-1)%parityWorld, value)
		_, err = w.Invoke(w.ctx, w.next(1), "set_value", w.n) // not this worker's rank
		require.ErrorContains(t, err, "called by "+w.Self().String())
	})
	inProcesses(t, "rpc/RpcTest.test_nested_rpc", func(t require.TestingT, w worker) {
		sum, err := agent.One[*tensor.Tensor](w.Invoke(w.ctx, w.next(1), "nested_rpc", w.Self().Rank, full(1, 2, 2), 1))
		require.NoError(t, err)
		equalTensor(t, full(2, 2, 2), sum)
	})
	inSimulatedTime(t, "rpc/TensorPipeAgentRpcTest.test_nested_rpc_sparse", serveCore, func(t require.TestingT, w worker) {
		sum, err := agent.One[any](w.Invoke(w.ctx, w.next(1), "nested_rpc", w.Self().Rank, buildSparse(t), buildSparse(t)))
		require.NoError(t, err)
		equalSparse(t, sparseOf(t, 6, 8, 10), sum)
	})
	inOneProcess(t, "rpc/RpcTest.test_future_wait_twice", func(t require.TestingT, w worker) {
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
