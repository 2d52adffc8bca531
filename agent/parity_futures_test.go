package agent_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// chain is the argument of functions that call another worker.
type chain struct {
	To   string
	X    *tensor.Tensor
	Y, Z int
}

var (
	addUseFuture    = agent.NewFunc[chain, *tensor.Tensor]("add_use_future")
	asyncAdd        = agent.NewFunc[chain, *tensor.Tensor]("async_add")
	asyncCtor       = agent.NewFunc[chain, *tensor.Tensor]("async_add_with_future_ctor")
	asyncChained    = agent.NewFunc[chain, *tensor.Tensor]("async_add_chained")
	asyncNested     = agent.NewFunc[chain, *tensor.Tensor]("async_add_nested")
	multiChained    = agent.NewFunc[chain, *tensor.Tensor]("async_add_chained_multi")
	multiFanout     = agent.NewFunc[chain, *tensor.Tensor]("async_add_multi_fanout")
	asyncRaise      = agent.NewFunc[agent.None, *tensor.Tensor]("async_raise_func")
	asyncWrong      = agent.NewFunc[agent.None, *tensor.Tensor]("async_wrong_type")
	setResult       = agent.NewFunc[chain, *tensor.Tensor]("add_use_future_set_result")
	nestedCallback  = agent.NewFunc[chain, *tensor.Tensor]("add_use_future_nested_cb")
	returnFuture    = agent.NewFunc[agent.None, *agent.Future[int]]("return_future")
	failOnFuture    = agent.NewFunc[holdsFuture, agent.None]("fail_on_fut")
	static, classed = agent.NewFunc[chain, *tensor.Tensor]("AsyncExecutionClass.StaticAsyncAdd"), agent.NewFunc[chain, *tensor.Tensor]("AsyncExecutionClass.ClassAsyncAdd")
)

type holdsFuture struct {
	N    int
	Deep []map[string]*agent.Future[int]
}

// asyncClass has asynchronous methods.
type asyncClass struct{}

func (asyncClass) StaticAsyncAdd(ctx context.Context, c chain) *agent.Future[*tensor.Tensor] {
	return addChained(ctx, c)
}

func (*asyncClass) ClassAsyncAdd(ctx context.Context, c chain) *agent.Future[*tensor.Tensor] {
	return addWithFuture(ctx, c)
}

// opAsync calls an operator at the worker that to addresses, and returns the future of its only
// result, without waiting. The future fails if the result is no single tensor.
func opAsync(ctx context.Context, a *agent.Agent, to agent.To, name string, args ...any) *agent.Future[*tensor.Tensor] {
	return future.Then(a.OpAsync(ctx, to, name, args...), func(f *agent.Future[[]any]) (*tensor.Tensor, error) {
		return agent.One[*tensor.Tensor](f.Result())
	})
}

// plus returns a callback that returns the value of a future plus n, or the error of the future.
func plus(n int) func(*agent.Future[*tensor.Tensor]) (*tensor.Tensor, error) {
	return func(f *agent.Future[*tensor.Tensor]) (*tensor.Tensor, error) {
		x, err := f.Result()
		if err != nil {
			return nil, err
		}
		return compute("aten::add", x, n)
	}
}

// addRemote calls the worker c.To, which computes c.X + c.Y, and returns the future of the sum
// without waiting.
func addRemote(ctx context.Context, c chain) *agent.Future[*tensor.Tensor] {
	return opAsync(ctx, agent.FromContext(ctx), agent.To(c.To), "aten::add", c.X, c.Y)
}

func addChained(ctx context.Context, c chain) *agent.Future[*tensor.Tensor] {
	return future.Then(addRemote(ctx, c), plus(c.Z))
}

// addWithFuture returns a future of its own. When the call of addRemote is done, a callback sets
// that future to the sum plus c.Z, or fails it with the error of the call.
func addWithFuture(ctx context.Context, c chain) *agent.Future[*tensor.Tensor] {
	out := future.New[*tensor.Tensor]()
	err := addRemote(ctx, c).OnDone(func(f *agent.Future[*tensor.Tensor]) {
		if x, err := plus(c.Z)(f); err != nil {
			_ = out.Fail(err)
		} else {
			_ = out.Set(x)
		}
	})
	if err != nil {
		return future.Failed[*tensor.Tensor](err)
	}
	return out
}

func addNested(ctx context.Context, c chain) *agent.Future[*tensor.Tensor] {
	inner := asyncAdd.Go(ctx, agent.FromContext(ctx), agent.To(c.To), c)
	return future.Then(inner, plus(c.Z))
}

