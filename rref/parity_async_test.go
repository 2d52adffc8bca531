package rref_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// chain is the argument of functions that call another worker.
type chain struct {
	To   string
	X    *tensor.Tensor
	Y, Z any
	N    int // of the functions that add Z several times
}

// asyncClass has asynchronous methods.
type asyncClass struct{}

func (*asyncClass) add(ctx context.Context, v chain) *agent.Future[*tensor.Tensor] {
	return addChained(ctx, v)
}

var (
	newAsyncClass = agent.NewFunc[agent.None, *asyncClass]("AsyncExecutionClass")
	asyncAdd      = agent.NewFunc[chain, *tensor.Tensor]("async_add")
	asyncCtor     = agent.NewFunc[chain, *tensor.Tensor]("async_add_with_future_ctor")
	asyncChained  = agent.NewFunc[chain, *tensor.Tensor]("async_add_chained")
	asyncNested   = agent.NewFunc[chain, *tensor.Tensor]("async_add_nested")
	asyncMulti    = agent.NewFunc[chain, *tensor.Tensor]("async_add_chained_multi")
	asyncFanout   = agent.NewFunc[chain, *tensor.Tensor]("async_add_multi_fanout")
	asyncStatic   = agent.NewFunc[chain, *tensor.Tensor]("AsyncExecutionClass.static_async_add")
	asyncClassFn  = agent.NewFunc[chain, *tensor.Tensor]("AsyncExecutionClass.class_async_add")
	asyncRaise    = agent.NewFunc[agent.None, *tensor.Tensor]("async_raise_func")
	asyncWrong    = agent.NewFunc[agent.None, *tensor.Tensor]("async_wrong_type")
	returnFuture  = agent.NewFunc[agent.None, *agent.Future[int]]("return_future")
	failOnFuture  = agent.NewFunc[*agent.Future[int], agent.None]("fail_on_fut")

	staticAdd   = rref.NewMethod[*asyncClass, chain, *tensor.Tensor]("static_async_add")
	classAdd    = rref.NewMethod[*asyncClass, chain, *tensor.Tensor]("class_async_add")
	boundAdd    = rref.NewMethod[*asyncClass, chain, *tensor.Tensor]("bound_async_add")
	wrongMethod = rref.NewMethod[*asyncClass, agent.None, int]("async_wrong_type")
)

// addAt calls the worker that v.To addresses, which computes x + y, and returns the future of the sum
// without waiting.
func addAt(ctx context.Context, to string, x, y any) *agent.Future[*tensor.Tensor] {
	return future.Then(agent.FromContext(ctx).OpAsync(ctx, agent.To(to), "aten::add", x, y), func(f *agent.Future[[]any]) (*tensor.Tensor, error) {
		return agent.One[*tensor.Tensor](f.Result())
	})
}

// addLater returns a callback that returns the value of a future plus n, or the error of the future.
func addLater(n any) func(*agent.Future[*tensor.Tensor]) (*tensor.Tensor, error) {
	return func(f *agent.Future[*tensor.Tensor]) (*tensor.Tensor, error) {
		x, err := f.Result()
		return orSum(err, nil, x, n)
	}
}

func addChained(ctx context.Context, v chain) *agent.Future[*tensor.Tensor] {
	return future.Then(addAt(ctx, v.To, v.X, v.Y), addLater(v.Z))
}

// addWithFuture returns a future of its own, which a callback of the future of a call completes.
func addWithFuture(ctx context.Context, v chain) *agent.Future[*tensor.Tensor] {
	out := future.New[*tensor.Tensor]()
	_ = addAt(ctx, v.To, v.X, v.Y).OnDone(func(f *agent.Future[*tensor.Tensor]) { // fails only for nil
		if x, err := addLater(v.Z)(f); err != nil {
			_ = out.Fail(err)
		} else {
			_ = out.Set(x)
		}
	})
	return out
}

