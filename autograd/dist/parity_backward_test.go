package dist_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
)

func multiDotStep(xs ...variable) step[variable] {
	return builtin("aten::linalg_multi_dot", func(ctx context.Context) (variable, error) { return autograd.MultiDot(ctx, xs) }, xs)
}

func splitStep(x variable, size int) step[[]variable] {
	return builtin("aten::split", func(ctx context.Context) ([]variable, error) { return autograd.Split(ctx, x, size, 0) }, x, size)
}

func divStep(x, y variable) step[variable] { return builtin2("aten::div", autograd.Div, x, y) }

func cosStep(x variable) step[variable] {
	return builtin("aten::cos", func(ctx context.Context) (variable, error) { return autograd.Cos(ctx, x) }, x)
}

// inModes runs the case id: in each of modes, each worker computes roots by f in a Context of its own,
// and the gradients of leaves, which must be those of the mode local.
func inModes(t *testing.T, id string, configure configuration, modes []mode, leaves func() []variable,
	f func(t require.TestingT, ctx context.Context, w *worker, m mode, xs []variable) (roots []variable)) {
	t.Helper()
	inOneProcessWith(t, id, configure, func(t require.TestingT, w *worker) {
		xs := leaves()
		var grads []autograd.Value
		for _, m := range modes {
			w.inContext(t, func(ctx context.Context, c *dist.Context) {
				grads = verifyBackwards(t, ctx, m, c, grads, f(t, ctx, w, m, xs), xs...)
			})
			for i, x := range xs {
				require.Equal(t, x.RequiresGrad(), !grads[i].IsZero(), "leaf %d", i)
			}
		}
	})
}

var allModes = []mode{local, rpcSync, remote}

func randoms(shapes ...[]int) func() []variable {
	return func() (all []variable) {
		for _, shape := range shapes {
			all = append(all, random(shape...))
		}
		return all
	}
}

// twoLeaves makes the leaves of most cases.
var twoLeaves = randoms([]int{3, 3}, []int{3, 3})

// TestParityBackwardShapes has the cases of operators on lists, and on tensors of several shapes.
func TestParityBackwardShapes(t *testing.T) {
	mixed := func() []variable {
		return []variable{random(4, 6), autograd.Constant(randomTensor[float32](6, 5)), random(5, 7), autograd.Constant(randomTensor[float32](7, 9))}
	}
	inModes(t, "dist_autograd/DistAutogradTest.test_backward_different_tensor_dims", nil, allModes, mixed,
		func(t require.TestingT, ctx context.Context, w *worker, m mode, xs []variable) []variable {
			x := exec(t, ctx, w, m, w.next(), matMulStep(xs[0], xs[1]))
			require.Equal(t, []int{4, 5}, x.Shape())
			x = exec(t, ctx, w, m, w.next(), multiDotStep(x, xs[2], xs[3]))
			require.Equal(t, []int{4, 9}, x.Shape())
			return []variable{sum(t, ctx, x)}
		})
	inModes(t, "dist_autograd/DistAutogradTest.test_backward_unused_tensors", nil, allModes, randoms([]int{3, 3}, []int{3, 3}, []int{3, 3}),
		func(t require.TestingT, ctx context.Context, w *worker, m mode, xs []variable) []variable {
			s := exec(t, ctx, w, m, w.next(), stackStep(xs...))
			require.Equal(t, []int{3, 3, 3}, s.Shape())
			first, err := autograd.Narrow(ctx, s, 0, 0, 1)
			require.NoError(t, err)
			last, err := autograd.Narrow(ctx, s, 0, 2, 1)
			require.NoError(t, err)
			return []variable{sum(t, ctx, exec(t, ctx, w, m, w.next(), matMulStep(first, last)))}
		})
	inModes(t, "dist_autograd/DistAutogradTest.test_backward_multiple_output_tensors", nil, allModes, randoms([]int{10, 2}),
		func(t require.TestingT, ctx context.Context, w *worker, m mode, xs []variable) []variable {
			parts := exec(t, ctx, w, m, w.next(), splitStep(xs[0], 2))
			require.Len(t, parts, 5)
			x := exec(t, ctx, w, m, w.next(), multiDotStep(parts[0], parts[2], parts[4]))
			return []variable{sum(t, ctx, x)}
		})
	inModes(t, "dist_autograd/DistAutogradTest.test_backward_multiple_roots", nil, []mode{local, rpcSync}, twoLeaves,
		func(t require.TestingT, ctx context.Context, w *worker, m mode, xs []variable) (roots []variable) {
			for _, s := range []step[variable]{addStep(xs[0], xs[1]), mulStep(xs[0], xs[1]), cosStep(xs[0]), divStep(xs[0], xs[1])} {
				roots = append(roots, sum(t, ctx, exec(t, ctx, w, m, w.next(), s)))
			}
			return roots
		})
}

