package rref_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// abc is the argument of my_function.
type abc struct{ A, B, C any }

// refAndValue is the argument of add_rref_to_value.
type refAndValue[T any] struct {
	Ref   *rref.Ref[T]
	Value any
}

// functions are the functions of PyTorch's tests for values of type T.
type functions[T any] struct {
	suffix     string // of the names
	my         agent.Func[abc, T]
	two        agent.Func[[2]any, T]              // my_tensor_function
	addRef     agent.Func[refAndValue[T], T]      // add_rref_to_value
	addRefs    agent.Func[[2]*rref.Ref[T], T]     // my_rref_function
	nested     agent.Func[string, T]              // nested_remote
	nestedRefs agent.Func[string, []*rref.Ref[T]] // nested_rref
	operands   func(i int) (x any, y any)         // of the nested operators; PyTorch's are different for each
}

func functionsOf[T any](suffix string, operands func(i int) (x, y any)) functions[T] {
	return functions[T]{
		suffix:     suffix,
		my:         agent.NewFunc[abc, T]("my_function" + suffix),
		two:        agent.NewFunc[[2]any, T]("my_tensor_function" + suffix),
		addRef:     agent.NewFunc[refAndValue[T], T]("add_rref_to_value" + suffix),
		addRefs:    agent.NewFunc[[2]*rref.Ref[T], T]("my_rref_function" + suffix),
		nested:     agent.NewFunc[string, T]("nested_remote" + suffix),
		nestedRefs: agent.NewFunc[string, []*rref.Ref[T]]("nested_rref" + suffix),
		operands:   operands,
	}
}

var (
	dense   = functionsOf[*tensor.Tensor]("", func(i int) (x, y any) { return ones(), []any{3, 1, 2}[i] })
	sparse  = functionsOf[*tensor.Sparse]("_sparse", func(int) (x, y any) { return buildSparse(), buildSparse() })
	numbers = functionsOf[int]("_int", func(int) (x, y any) { return 1, 2 })
)

// serve returns the entries of the functions for agent.Config.
func (f functions[T]) serve() agent.Funcs {
	remote := func(ctx context.Context, to string, i int) *rref.Ref[T] {
		x, y := f.operands(i)
		return rref.RemoteOp[T](ctx, agent.FromContext(ctx), agent.To(to), "aten::add", x, y)
	}
	return agent.Funcs{
		f.my.Serve(func(_ context.Context, v abc) (T, error) { return sum[T](v.A, v.B, v.C) }),
		f.two.Serve(func(_ context.Context, v [2]any) (T, error) { return sum[T](v[0], v[1]) }),
		f.addRef.Serve(func(ctx context.Context, v refAndValue[T]) (T, error) {
			x, err := v.Ref.ToHere(ctx)
			return orSum(err, v.Ref.Release(ctx), x, v.Value)
		}),
		f.addRefs.Serve(func(ctx context.Context, v [2]*rref.Ref[T]) (T, error) {
			x, errX := v[0].ToHere(ctx)
			y, errY := v[1].ToHere(ctx)
			return orSum(errors.Join(errX, errY), errors.Join(v[0].Release(ctx), v[1].Release(ctx)), x, y)
		}),
		f.nested.Serve(func(ctx context.Context, to string) (T, error) {
			r := remote(ctx, to, 0)
			x, err := r.ToHere(ctx)
			return x, errors.Join(err, r.Release(ctx))
		}),
		f.nestedRefs.Serve(func(ctx context.Context, to string) ([]*rref.Ref[T], error) {
			return []*rref.Ref[T]{remote(ctx, to, 1), remote(ctx, to, 2)}, nil
		}),
	}
}

// orSum returns the sum of x and y, or the errors if one is not nil.
func orSum[T any](errX, errY error, x T, y any) (T, error) {
	if err := errors.Join(errX, errY); err != nil {
		var zero T
		return zero, err
	}
	return sum[T](x, y)
}

// myClass is the class of the same name of PyTorch's tests.
type myClass struct{ A any }

type classArgs struct {
	A     any
	Delay bool // the constructor takes 2 s
}

// callArgs is the argument of _call_method_on_rref: the method that is called on the local value.
type callArgs struct {
	Method string
	Ref    *rref.Ref[*myClass]
	Arg    any
}