// addFanout makes v.N concurrent calls to v.To and returns, without waiting, the future of the sum of
// their results: v.X + v.N*v.Z.
func addFanout(ctx context.Context, v chain) *agent.Future[*tensor.Tensor] {
	all := []*agent.Future[*tensor.Tensor]{addAt(ctx, v.To, v.X, v.Z)}
	for range v.N - 1 {
		all = append(all, addAt(ctx, v.To, integers([]int64{0}), v.Z))
	}
	out := future.New[*tensor.Tensor]()
	var mu sync.Mutex
	total, left := any(full(0, v.X.Shape()...)), v.N
	for _, f := range all {
		_ = f.OnDone(func(f *agent.Future[*tensor.Tensor]) { // fails only for nil
			mu.Lock()
			defer mu.Unlock()
			x, err := addLater(total)(f)
			if err != nil {
				_ = out.Fail(err)
				return
			}
			total = x
			if left--; left == 0 {
				_ = out.Set(x)
			}
		})
	}
	return out
}

// servedFutures returns the asynchronous functions.
func servedFutures() agent.Funcs {
	return agent.Funcs{
		newAsyncClass.Serve(func(context.Context, agent.None) (*asyncClass, error) { return &asyncClass{}, nil }),
		asyncAdd.ServeAsync(func(ctx context.Context, v chain) *agent.Future[*tensor.Tensor] { return addAt(ctx, v.To, v.X, v.Y) }),
		asyncCtor.ServeAsync(addWithFuture),
		asyncChained.ServeAsync(addChained),
		asyncNested.ServeAsync(func(ctx context.Context, v chain) *agent.Future[*tensor.Tensor] {
			return future.Then(asyncAdd.Go(ctx, agent.FromContext(ctx), agent.To(v.To), v), addLater(v.Z))
		}),
		asyncMulti.ServeAsync(func(ctx context.Context, v chain) *agent.Future[*tensor.Tensor] {
			f := addAt(ctx, v.To, v.X, 0)
			for range v.N {
				f = future.Then(f, addLater(v.Z))
			}
			return f
		}),
		asyncFanout.ServeAsync(addFanout),
		asyncStatic.ServeAsync(addChained),
		asyncClassFn.ServeAsync(addWithFuture),
		asyncRaise.ServeAsync(func(context.Context, agent.None) *agent.Future[*tensor.Tensor] { panic(expectedErr) }),
		asyncWrong.ServeAsync(func(context.Context, agent.None) *agent.Future[*tensor.Tensor] { return nil }),
		returnFuture.Serve(func(context.Context, agent.None) (*agent.Future[int], error) { return future.Of(1), nil }),
		failOnFuture.Serve(func(context.Context, *agent.Future[int]) (agent.None, error) { return agent.None{}, nil }),
	}
}

// chainOf returns the argument with which the next worker calls the one after it.
func (w worker) chainOf(y, z any, n int) chain { return chain{string(w.next(2)), ones(), y, z, n} }

