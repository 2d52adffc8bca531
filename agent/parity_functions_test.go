package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/loglines"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

type abc struct{ A, B, C int }

var myFunction = agent.NewFunc[abc, int]("my_function")

// myClass is a type of the application.
type myClass struct {
	A int
	T *tensor.Tensor
}

func newMyClass(a int) myClass                  { return myClass{A: a, T: full(float32(a), 2)} }
func (m myClass) MyInstanceMethod(b int) int    { return m.A + b }
func (m *myClass) IncrementValue(increment int) { m.A += increment }
func (m *myClass) GetValue() int                { return m.A }
func myStaticMethod(f int) bool                 { return f > 10 }

// classMethods has a method that is a class method in PyTorch.
type classMethods struct{}

func (classMethods) MyClassMethod(d, e int) int { return d + e }

// tensorClass has nested tensors, some of which are the same.
type tensorClass struct {
	A *tensor.Tensor
	B []*tensor.Tensor
	C [][]*tensor.Tensor
	D []any
	E map[string][]any
}

func buildComplexTensors() tensorClass {
	a := full(1, 3, 3)
	b := []*tensor.Tensor{a, a}
	d := []any{a, b}
	return tensorClass{A: a, B: b, C: [][]*tensor.Tensor{b, b}, D: d, E: map[string][]any{"a": d}}
}

// nested encodes itself as a call with tensor arguments.
type nested struct{ T *tensor.Tensor }

func (n nested) AppendTensorpipe(e *codec.Encoder) error {
	e.WriteString("aten::add")
	return e.Encode(&[]*tensor.Tensor{full(1, 2, 2), n.T})
}

func (n *nested) ParseTensorpipe(d *codec.Decoder) error {
	name, err := d.ReadString()
	if err != nil {
		return err
	}
	var args []*tensor.Tensor
	if err := d.Decode(&args); err != nil {
		return err
	}
	if len(args) != 2 {
		return fmt.Errorf("%d arguments", len(args))
	}
	n.T, err = compute(name, args[0], args[1])
	return err
}

var operators = aten.Default()

// compute runs an operator of this process with args, without a call, and returns its only result.
func compute(name string, args ...any) (*tensor.Tensor, error) {
	return agent.One[*tensor.Tensor](operators.Call(context.Background(), name, args, nil))
}

func addLocal(x, y *tensor.Tensor) (*tensor.Tensor, error) { return compute("aten::add", x, y) }

func complexTensors(list []*tensor.Tensor, c tensorClass, named map[string]*tensor.Tensor) (res *tensor.Tensor, a *tensor.Tensor, b []*tensor.Tensor, cc tensorClass, err error) {
	if c.B[0] != c.A || c.C[1][1] != c.A || c.D[0] != any(c.A) || c.E["a"][1].([]*tensor.Tensor)[0] != c.A {
		return nil, nil, nil, c, errors.New("what was one tensor is several")
	}
	res = list[0]
	for _, x := range append(list[:len(list):len(list)], named["foo"], named["bar"]) {
		if res, err = addLocal(res, x); err != nil {
			return nil, nil, nil, c, err
		}
	}
	return res, c.A, c.B, c, nil
}

func nonContiguous(view, dense *tensor.Tensor) (*tensor.Tensor, error) {
	same, err := tensor.Equal(view, dense)
	if err != nil || view.IsContiguous() || !dense.IsContiguous() || !same {
		return nil, fmt.Errorf("view %v, dense %v, the same: %v (%v)", view.IsContiguous(), dense.IsContiguous(), same, err)
	}
	return view, nil
}

func sumSparse(list []*tensor.Sparse) (any, error) {
	sum, err := operators.Call(context.Background(), "aten::add", []any{list[0], list[1]}, nil)
	if err != nil {
		return nil, err
	}
	return sum[0], nil
}

// callChains counts the chains of calls that end at one worker. Callers do not wait for them.
type callChains struct {
	ended  atomic.Int32
	broken atomic.Pointer[error]
}