var (
	newMyClass   = agent.NewFunc[classArgs, *myClass]("MyClass")
	callMethod   = agent.NewFunc[callArgs, any]("_call_method_on_rref")
	getRefs      = agent.NewFunc[[]int, []*rref.Ref[*myClass]]("get_rref_list")
	returnRef    = agent.NewFunc[string, *rref.Ref[*tensor.Tensor]]("rpc_return_rref")
	forwardChain = agent.NewFunc[chainArgs, chainLink]("rref_forward_chain")
	isConfirmed  = agent.NewFunc[*rref.Ref[*tensor.Tensor], bool]("check_rref_confirmed")
	setGlobal    = agent.NewFunc[*rref.Ref[int], agent.None]("set_global_rref")
	clearGlobal  = agent.NewFunc[agent.None, agent.None]("clear_global_rref")
	fooAdd       = agent.NewFunc[agent.None, int]("foo_add")
	raiseFunc    = agent.NewFunc[agent.None, int]("raise_func")
	noResult     = agent.NewFunc[agent.None, agent.None]("no_result")
	raiseOrInc   = agent.NewFunc[*tensor.Tensor, *tensor.Tensor]("raise_or_inc")
	sleepFunc    = agent.NewFunc[float64, *tensor.Tensor]("my_sleep_func")
	slowAdd      = agent.NewFunc[[2]any, *tensor.Tensor]("slow_add")

	getValue       = rref.NewMethod[*myClass, agent.None, any]("get_value")
	incrementValue = rref.NewMethod[*myClass, any, agent.None]("increment_value")
	instanceMethod = rref.NewMethod[*myClass, any, any]("my_instance_method")
	staticMethod   = rref.NewMethod[*myClass, int, bool]("my_static_method")
	classMethod    = rref.NewMethod[*myClass, [2]any, any]("my_class_method")
	slowMethod     = rref.NewMethod[*myClass, any, any]("my_slow_method")

	tensorSize = rref.NewMethod[*tensor.Tensor, agent.None, []int]("size")
	tensorAdd  = rref.NewMethod[*tensor.Tensor, any, *tensor.Tensor]("add")
	tensorView = rref.NewMethod[*tensor.Tensor, []int, *tensor.Tensor]("view")
	nonExist   = rref.NewMethod[*tensor.Tensor, agent.None, int]("non_exist")
)

// chainArgs is the argument of rref_forward_chain.
type chainArgs struct {
	To  int // rank of the worker that continues the chain
	Ref *rref.Ref[*tensor.Tensor]
	TTL int
}

// chainLink is the result of rref_forward_chain: one reference to the next link, or at the end the
// value.
type chainLink struct {
	Next  []*rref.Ref[chainLink]
	Value *tensor.Tensor
}

func serveChain(ctx context.Context, v chainArgs) (chainLink, error) {
	return continueChain(ctx, agent.FromContext(ctx), v)
}

// continueChain has the next worker continue the chain, or ends it.
func continueChain(ctx context.Context, a *agent.Agent, v chainArgs) (chainLink, error) {
	if v.TTL == 0 {
		x, err := v.Ref.ToHere(ctx)
		return chainLink{Value: x}, err
	}
	args := chainArgs{(v.To + 1) % parityWorld, v.Ref, v.TTL - 1}
	return chainLink{Next: []*rref.Ref[chainLink]{rref.Remote(ctx, a, agent.Rank(v.To), forwardChain, args)}}, nil
}

const expectedErr = "Expected error"

// serveParity is the configuration of a worker of most parity cases. It adds to what the worker
// serves.
func serveParity(_ int, c *agent.Config, o *rref.Options) {
	c.Registry = parityRegistry()
	for _, all := range []agent.Funcs{dense.serve(), sparse.serve(), numbers.serve(), servedRefs(), servedErrors(), servedFutures(), servedScripts(), servedHandlers()} {
		c.Funcs = append(c.Funcs, all...)
	}
	o.Methods = append(o.Methods,
		getValue.Serve(func(m *myClass, _ context.Context, _ agent.None) (any, error) { return m.A, nil }),
		incrementValue.Serve(func(m *myClass, _ context.Context, n any) (_ agent.None, err error) {
			m.A, err = sum[any](m.A, n)
			return agent.None{}, err
		}),
		instanceMethod.Serve(func(m *myClass, _ context.Context, b any) (any, error) { return sum[any](m.A, b) }),
		staticMethod.Serve(func(_ *myClass, _ context.Context, f int) (bool, error) { return f > 10, nil }),
		classMethod.Serve(func(_ *myClass, _ context.Context, v [2]any) (any, error) { return sum[any](v[0], v[1]) }),
		slowMethod.Serve(func(m *myClass, _ context.Context, x any) (any, error) {
			sleep(5 * time.Second)
			return sum[any](m.A, x)
		}),
		tensorSize.Serve(func(x *tensor.Tensor, _ context.Context, _ agent.None) ([]int, error) { return x.Shape(), nil }),
		tensorAdd.Serve(func(x *tensor.Tensor, _ context.Context, n any) (*tensor.Tensor, error) {
			return sum[*tensor.Tensor](x, n)
		}),
		tensorView.Serve(func(x *tensor.Tensor, ctx context.Context, shape []int) (*tensor.Tensor, error) {
			return agent.One[*tensor.Tensor](operators.Call(ctx, "aten::view", []any{x, shape}, nil))
		}),
		staticAdd.ServeAsync(func(_ *asyncClass, ctx context.Context, v chain) *agent.Future[*tensor.Tensor] {
			return addChained(ctx, v)
		}),
		classAdd.ServeAsync(func(_ *asyncClass, ctx context.Context, v chain) *agent.Future[*tensor.Tensor] {
			return addWithFuture(ctx, v)
		}),
		boundAdd.ServeAsync((*asyncClass).add),
		wrongMethod.ServeAsync(func(*asyncClass, context.Context, agent.None) *agent.Future[int] { return nil }),
	)
}