// addChainedMulti adds c.Z to c.X c.Y times, in a chain of c.Y callbacks after a call to c.To, and
// returns the future of the result without waiting.
func addChainedMulti(ctx context.Context, c chain) *agent.Future[*tensor.Tensor] {
	f := opAsync(ctx, agent.FromContext(ctx), agent.To(c.To), "aten::add", c.X, 0)
	for range c.Y {
		f = future.Then(f, plus(c.Z))
	}
	return f
}

// addFanout makes c.Y concurrent calls to c.To and returns, without waiting, the future of the sum
// of their results: c.X + c.Y*c.Z.
func addFanout(ctx context.Context, c chain) *agent.Future[*tensor.Tensor] {
	out := future.New[*tensor.Tensor]()
	var mu sync.Mutex
	sum, left := full(0, c.X.Shape()...), c.Y
	for i := range c.Y {
		x := c.X
		if i > 0 {
			x = integer(0)
		}
		_ = opAsync(ctx, agent.FromContext(ctx), agent.To(c.To), "aten::add", x, c.Z).OnDone(func(f *agent.Future[*tensor.Tensor]) {
			mu.Lock()
			defer mu.Unlock()
			part, err := f.Result()
			if err == nil {
				sum, err = addLocal(sum, part)
			}
			if err != nil {
				_ = out.Fail(err)
				return
			}
			if left--; left == 0 {
				_ = out.Set(sum)
			}
		})
	}
	return out
}

// synchronous returns a function that calls fn, blocks until the future is done or ctx ends, and
// returns the result or the error.
func synchronous(fn func(context.Context, chain) *agent.Future[*tensor.Tensor]) func(context.Context, chain) (*tensor.Tensor, error) {
	return func(ctx context.Context, c chain) (*tensor.Tensor, error) { return fn(ctx, c).Wait(ctx) }
}