// complexFunction multiplies x, y and three products that linear makes of them.
func complexFunction(ctx context.Context, p pair) (variable, error) {
	a, err := autograd.Linear(ctx, p.X, p.Y, nil)
	if err != nil {
		return nil, err
	}
	b, err := autograd.Linear(ctx, p.Y, a, nil)
	if err != nil {
		return nil, err
	}
	c, err := autograd.Linear(ctx, a, b, nil)
	if err != nil {
		return nil, err
	}
	return autograd.MultiDot(ctx, []variable{p.X, p.Y, a, b, c})
}

// TestParityBackwardFunction has the cases of functions of one and of several operators.
func TestParityBackwardFunction(t *testing.T) {
	inModes(t, "dist_autograd/DistAutogradTest.test_backward_simple_python_udf", nil, []mode{local, remote}, twoLeaves,
		func(t require.TestingT, ctx context.Context, w *worker, m mode, xs []variable) []variable {
			return []variable{sum(t, ctx, exec(t, ctx, w, m, w.next(), pyAddStep(xs[0], xs[1])))}
		})
	complexUDF := agent.NewFunc[pair, variable]("complex_python_udf")
	configure := serving(agent.Funcs{complexUDF.Serve(complexFunction)})
	inModes(t, "dist_autograd/DistAutogradTest.test_backward_complex_python_udf", configure, []mode{local, remote}, twoLeaves,
		func(t require.TestingT, ctx context.Context, w *worker, m mode, xs []variable) []variable {
			return []variable{sum(t, ctx, exec(t, ctx, w, m, w.next(), served(complexUDF, complexFunction, pair{xs[0], xs[1]})))}
		})
}

// TestParityHooks has the case of a hook on a leaf, which doubles its gradient.
func TestParityHooks(t *testing.T) {
	leaves := func() []variable {
		x := parameter(1, 3, 3)
		double := func(ctx context.Context, g autograd.Value) (autograd.Value, error) {
			twice, err := autograd.MulNumber(ctx, autograd.New(g), 2)
			if err != nil {
				return autograd.Value{}, err
			}
			return twice.Value(), nil
		}
		if err := x.AddHook(double); err != nil {
			panic(err)
		}
		return []variable{x, parameter(1, 3, 3)}
	}
	inModes(t, "dist_autograd/DistAutogradTest.test_backward_verify_hooks", nil, allModes, leaves,
		func(t require.TestingT, ctx context.Context, w *worker, m mode, xs []variable) []variable {
			if m != local { // the hook has doubled the gradient, which is 3
				requireFilled(t, 6, xs[0].Grad())
				requireFilled(t, 3, xs[1].Grad())
			}
			return []variable{sum(t, ctx, exec(t, ctx, w, m, w.next(), matMulStep(xs[0], xs[1])))}
		})
}

// TestParityAccumulation has the cases of gradients that several passes add up, and of a graph of one
// worker.
func TestParityAccumulation(t *testing.T) {
	inOneProcess(t, "dist_autograd/DistAutogradTest.test_backward_accumulate_grads", func(t require.TestingT, w *worker) {
		t1, t2 := random(3, 3), random(3, 3)
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			t3, err := autograd.MatMul(ctx, t1, t2)
			require.NoError(t, err)
			require.NoError(t, autograd.Backward(ctx, []variable{sum(t, ctx, t3)}, autograd.RetainGraph()))
			require.NoError(t, autograd.Backward(ctx, []variable{sum(t, ctx, t3)}))
			require.Empty(t, c.Gradients(), "these are the gradients of the leaves")
			t3, err = agent.One[variable](w.Op(ctx, w.next(), "aten::matmul", t1, t2))
			require.NoError(t, err)
			require.NoError(t, c.BackwardWith(ctx, dist.PassOptions{RetainGraph: true}, sum(t, ctx, t3)))
			require.NoError(t, c.Backward(ctx, sum(t, ctx, t3)))
			grads := c.Gradients()
			require.Len(t, grads, 2)
			require.Contains(t, grads, t1)
			require.Contains(t, grads, t2)
			requireSame(t, t1.Grad(), grads[t1])
			requireSame(t, t2.Grad(), grads[t2])
		})
	})
	inOneProcess(t, "dist_autograd/DistAutogradTest.test_backward_without_rpc", func(t require.TestingT, w *worker) {
		t1, t2 := random(3, 3), random(3, 3)
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			t3, err := autograd.Add(ctx, t1, t2)
			require.NoError(t, err)
			require.NoError(t, c.Backward(ctx, sum(t, ctx, t3)))
			grads := c.Gradients()
			require.Len(t, grads, 2)
			require.Contains(t, grads, t1)
			require.Contains(t, grads, t2)
			requireSame(t, constant(1, 3, 3).Value(), grads[t1])
			requireSame(t, constant(1, 3, 3).Value(), grads[t2])
		})
	})
}