// TestParityAsync has the next worker keep the result of an asynchronous function, which calls the
// worker after it.
func TestParityAsync(t *testing.T) {
	returns := func(f agent.Func[chain, *tensor.Tensor], y, z any, n int, want float32) script {
		return func(t require.TestingT, w worker) {
			got, err := rref.Remote(w.ctx, w.Agent, w.next(1), f, w.chainOf(y, z, n)).ToHere(w.ctx)
			require.NoError(t, err)
			requireEqual(t, full(want, 2, 2), got)
		}
	}
	inProcesses(t, "rpc/RpcTest.test_async_function_with_future_ctor_remote", returns(asyncCtor, 1, 2, 0, 4))
	inOneProcess(t, "rpc/RpcTest.test_async_function_chained_remote", returns(asyncChained, 1, 2, 0, 4))
	inOneProcess(t, "rpc/RpcTest.test_async_function_nested_remote", returns(asyncNested, 1, 2, 0, 4))
	inOneProcess(t, "rpc/RpcTest.test_async_static_method_remote", returns(asyncStatic, 1, 2, 0, 4))
	inOneProcess(t, "rpc/RpcTest.test_async_class_method_remote", returns(asyncClassFn, 1, 2, 0, 4))
	inOneProcess(t, "rpc/RpcTest.test_async_function_multi_chained_remote", returns(asyncMulti, nil, 3, 20, 61))
	inProcesses(t, "rpc/RpcTest.test_async_function_multi_fanout_remote", returns(asyncFanout, nil, 3, 20, 61))
	inOneProcess(t, "rpc/RpcTest.test_async_function_raise_remote", func(t require.TestingT, w worker) {
		f := rref.Remote(w.ctx, w.Agent, w.next(1), asyncRaise, agent.None{})
		_, err := f.ToHere(w.ctx)
		require.ErrorIs(t, err, agent.ErrPanic)
		require.ErrorContains(t, err, expectedErr)
		require.NotErrorIs(t, err, rref.ErrCreation)
	})
	inOneProcess(t, "rpc/RpcTest.test_async_function_wrong_return_type_remote", func(t require.TestingT, w worker) {
		_, err := rref.Remote(w.ctx, w.Agent, w.next(1), asyncWrong, agent.None{}).ToHere(w.ctx)
		require.ErrorIs(t, err, agent.ErrResult)
		require.ErrorContains(t, err, "the asynchronous function returned no future")
	})
	inOneProcess(t, "rpc/RpcTest.test_return_future_remote", func(t require.TestingT, w worker) {
		_, err := rref.RemoteInvoke[int](w.ctx, w.Agent, w.next(1), returnFuture.Name()).ToHere(w.ctx)
		require.ErrorIs(t, err, agent.ErrFuture)
		_, err = rref.Remote(w.ctx, w.Agent, w.next(1), agent.NewFunc[agent.None, int](returnFuture.Name()), agent.None{}).ToHere(w.ctx)
		require.ErrorIs(t, err, agent.ErrFuture)
	})
	inOneProcess(t, "rpc/RpcTest.test_pickle_future", func(t require.TestingT, w worker) {
		f := rref.Remote(w.ctx, w.Agent, w.next(1), failOnFuture, future.New[int]())
		_, created := f.Created().Wait(w.ctx)
		_, fetched := f.ToHere(w.ctx)
		for _, err := range []error{created, fetched} {
			require.ErrorIs(t, err, rref.ErrCreation)
			require.ErrorIs(t, err, agent.ErrFuture)
			require.ErrorIs(t, err, agent.ErrArguments)
			require.ErrorContains(t, err, "a future cannot be encoded")
		}
	})
}

// TestParityAsyncMethods calls asynchronous methods of a value of the next worker.
func TestParityAsyncMethods(t *testing.T) {
	adds := func(call func(w worker, m rref.Method[*asyncClass, chain, *tensor.Tensor], f *rref.Ref[*asyncClass], v chain) (*tensor.Tensor, error)) script {
		return func(t require.TestingT, w worker) {
			f := rref.Remote(w.ctx, w.Agent, w.next(1), newAsyncClass, agent.None{})
			total := any(full(0, 2, 2))
			for _, m := range []rref.Method[*asyncClass, chain, *tensor.Tensor]{staticAdd, classAdd, boundAdd} {
				x, err := call(w, m, f, w.chainOf(ones(), full(2, 2, 2), 0))
				require.NoError(t, err)
				requireEqual(t, full(4, 2, 2), x)
				total, err = sum[any](total, x)
				require.NoError(t, err)
			}
			requireEqual(t, full(3*4, 2, 2), total)
			_, err := wrongMethod.Call(w.ctx, f, agent.None{})
			require.ErrorIs(t, err, agent.ErrResult)
			require.ErrorContains(t, err, "the asynchronous method returned no future")
		}
	}
	type method = rref.Method[*asyncClass, chain, *tensor.Tensor]
	inOneProcess(t, "rpc/RpcTest.test_async_class_rref_proxy", adds(func(w worker, m method, f *rref.Ref[*asyncClass], v chain) (*tensor.Tensor, error) {
		return m.Call(w.ctx, f, v)
	}))
	inOneProcess(t, "rpc/RpcTest.test_async_class_rref_proxy_async", adds(func(w worker, m method, f *rref.Ref[*asyncClass], v chain) (*tensor.Tensor, error) {
		return m.Go(w.ctx, f, v).Wait(w.ctx)
	}))
	inProcesses(t, "rpc/RpcTest.test_async_class_rref_proxy_remote", adds(func(w worker, m method, f *rref.Ref[*asyncClass], v chain) (*tensor.Tensor, error) {
		return m.Remote(w.ctx, f, v).ToHere(w.ctx)
	}))
}