// nestCall continues a chain of calls: it calls the worker of the given rank, whose handler calls
// the next one, until ttl calls have been made. It returns ttl without waiting for the call. If ttl
// is 0, it only counts the chain as ended. The last error of a call is stored in l.
func (l *callChains) nestCall(ctx context.Context, a *agent.Agent, rank, ttl int) int {
	if ttl == 0 {
		l.ended.Add(1)
		return 0
	}
	// The call continues after the handler and its context have ended.
	later := a.InvokeAsync(context.WithoutCancel(ctx), agent.Rank(rank), "multi_layer", (rank+1)%parityWorld, ttl-1)
	_ = later.OnDone(func(f *agent.Future[[]any]) { // OnDone fails only for nil
		if err := f.Err(); err != nil {
			l.broken.Store(&err)
		}
	})
	return ttl
}

const expectedErr = "Expected error"

func raiseFunc() error       { return errors.New(expectedErr) }
func raiseEscaped() error    { return errors.New(verbatim) }
func raiseCustom() error     { return &unregisteredError{true, "foo"} }
func raiseKnown() error      { return fmt.Errorf("x: %w", &codeError{1, "known"}) }
func raiseSentinel() error   { return fmt.Errorf("x: %w", errQuota) }
func identity(value any) any { return value }

// unregisteredError is a type that is registered only at the worker that returns it.
type unregisteredError struct {
	Flag bool
	Msg  string
}

func (e *unregisteredError) Error() string { return "CustomException: " + e.Msg }

// serveParity is a configure function for startGroup: it gives the worker a registry with the types
// of the parity tests and makes the worker serve their functions. Only the worker of rank 0 serves
// foo_add.
func serveParity(rank int, c *agent.Config) {
	c.Registry = parityRegistry()
	c.Funcs = agent.Funcs{
		agent.ReflectFunc("identity", identity),
		agent.ReflectFunc("min", func(first int, others ...int) int {
			for _, n := range others {
				first = min(first, n)
			}
			return first
		}),
		myFunction.Serve(func(_ context.Context, v abc) (int, error) { return v.A + v.B + v.C, nil }),
		agent.ReflectFunc("MyClass", newMyClass),
		agent.ReflectFunc("MyClass.my_instance_method", myClass.MyInstanceMethod),
		agent.ReflectFunc("MyClass.my_static_method", myStaticMethod),
		agent.ReflectFunc("no_result", func() {}),
		agent.ReflectFunc("my_tensor_function", addLocal, agent.WithShort()),
		agent.ReflectFunc("my_complex_tensor_function", complexTensors),
		agent.ReflectFunc("run_nested_pickle", func(n *nested, x *tensor.Tensor) (*tensor.Tensor, error) { return addLocal(n.T, x) }),
		agent.ReflectFunc("raise_func", raiseFunc),
		agent.ReflectFunc("raise_func_escape", raiseEscaped),
		agent.ReflectFunc("custom_raise_func", raiseCustom),
		agent.ReflectFunc("known_raise_func", raiseKnown),
		agent.ReflectFunc("sentinel_raise_func", raiseSentinel),
		agent.ReflectFunc("non_cont_test", nonContiguous),
		agent.ReflectFunc("my_container_sum", sumSparse),
	}
	c.Funcs = append(c.Funcs, agent.Methods("MyClass", classMethods{})...)
	c.Funcs = append(c.Funcs, agent.Methods("mine", &myClass{A: 2})...)
	c.Funcs = append(c.Funcs, servedFutures()...)
	if rank == 0 {
		c.Funcs = append(c.Funcs, agent.ReflectFunc("foo_add", func() int { return 3 }))
	}
}