// parityRegistry returns a new registry with the types that occur in arguments of any type.
func parityRegistry() *codec.Registry {
	r := codec.NewRegistry()
	for name, sample := range map[string]any{
		"parity.tensorRef": &rref.Ref[*tensor.Tensor]{},
	} {
		if err := r.Register(name, sample); err != nil {
			panic(err)
		}
	}
	return r
}

// servedRefs returns the functions that take or return references, with a variable for one worker.
func servedRefs() agent.Funcs {
	var mu sync.Mutex
	var global *rref.Ref[int]
	return agent.Funcs{
		newMyClass.Serve(func(_ context.Context, v classArgs) (*myClass, error) {
			if v.Delay {
				sleep(2 * time.Second)
			}
			return &myClass{v.A}, nil
		}),
		callMethod.Serve(func(ctx context.Context, v callArgs) (any, error) {
			m, err := v.Ref.Local()
			if err := errors.Join(err, v.Ref.Release(ctx)); err != nil {
				return nil, err
			}
			switch v.Method {
			case "increment_value":
				m.A, err = sum[any](m.A, v.Arg)
				return nil, err
			case "get_value":
				return m.A, nil
			}
			return nil, fmt.Errorf("no method %s", v.Method)
		}),
		getRefs.Serve(func(ctx context.Context, values []int) (refs []*rref.Ref[*myClass], _ error) {
			for _, n := range values {
				refs = append(refs, rref.Own(agent.FromContext(ctx), &myClass{n}))
			}
			return refs, nil
		}),
		returnRef.Serve(func(ctx context.Context, to string) (*rref.Ref[*tensor.Tensor], error) {
			return rref.RemoteOp[*tensor.Tensor](ctx, agent.FromContext(ctx), agent.To(to), "aten::add", ones(), 1), nil
		}),
		forwardChain.Serve(serveChain),
		isConfirmed.Serve(func(_ context.Context, f *rref.Ref[*tensor.Tensor]) (bool, error) { return f.IsConfirmed(), nil }),
		setGlobal.Serve(func(_ context.Context, f *rref.Ref[int]) (agent.None, error) {
			mu.Lock()
			defer mu.Unlock()
			global = f
			return agent.None{}, nil
		}),
		clearGlobal.Serve(func(ctx context.Context, _ agent.None) (agent.None, error) {
			mu.Lock()
			defer mu.Unlock()
			return agent.None{}, global.Release(ctx)
		}),
	}
}

func servedErrors() agent.Funcs {
	return agent.Funcs{
		fooAdd.Serve(func(context.Context, agent.None) (int, error) { return 3, nil }),
		raiseFunc.Serve(func(context.Context, agent.None) (int, error) { return 0, errors.New(expectedErr) }),
		noResult.Serve(func(context.Context, agent.None) (agent.None, error) { return agent.None{}, nil }),
		raiseOrInc.Serve(func(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
			if x.Len() == 2 {
				return nil, errors.New(expectedErr)
			}
			return sum[*tensor.Tensor](x, 1)
		}),
		sleepFunc.Serve(func(_ context.Context, seconds float64) (*tensor.Tensor, error) {
			sleep(time.Duration(seconds * float64(time.Second))) // as PyTorch's, also when the caller gives up
			return integers([]int64{1}), nil
		}),
		slowAdd.Serve(func(_ context.Context, v [2]any) (*tensor.Tensor, error) {
			sleep(time.Second)
			return sum[*tensor.Tensor](v[0], v[1])
		}),
	}
}

// servedScripts returns the functions that PyTorch's tests compile, and call by their names.
func servedScripts() agent.Funcs {
	return agent.Funcs{
		agent.ReflectFunc("my_script_func", func(x *tensor.Tensor) (*tensor.Tensor, error) { return sum[*tensor.Tensor](x, x) }),
		fourArgs.Serve(func(_ context.Context, v four) (*tensor.Tensor, error) {
			return sum[*tensor.Tensor](v.FirstArg, v.SecondArg, v.FirstKwarg, v.SecondKwarg)
		}),
		agent.ReflectFunc("rref_to_here", func(ctx context.Context, f *rref.Ref[*tensor.Tensor]) (*tensor.Tensor, error) { return f.ToHere(ctx) }),
	}
}

// four is the argument of two_args_two_kwargs.
type four struct{ FirstArg, SecondArg, FirstKwarg, SecondKwarg *tensor.Tensor }

var fourArgs = agent.NewFunc[four, *tensor.Tensor]("two_args_two_kwargs")
