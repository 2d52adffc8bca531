package dist_test

import (
	"context"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// mode is how a step of a test is executed.
type mode int

const (
	local    mode = iota // on this worker, without a call
	rpcSync              // by a call
	rpcAsync             // by a call whose result is a future
	remote               // by a reference to the result, which is then fetched
)

// step is an operator or a function with its arguments, which can be executed in each mode.
type step[R any] struct {
	local  func(ctx context.Context) (R, error)
	sync   func(ctx context.Context, a *agent.Agent, to agent.To) (R, error)
	async  func(ctx context.Context, a *agent.Agent, to agent.To) (R, error)
	remote func(ctx context.Context, a *agent.Agent, to agent.To) *rref.Ref[R]
}

// exec executes s in the mode m, on the worker to unless the mode is local.
func exec[R any](t require.TestingT, ctx context.Context, w *worker, m mode, to agent.To, s step[R]) (r R) {
	var err error
	switch m {
	case local:
		r, err = s.local(ctx)
	case rpcSync:
		r, err = s.sync(ctx, w.Agent, to)
	case rpcAsync:
		r, err = s.async(ctx, w.Agent, to)
	case remote:
		f := s.remote(ctx, w.Agent, to)
		r, err = f.ToHere(ctx)
		require.NoError(t, f.Release(ctx))
	}
	require.NoError(t, err)
	return r
}

// served is a step that calls the function f with args. fn is what f serves.
func served[A, R any](f agent.Func[A, R], fn func(context.Context, A) (R, error), args A) step[R] {
	return step[R]{
		local: func(ctx context.Context) (R, error) { return fn(ctx, args) },
		sync:  func(ctx context.Context, a *agent.Agent, to agent.To) (R, error) { return f.Call(ctx, a, to, args) },
		async: func(ctx context.Context, a *agent.Agent, to agent.To) (R, error) {
			return f.Go(ctx, a, to, args).Wait(ctx)
		},
		remote: func(ctx context.Context, a *agent.Agent, to agent.To) *rref.Ref[R] {
			return rref.Remote(ctx, a, to, f, args)
		},
	}
}

// builtin is a step that runs the operator of the callee with that name. fn is the operator on this
// worker.
func builtin[R any](name string, fn func(context.Context) (R, error), args ...any) step[R] {
	return step[R]{
		local: fn,
		sync: func(ctx context.Context, a *agent.Agent, to agent.To) (R, error) {
			return agent.One[R](a.Op(ctx, to, name, args...))
		},
		async: func(ctx context.Context, a *agent.Agent, to agent.To) (R, error) {
			return agent.One[R](a.OpAsync(ctx, to, name, args...).Wait(ctx))
		},
		remote: func(ctx context.Context, a *agent.Agent, to agent.To) *rref.Ref[R] {
			return rref.RemoteOp[R](ctx, a, to, name, args...)
		},
	}
}

type variable = *autograd.Variable

// builtin2 is the step of an operator on two Variables.
func builtin2(name string, fn func(_ context.Context, x, y variable) (variable, error), x, y variable) step[variable] {
	return builtin(name, func(ctx context.Context) (variable, error) { return fn(ctx, x, y) }, x, y)
}

func addStep(x, y variable) step[variable]    { return builtin2("aten::add", autograd.Add, x, y) }
func mulStep(x, y variable) step[variable]    { return builtin2("aten::mul", autograd.Mul, x, y) }
func bmmStep(x, y variable) step[variable]    { return builtin2("aten::bmm", autograd.Bmm, x, y) }
func matMulStep(x, y variable) step[variable] { return builtin2("aten::matmul", autograd.MatMul, x, y) }

func stackStep(xs ...variable) step[variable] {
	return builtin("aten::stack", func(ctx context.Context) (variable, error) { return autograd.Stack(ctx, xs, 0) }, xs)
}

// verifyBackwards computes the gradients of roots. In the mode local it returns those of leaves, without
// the Context c. In other modes it requires that c has those of want, and no others: a zero Value stands
// for a leaf that has none. It then returns want.
func verifyBackwards(t require.TestingT, ctx context.Context, m mode, c *dist.Context, want []autograd.Value, roots []variable, leaves ...variable) []autograd.Value {
	if m == local {
		require.NoError(t, autograd.Backward(ctx, roots))
		grads := make([]autograd.Value, len(leaves))
		for i, x := range leaves {
			grads[i] = x.Grad()
		}
		return grads
	}
	require.Len(t, want, len(leaves))
	require.NoError(t, c.Backward(ctx, roots...))
	grads := c.Gradients()
	n := 0
	for i, x := range leaves {
		if want[i].IsZero() {
			require.NotContains(t, grads, x)
			continue
		}
		if !slices.Contains(leaves[:i], x) {
			n++
		}
		require.Contains(t, grads, x)
		requireSame(t, want[i], grads[x])
	}
	require.Len(t, grads, n)
	return want
}

// requireSame requires that both are dense or both sparse, with the same dtype and shape, and that their
// elements differ by rounding at most.
func requireSame(t require.TestingT, want, got autograd.Value) {
	require.False(t, want.IsZero(), "there is no tensor to compare with")
	require.Equal(t, want.Tensor() != nil, got.Tensor() != nil, "one is sparse: %v, %v", want, got)
	require.Equal(t, want.DType(), got.DType())
	require.Equal(t, want.Shape(), got.Shape())
	x, y := elements(t, want), elements(t, got)
	for i := range x {
		require.InDelta(t, x[i], y[i], 1e-5+1.3e-6*max(x[i], -x[i]), "element %d of %v", i, want)
	}
}

// elements returns the elements of v in row-major order.
func elements(t require.TestingT, v autograd.Value) []float64 {
	x, err := v.ToDense()
	require.NoError(t, err)
	x, err = x.Contiguous()
	require.NoError(t, err)
	all := make([]float64, 0, x.Len())
	switch x.DType() {
	case tensor.F64:
		data, err := tensor.Data[float64](x)
		require.NoError(t, err)
		return append(all, data...)
	default:
		data, err := tensor.Data[float32](x)
		require.NoError(t, err)
		for _, f := range data {
			all = append(all, float64(f))
		}
		return all
	}
}

// parityFunctions returns the functions that a worker with the marks m serves for parity cases.
func parityFunctions(m *marks) agent.Funcs {
	all := agent.Funcs{setDone.Serve(m.set)}
	for _, more := range []agent.Funcs{commonFunctions(), passFunctions(), refFunctions(m), embeddingFunctions()} {
		all = append(all, more...)
	}
	return all
}