func TestParityFunctions(t *testing.T) {
	inProcesses(t, "rpc/RpcTest.test_worker_info_pickle", func(t require.TestingT, w worker) {
		got, err := w.Invoke(w.ctx, w.next(1), "identity", w.Self())
		require.NoError(t, err)
		require.Equal(t, []any{w.Self()}, got)
	})
	inOneProcess(t, "rpc/RpcTest.test_py_built_in", func(t require.TestingT, w worker) {
		got, err := w.Invoke(w.ctx, w.next(1), "min", w.n, w.n+1, w.n+2)
		require.NoError(t, err)
		require.Equal(t, []any{w.n}, got)
		got, err = w.Invoke(w.ctx, w.next(1), "min", w.n+2, w.n+1, w.n)
		require.NoError(t, err)
		require.Equal(t, []any{w.n}, got)
	})
	inProcesses(t, "rpc/RpcTest.test_py_user_defined", func(t require.TestingT, w worker) {
		got, err := w.Invoke(w.ctx, w.next(1), "my_function", agent.Named{"A": w.n, "B": w.n + 1, "C": w.n + 2})
		require.NoError(t, err)
		require.Equal(t, []any{3*w.n + 3}, got)
		sum, err := myFunction.Call(w.ctx, w.Agent, w.next(1), abc{A: w.n, B: w.n + 1, C: w.n + 2})
		require.NoError(t, err)
		require.Equal(t, 3*w.n+3, sum)
	})
	inProcesses(t, "rpc/RpcTest.test_py_class_constructor", func(t require.TestingT, w worker) {
		got, err := agent.One[myClass](w.Invoke(w.ctx, w.next(1), "MyClass", w.n))
		require.NoError(t, err)
		require.Equal(t, w.n, got.A)
		equalTensor(t, full(float32(w.n), 2), got.T)
	})
	inOneProcess(t, "rpc/RpcTest.test_py_class_instance_method", func(t require.TestingT, w worker) {
		got, err := w.Invoke(w.ctx, w.next(1), "MyClass.my_instance_method", newMyClass(2), w.n)
		require.NoError(t, err)
		require.Equal(t, []any{2 + w.n}, got, "of a value that travels")
		got, err = w.Invoke(w.ctx, w.next(1), "mine.MyInstanceMethod", w.n)
		require.NoError(t, err)
		require.Equal(t, []any{2 + w.n}, got, "of a value that is there")
		_, err = w.Invoke(w.ctx, w.next(1), "mine.IncrementValue", w.n)
		require.NoError(t, err)
		got, err = w.Invoke(w.ctx, w.next(1), "mine.GetValue")
		require.NoError(t, err)
		require.Equal(t, []any{2 + w.n}, got, "which changes")
	})
	inOneProcess(t, "rpc/RpcTest.test_py_class_method", func(t require.TestingT, w worker) {
		got, err := w.Invoke(w.ctx, w.next(1), "MyClass.MyClassMethod", w.n, w.n+1)
		require.NoError(t, err)
		require.Equal(t, []any{2*w.n + 1}, got)
	})
	inOneProcess(t, "rpc/RpcTest.test_py_class_static_method", func(t require.TestingT, w worker) {
		for arg, want := range map[int]bool{w.n + 10: true, w.n: false} {
			got, err := w.Invoke(w.ctx, w.next(1), "MyClass.my_static_method", arg)
			require.NoError(t, err)
			require.Equal(t, []any{want}, got)
		}
	})
	inProcesses(t, "rpc/RpcTest.test_py_multi_async_call", func(t require.TestingT, w worker) {
		info := agent.WorkerInfo{Name: w.nextName(), Rank: w.n % parityWorld}
		one := w.InvokeAsync(w.ctx, info.To(), "MyClass.my_static_method", w.n+10)
		two := w.InvokeAsync(w.ctx, info.To(), "min", w.n, w.n+1, w.n+2)
		got, err := one.Wait(w.ctx)
		require.NoError(t, err)
		require.Equal(t, []any{true}, got)
		got, err = two.Wait(w.ctx)
		require.NoError(t, err)
		require.Equal(t, []any{w.n}, got)
	})
	inOneProcess(t, "rpc/RpcTest.test_py_no_return_result", func(t require.TestingT, w worker) {
		got, err := w.Invoke(w.ctx, w.next(1), "no_result")
		require.NoError(t, err)
		require.Equal(t, []any{}, got)
		_, err = agent.NewFunc[agent.None, agent.None]("no_result").Call(w.ctx, w.Agent, w.next(1), agent.None{})
		require.NoError(t, err)
	})
	inOneProcess(t, "rpc/RpcTest.test_py_function_exception", func(t require.TestingT, w worker) {
		_, err := w.Invoke(w.ctx, w.next(1), "no_result", 10)
		require.ErrorIs(t, err, agent.ErrArguments)
		require.ErrorContains(t, err, "no_result on "+w.nextName()+": wrong arguments: the function takes no arguments, got (int)")
		_, err = w.Invoke(w.ctx, w.next(1), "my_tensor_function", full(1, 1), 5)
		require.ErrorContains(t, err, "the function takes (*tensor.Tensor, *tensor.Tensor): argument 1 is int, want *tensor.Tensor")
	})
	inOneProcess(t, "rpc/TensorPipeAgentRpcTest.test_op_with_invalid_args", func(t require.TestingT, w worker) {
		_, err := w.Op(w.ctx, w.next(1), "aten::add")
		require.ErrorIs(t, err, agent.ErrArguments)
		require.ErrorContains(t, err, "aten::add on "+w.nextName()+": ")
		require.ErrorContains(t, err, "aten::add: no overload takes ()")
		var remote *agent.RemoteError
		require.ErrorAs(t, err, &remote)
	})
}