// addUseCallback calls addRemote and blocks until a callback has added c.Z to the sum. It returns
// that result, the error of the call, or the cause of ctx if ctx ends first.
func addUseCallback(ctx context.Context, c chain) (*tensor.Tensor, error) {
	computed, failed := make(chan *tensor.Tensor, 1), make(chan error, 1)
	err := addRemote(ctx, c).OnDone(func(f *agent.Future[*tensor.Tensor]) {
		if x, err := plus(c.Z)(f); err != nil {
			failed <- err
		} else {
			computed <- x
		}
	})
	if err != nil {
		return nil, err
	}
	select {
	case x := <-computed:
		return x, nil
	case err := <-failed:
		return nil, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// callbackInCallback makes a call in the callback of another call. The callback of the second call
// sets the future that callbackInCallback has returned, to c.X + c.Y + c.Z or to the error.
func callbackInCallback(ctx context.Context, c chain) *agent.Future[*tensor.Tensor] {
	out := future.New[*tensor.Tensor]()
	set := func(f *agent.Future[*tensor.Tensor]) {
		if x, err := f.Result(); err != nil {
			_ = out.Fail(err)
		} else {
			_ = out.Set(x)
		}
	}
	err := addRemote(ctx, c).OnDone(func(f *agent.Future[*tensor.Tensor]) {
		x, err := f.Result()
		if err != nil {
			_ = out.Fail(err)
			return
		}
		_ = opAsync(ctx, agent.FromContext(ctx), agent.To(c.To), "aten::add", x, c.Z).OnDone(set)
	})
	if err != nil {
		return future.Failed[*tensor.Tensor](err)
	}
	return out
}

// servedFutures returns the functions of the parity tests that use futures.
func servedFutures() agent.Funcs {
	all := agent.Funcs{
		addUseFuture.Serve(addUseCallback),
		setResult.Serve(synchronous(addWithFuture)),
		nestedCallback.Serve(synchronous(callbackInCallback)),
		asyncAdd.ServeAsync(addRemote),
		asyncCtor.ServeAsync(addWithFuture),
		asyncChained.ServeAsync(addChained),
		asyncNested.ServeAsync(addNested),
		multiChained.ServeAsync(addChainedMulti),
		multiFanout.ServeAsync(addFanout),
		asyncRaise.ServeAsync(func(context.Context, agent.None) *agent.Future[*tensor.Tensor] { panic(expectedErr) }),
		asyncWrong.ServeAsync(func(context.Context, agent.None) *agent.Future[*tensor.Tensor] { return nil }),
		agent.ReflectAsyncFunc("async_fail_func", func() *agent.Future[int] { return future.Failed[int](errQuota) }),
		returnFuture.Serve(func(context.Context, agent.None) (*agent.Future[int], error) { return future.Of(1), nil }),
		agent.ReflectFunc("return_any_future", func() any { return future.Of(1) }),
		failOnFuture.Serve(func(context.Context, holdsFuture) (agent.None, error) { return agent.None{}, nil }),
		agent.ReflectFunc("raise_or_inc", func(x *tensor.Tensor) (*tensor.Tensor, error) {
			if x.Len() == 2 {
				return nil, errors.New(expectedErr)
			}
			return compute("aten::add", x, 1)
		}),
	}
	return append(all, agent.Methods("AsyncExecutionClass", &asyncClass{})...)
}

// mode makes a call, blocking or with a future.
type mode func(w worker, f agent.Func[chain, *tensor.Tensor], to agent.To, c chain) (*tensor.Tensor, error)

func inSync(w worker, f agent.Func[chain, *tensor.Tensor], to agent.To, c chain) (*tensor.Tensor, error) {
	return f.Call(w.ctx, w.Agent, to, c)
}

func inAsync(w worker, f agent.Func[chain, *tensor.Tensor], to agent.To, c chain) (*tensor.Tensor, error) {
	return f.Go(w.ctx, w.Agent, to, c).Wait(w.ctx)
}

// forwardArgs returns arguments with which the handler at the next worker calls the worker after
// it. X is a new 2 by 2 tensor of ones.
func (w worker) forwardArgs(y, z int) chain {
	return chain{To: string(w.next(2)), X: full(1, 2, 2), Y: y, Z: z}
}

// requireSum returns a script that calls f at the next worker, in the given mode, with
// forwardArgs(y, z), and requires a 2 by 2 tensor whose elements are want.
func requireSum(f agent.Func[chain, *tensor.Tensor], call mode, y, z int, want float32) script {
	return func(t require.TestingT, w worker) {
		got, err := call(w, f, w.next(1), w.forwardArgs(y, z))
		require.NoError(t, err)
		equalTensor(t, full(want, 2, 2), got)
	}
}

func TestParityFutures(t *testing.T) {
	inOneProcess(t, "rpc/RpcTest.test_mark_future_twice", func(t require.TestingT, w worker) {
		f := opAsync(w.ctx, w.Agent, w.next(1), "aten::add", full(0, 2, 2), 1)
		requireValue(t, w, f, full(1, 2, 2))
		require.ErrorIs(t, f.Set(full(5, 2, 2)), future.ErrDone)
		require.ErrorIs(t, f.Fail(errQuota), future.ErrDone)
		requireValue(t, w, f, full(1, 2, 2))
		call := asyncAdd.Go(w.ctx, w.Agent, w.next(1), w.forwardArgs(1, 0))
		requireValue(t, w, call, full(2, 2, 2))
		require.ErrorIs(t, call.Set(nil), future.ErrDone)
		requireValue(t, w, call, full(2, 2, 2))
	})
	inOneProcess(t, "rpc/RpcTest.test_pickle_future", func(t require.TestingT, w worker) {
		arg := holdsFuture{Deep: []map[string]*agent.Future[int]{{"x": future.New[int]()}}}
		_, sync := failOnFuture.Call(w.ctx, w.Agent, w.next(1), arg)
		_, async := failOnFuture.Go(w.ctx, w.Agent, w.next(1), arg).Wait(w.ctx)
		_, named := w.Invoke(w.ctx, w.next(1), "identity", future.New[int]())
		_, namedAsync := w.InvokeAsync(w.ctx, w.next(1), "identity", future.New[int]()).Wait(w.ctx)
		for _, err := range []error{sync, async, named, namedAsync} {
			require.ErrorIs(t, err, agent.ErrFuture)
			require.ErrorIs(t, err, agent.ErrArguments)
			require.ErrorContains(t, err, "a future cannot be encoded")
		}
		require.ErrorContains(t, sync, "holdsFuture.Deep[][]")
		require.ErrorContains(t, named, "Args[0]")
	})
	inOneProcess(t, "rpc/RpcTest.test_future_done", func(t require.TestingT, w worker) {
		f := opAsync(w.ctx, w.Agent, w.next(1), "aten::add", full(0, 2), 1)
		requireValue(t, w, f, full(1, 2))
		require.True(t, f.IsDone())
	})
	inProcesses(t, "rpc/RpcTest.test_future_done_exception", func(t require.TestingT, w worker) {
		f := w.InvokeAsync(w.ctx, w.next(1), "raise_func")
		_, err := f.Wait(w.ctx)
		require.ErrorContains(t, err, expectedErr)
		require.True(t, f.IsDone())
		require.Equal(t, err, f.Err())
	})
	returns := func(call func(w worker, name string) error) script {
		return func(t require.TestingT, w worker) {
			for _, name := range []string{"return_future", "return_any_future"} {
				err := call(w, name)
				require.ErrorIs(t, err, agent.ErrFuture)
				require.ErrorIs(t, err, agent.ErrResult)
				require.ErrorContains(t, err, name+" on worker")
			}
		}
	}
	inOneProcess(t, "rpc/RpcTest.test_return_future", returns(func(w worker, name string) error {
		_, err := w.Invoke(w.ctx, w.next(1), name)
		return err
	}))
	inOneProcess(t, "rpc/RpcTest.test_return_future_async", returns(func(w worker, name string) error {
		_, err := agent.NewFunc[agent.None, int](name).Go(w.ctx, w.Agent, w.next(1), agent.None{}).Wait(w.ctx)
		return err
	}))
}

func TestParityAsyncFunctions(t *testing.T) {
	raises := func(call func(w worker, name string) error) script {
		return func(t require.TestingT, w worker) {
			err := call(w, "async_raise_func")
			require.ErrorIs(t, err, agent.ErrPanic)
			require.ErrorContains(t, err, expectedErr)
			require.ErrorIs(t, call(w, "async_fail_func"), errQuota)
		}
	}
	wrong := func(call func(w worker, name string) error) script {
		return func(t require.TestingT, w worker) {
			err := call(w, "async_wrong_type")
			require.ErrorIs(t, err, agent.ErrResult)
			require.ErrorContains(t, err, "the asynchronous function returned no future")
			_, err = agent.Join(w.ctx, agent.Config{
				Name: "alone", WorldSize: 1, Rendezvous: "mem://",
				Funcs: agent.Funcs{agent.ReflectAsyncFunc("async_wrong_type", func() *tensor.Tensor { return nil })},
			})
			require.ErrorIs(t, err, agent.ErrConfig)
			require.ErrorContains(t, err, "async_wrong_type: an asynchronous function must return a *Future")
		}
	}
	sync := func(w worker, name string) error {
		_, err := w.Invoke(w.ctx, w.next(1), name)
		return err
	}
	async := func(w worker, name string) error {
		_, err := w.InvokeAsync(w.ctx, w.next(1), name).Wait(w.ctx)
		return err
	}
	inOneProcess(t, "rpc/RpcTest.test_async_function_raise", raises(sync))
	inOneProcess(t, "rpc/RpcTest.test_async_function_raise_async", raises(async))
	inOneProcess(t, "rpc/RpcTest.test_async_function_wrong_return_type", wrong(sync))
	inOneProcess(t, "rpc/RpcTest.test_async_function_wrong_return_type_async", wrong(async))
	inProcesses(t, "rpc/RpcTest.test_async_function_simple", requireSum(asyncAdd, inSync, 1, 0, 2))
	inOneProcess(t, "rpc/RpcTest.test_async_function_with_future_ctor", requireSum(asyncCtor, inSync, 1, 2, 4))
	inProcesses(t, "rpc/RpcTest.test_async_function_chained", requireSum(asyncChained, inSync, 1, 2, 4))
	inProcesses(t, "rpc/RpcTest.test_async_function_nested", requireSum(asyncNested, inSync, 1, 2, 4))
	inOneProcess(t, "rpc/RpcTest.test_async_static_method", requireSum(static, inSync, 1, 2, 4))
	inOneProcess(t, "rpc/RpcTest.test_async_class_method", requireSum(classed, inSync, 1, 2, 4))
	inOneProcess(t, "rpc/RpcTest.test_async_function_multi_chained", requireSum(multiChained, inSync, 20, 3, 61))
	inOneProcess(t, "rpc/RpcTest.test_async_function_multi_chained_async", requireSum(multiChained, inAsync, 20, 3, 61))
	inProcesses(t, "rpc/RpcTest.test_async_function_multi_fanout", requireSum(multiFanout, inSync, 20, 3, 61))
	inOneProcess(t, "rpc/RpcTest.test_async_function_multi_fanout_async", requireSum(multiFanout, inAsync, 20, 3, 61))
}