func TestParityTensors(t *testing.T) {
	inProcesses(t, "rpc/RpcTest.test_py_tensors", func(t require.TestingT, w worker) {
		got, err := agent.One[*tensor.Tensor](w.Invoke(w.ctx, w.next(1), "my_tensor_function", full(1, w.n, w.n), full(1, w.n, w.n)))
		require.NoError(t, err)
		equalTensor(t, full(2, w.n, w.n), got)
	})
	inProcesses(t, "rpc/RpcTest.test_py_tensors_multi_async_call", func(t require.TestingT, w worker) {
		var all []*agent.Future[[]any]
		for i := range 100 {
			all = append(all, w.InvokeAsync(w.ctx, w.next(1), "my_tensor_function", full(1, i, i), full(float32(i), i, i)))
		}
		for i, later := range all {
			got, err := agent.One[*tensor.Tensor](later.Wait(w.ctx))
			require.NoError(t, err)
			equalTensor(t, full(float32(1+i), i, i), got)
		}
	})
	inProcesses(t, "rpc/RpcTest.test_py_tensors_in_container", func(t require.TestingT, w worker) {
		list := []*tensor.Tensor{full(1, w.n, w.n), full(2, w.n, w.n)}
		named := map[string]*tensor.Tensor{"foo": full(3, w.n, w.n), "bar": full(4, w.n, w.n)}
		got, err := w.Invoke(w.ctx, w.next(1), "my_complex_tensor_function", list, buildComplexTensors(), named)
		require.NoError(t, err)
		require.Len(t, got, 4)
		equalTensor(t, full(1+1+2+3+4, w.n, w.n), got[0].(*tensor.Tensor))
		a, c := got[1].(*tensor.Tensor), got[3].(tensorClass)
		equalTensor(t, full(1, 3, 3), a)
		require.Same(t, a, c.A)
		requireTwice := func(list []*tensor.Tensor) {
			require.Len(t, list, 2)
			require.Same(t, a, list[0])
			require.Same(t, a, list[1])
		}
		requireTwice(got[2].([]*tensor.Tensor))
		requireTwice(c.B)
		require.Len(t, c.C, 2)
		requireTwice(c.C[0])
		requireTwice(c.C[1])
		require.Len(t, c.E, 1)
		for _, d := range [][]any{c.D, c.E["a"]} {
			require.Len(t, d, 2)
			require.Same(t, a, d[0])
			requireTwice(d[1].([]*tensor.Tensor))
		}
	})
	inOneProcess(t, "rpc/TensorPipeAgentRpcTest.test_py_sparse_tensors_in_container", func(t require.TestingT, w worker) {
		got, err := agent.One[any](w.Invoke(w.ctx, w.next(1), "my_container_sum", []*tensor.Sparse{buildSparse(t), sparseOf(t, 10, 20, 30)}))
		require.NoError(t, err)
		equalSparse(t, sparseOf(t, 13, 24, 35), got)
	})
	inOneProcess(t, "rpc/RpcTest.test_py_nested_pickle", func(t require.TestingT, w worker) {
		got, err := agent.One[*tensor.Tensor](w.Invoke(w.ctx, w.next(1), "run_nested_pickle", &nested{full(5, 2, 2)}, full(1, 2, 2)))
		require.NoError(t, err)
		equalTensor(t, full(1+5+1, 2, 2), got)
	})
	inProcesses(t, "rpc/RpcTest.test_non_cont_tensors", func(t require.TestingT, w worker) {
		var values []float32
		for i := range 25 {
			values = append(values, float32(i*w.n))
		}
		whole, err := tensor.FromSlice(values, 5, 5)
		require.NoError(t, err)
		view, err := whole.Narrow(1, 2, 2)
		require.NoError(t, err)
		dense, err := view.Contiguous()
		require.NoError(t, err)
		got, err := agent.One[*tensor.Tensor](w.Invoke(w.ctx, w.next(1), "non_cont_test", view, dense))
		require.NoError(t, err)
		equalTensor(t, view, got)
		require.False(t, got.IsContiguous())
	})
}

func TestParityErrors(t *testing.T) {
	parity.Case(t, "rpc/RpcTest.test_py_raise_in_user_func", func(t *testing.T) {
		var logged [parityWorld]loglines.Lines
		group := startGroup(t, parityWorld, func(rank int, c *agent.Config) {
			serveParity(rank, c)
			c.Logger = slog.New(slog.NewTextHandler(&logged[rank], &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		runAll(t, group, func(t require.TestingT, w worker) {
			_, err := w.InvokeAsync(w.ctx, w.next(1), "raise_func").Wait(w.ctx)
			require.ErrorContains(t, err, "agent: call raise_func on "+w.nextName()+": "+expectedErr)
		})
		for rank := range logged {
			from := fmt.Sprintf("worker%d", (rank+parityWorld-1)%parityWorld)
			require.Regexp(t, "raise_func.*"+from+".*"+expectedErr, logged[rank].String(), "the worker called logs it")
			require.Equal(t, 1, strings.Count(logged[rank].String(), expectedErr), "the caller does not")
		}
	})
	inProcesses(t, "rpc/RpcTest.test_py_raise_in_user_func_escaped_str", func(t require.TestingT, w worker) {
		_, err := w.InvokeAsync(w.ctx, w.next(1), "raise_func_escape").Wait(w.ctx)
		var remote *agent.RemoteError
		require.ErrorAs(t, err, &remote)
		require.Equal(t, verbatim, remote.Error())
	})
	inProcesses(t, "rpc/RpcTest.test_custom_exception_throw_during_reconstruction", func(t require.TestingT, w worker) {
		_, err := w.Invoke(w.ctx, w.next(1), "custom_raise_func")
		require.ErrorContains(t, err, w.nextName()+": CustomException: foo")
		var unknown *codec.RemoteError
		require.ErrorAs(t, err, &unknown)
		require.Equal(t, "*agent_test.unregisteredError", unknown.Type)
		_, err = w.Invoke(w.ctx, w.next(1), "known_raise_func")
		var known *codeError
		require.ErrorAs(t, err, &known)
		require.Equal(t, codeError{1, "known"}, *known)
		_, err = w.Invoke(w.ctx, w.next(1), "sentinel_raise_func")
		require.ErrorIs(t, err, errQuota)
	})
	inProcesses(t, "rpc/RpcTest.test_function_not_on_callee", func(t require.TestingT, w worker) {
		got, err := w.Invoke(w.ctx, "worker0", "foo_add")
		require.NoError(t, err, "worker0 has it")
		require.Equal(t, []any{3}, got)
		_, err = w.Invoke(w.ctx, "worker1", "foo_add")
		require.ErrorIs(t, err, agent.ErrNoFunction)
		require.ErrorContains(t, err, "foo_add on worker1: not served: no function of that name")
		_, err = agent.NewFunc[agent.None, int]("foo_add").Call(w.ctx, w.Agent, "worker1", agent.None{})
		require.ErrorIs(t, err, agent.ErrNoFunction)
	})
}

// Each of four processes starts a chain of calls through all of them, and calls Shutdown without
// waiting for the chain. Shutdown succeeds only after all chains have ended, and no call fails.
func TestParityNested(t *testing.T) {
	parity.Case(t, "rpc/RpcTest.test_multi_layer_nested_async_rpc", func(t *testing.T) {
		const ttl = 5 * parityWorld // a chain ends where it started
		procgroup.Start(t, parityWorld, func(m *procgroup.Member) error {
			l := &callChains{}
			a, err := joinMember(m, func(c *agent.Config) {
				c.Funcs = agent.Funcs{agent.ReflectFunc("multi_layer", func(ctx context.Context, rank, ttl int) int {
					return l.nestCall(ctx, agent.FromContext(ctx), rank, ttl)
				})}
			})
			if err != nil {
				return err
			}
			l.nestCall(m.Context(), a, (m.Rank+1)%parityWorld, ttl)
			err = errors.Join(a.Shutdown(m.Context()), want(1, l.ended.Load()))
			if broken := l.broken.Load(); broken != nil {
				err = errors.Join(err, *broken)
			}
			return err
		}).Wait()
	})
}
