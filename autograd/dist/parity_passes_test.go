package dist_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
)

// pass computes the gradients of roots in c.
func pass(t require.TestingT, ctx context.Context, c *dist.Context, retain bool, roots ...variable) {
	require.NoError(t, c.BackwardWith(ctx, dist.PassOptions{RetainGraph: retain}, roots...))
}

// noGradOnTensor adds two tensors on another worker, and requires that the gradients of passes are those
// of the Context only: not those of the tensors, before and after a local pass.
func noGradOnTensor(k kind, m mode) script {
	return func(t require.TestingT, w *worker) {
		t1, t2 := k.leaf(true), k.leaf(true)
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			loss := k.sum(t, ctx, exec(t, ctx, w, m, w.next(), addStep(t1, t2)))
			pass(t, ctx, c, true, loss)
			require.True(t, t1.Grad().IsZero())
			require.True(t, t2.Grad().IsZero())
			require.Len(t, c.Gradients(), 2)

			localLoss := k.sum(t, ctx, exec(t, ctx, w, local, "", addStep(t1, t2)))
			require.NoError(t, autograd.Backward(ctx, []variable{localLoss}))
			require.False(t, t1.Grad().IsZero())
			require.False(t, t2.Grad().IsZero())

			before1, before2 := elements(t, t1.Grad()), elements(t, t2.Grad())
			pass(t, ctx, c, false, loss)
			require.Equal(t, before1, elements(t, t1.Grad()))
			require.Equal(t, before2, elements(t, t2.Grad()))
		})
	}
}

// TestParityNoGradOnTensor has the cases in which gradients of Contexts are not those of tensors.
func TestParityNoGradOnTensor(t *testing.T) {
	bothKinds(t, "test_backward_no_grad_on_tensor", func(k kind) script { return noGradOnTensor(k, rpcSync) })
	inOneProcess(t, "dist_autograd/TensorPipeAgentDistAutogradTest.test_backward_no_grad_on_tensor_remote_sparse",
		noGradOnTensor(sparse, remote))
}

// roundTrips has other workers compute each step from the results of the steps before, in each mode.
func roundTrips(k kind) script {
	return func(t require.TestingT, w *worker) {
		t1, t2, t3, t4, t5 := k.leaf(true), k.leaf(false), k.leaf(true), k.leaf(false), k.leaf(true)
		var grads []autograd.Value
		for _, m := range []mode{local, rpcSync, remote} {
			w.inContext(t, func(ctx context.Context, c *dist.Context) {
				run := func(s step[variable]) variable { return exec(t, ctx, w, m, w.next(), s) }
				val := run(addStep(t1, t2))
				val = run(mulStep(t3, val))
				s1, s2 := run(stackStep(t4, val)), run(stackStep(t5, val))
				if k.dense {
					val = run(bmmStep(s1, s2))
					val = run(matMulStep(val, val))
				} else {
					val = run(mulStep(s1, s2))
					val = run(mulStep(val, val))
				}
				loss := k.sum(t, ctx, val)
				grads = verifyBackwards(t, ctx, m, c, grads, []variable{loss}, t1, t2, t3, t4, t5)
			})
		}
		for i, requiresGrad := range []bool{true, false, true, false, true} {
			require.Equal(t, requiresGrad, !grads[i].IsZero())
		}
	}
}

// addedInModes adds two tensors in each mode, and requires the gradients of the local pass.
func addedInModes(k kind, modes []mode, leaves func() (t1, t2 variable)) script {
	return func(t require.TestingT, w *worker) {
		t1, t2 := leaves()
		var grads []autograd.Value
		for _, m := range modes {
			w.inContext(t, func(ctx context.Context, c *dist.Context) {
				loss := k.sum(t, ctx, exec(t, ctx, w, m, w.next(), addStep(t1, t2)))
				grads = verifyBackwards(t, ctx, m, c, grads, []variable{loss}, t1, t2)
			})
		}
		for i, x := range []variable{t1, t2} {
			require.Equal(t, x.DType(), grads[i].DType())
		}
	}
}

// TestParityRoundTrips has the cases in which tensors go to other workers and back, those with different
// dtypes, and those that call operators by their names in each mode.
func TestParityRoundTrips(t *testing.T) {
	bothKinds(t, "test_backward_multiple_round_trips", roundTrips)
	bothKinds(t, "test_backward_different_dtypes", func(k kind) script {
		return addedInModes(k, []mode{local, remote}, func() (t1, t2 variable) {
			if !k.dense {
				return sparseLeaf[float32](true), sparseLeaf[float64](true)
			}
			t2, err := autograd.Parameter(randomTensor[float64](3, 3))
			if err != nil {
				panic(err)
			}
			return random(3, 3), t2
		})
	})
	bothKinds(t, "test_backward_simple_script_call", func(k kind) script {
		return addedInModes(k, []mode{local, rpcSync, rpcAsync, remote}, func() (t1, t2 variable) {
			return k.leaf(true), k.leaf(true)
		})
	})
}

// multipleBackward runs a thousand passes, or fewer under the race detector, through the same graph.
func multipleBackward(k kind) script {
	return func(t require.TestingT, w *worker) {
		passes := race.Pick(1000, 100)
		t1, t2 := k.leaf(true), k.leaf(true)
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			loss := k.sum(t, ctx, exec(t, ctx, w, rpcSync, w.next(), addStep(t1, t2)))
			pass(t, ctx, c, true, loss)
			one, err := c.Gradient(t1)
			require.NoError(t, err)
			first := elements(t, one)
			for range passes - 1 {
				pass(t, ctx, c, true, loss)
			}
			for _, x := range []variable{t1, t2} {
				all, err := c.Gradient(x)
				require.NoError(t, err)
				for i, v := range elements(t, all) {
					require.Equal(t, float64(passes)*first[i], v)
				}
			}
		})
	}
}

// via is two tensors, and the worker to which a function sends them.
type via struct {
	X, Y variable
	To   agent.To
}

var (
	addVia    = agent.NewFunc[via, variable]("nested_backward_accumulate_grads")
	nestedUDF = agent.NewFunc[via, variable]("nested_python_udf")
	mixedMul  = agent.NewFunc[pair, variable]("mixed_requires_grad_operation")
)

// productOf returns the product of all.
func productOf(ctx context.Context, all ...variable) (variable, error) {
	x := all[0]
	for _, y := range all[1:] {
		var err error
		if x, err = autograd.Mul(ctx, x, y); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// nested returns v.X*v.Y * (v.X*v.Y) * (v.X+v.Y) * res, where res is the sum of the two last factors,
// which add computes.
func nested(ctx context.Context, v via, add func(x, y variable) (variable, error)) (variable, error) {
	t3, err := autograd.Mul(ctx, v.X, v.Y)
	if err != nil {
		return nil, err
	}
	t4, err := autograd.Add(ctx, v.X, v.Y)
	if err != nil {
		return nil, err
	}
	res, err := add(t3, t4)
	if err != nil {
		return nil, err
	}
	return productOf(ctx, v.X, v.Y, t3, t4, res)
}

// mixed returns p.X-p.Y if p.Y requires a gradient, and otherwise the product of both.
func mixed(ctx context.Context, p pair) (variable, error) {
	if p.Y.RequiresGrad() {
		return autograd.Sub(ctx, p.X, p.Y)
	}
	return autograd.Mul(ctx, p.X, p.Y)
}

// passFunctions returns the functions that the cases of passes call.
func passFunctions() agent.Funcs {
	return agent.Funcs{
		addVia.Serve(func(ctx context.Context, v via) (variable, error) {
			return agent.One[variable](agent.FromContext(ctx).Op(ctx, v.To, "aten::add", v.X, v.Y))
		}),
		nestedUDF.Serve(func(ctx context.Context, v via) (variable, error) {
			return nested(ctx, v, func(x, y variable) (variable, error) {
				return pyAdd.Call(ctx, agent.FromContext(ctx), v.To, pair{x, y})
			})
		}),
		mixedMul.Serve(mixed),
	}
}

// accumulateNested runs two passes through the sum of two tensors that a third worker has computed.
func accumulateNested(k kind) script {
	return func(t require.TestingT, w *worker) {
		t1, t2 := k.leaf(true), k.leaf(true)
		loss := k.sum(t, w.ctx, exec(t, w.ctx, w, local, "", addStep(t1, t2)))
		require.NoError(t, autograd.Backward(w.ctx, []variable{loss}, autograd.RetainGraph()))
		require.NoError(t, autograd.Backward(w.ctx, []variable{loss}))
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			ret, err := addVia.Call(ctx, w.Agent, w.next(), via{t1, t2, w.next()})
			require.NoError(t, err)
			loss := k.sum(t, ctx, ret)
			pass(t, ctx, c, true, loss)
			pass(t, ctx, c, false, loss)
			require.Len(t, c.Gradients(), 2)
			for _, x := range []variable{t1, t2} {
				g, err := c.Gradient(x)
				require.NoError(t, err)
				requireSame(t, x.Grad(), g)
			}
		})
	}
}

// nestedFunction has another worker compute a product of which a third one computes a factor, and
// requires the gradients of the local pass.
func nestedFunction(k kind) script {
	return func(t require.TestingT, w *worker) {
		t1, t2 := k.leaf(true), k.leaf(true)
		ret, err := nested(w.ctx, via{X: t1, Y: t2}, func(x, y variable) (variable, error) { return autograd.Add(w.ctx, x, y) })
		require.NoError(t, err)
		require.NoError(t, autograd.Backward(w.ctx, []variable{k.sum(t, w.ctx, ret)}))
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			ret, err := nestedUDF.Call(ctx, w.Agent, w.next(), via{t1, t2, w.next()})
			require.NoError(t, err)
			pass(t, ctx, c, false, k.sum(t, ctx, ret))
			grads := c.Gradients()
			for _, x := range []variable{t1, t2} {
				require.Contains(t, grads, x)
				requireSame(t, x.Grad(), grads[x])
			}
		})
	}
}

// mixedRequiresGrad calls a function that multiplies, because its second argument requires no gradient.
func mixedRequiresGrad(k kind) script {
	return func(t require.TestingT, w *worker) {
		t1, t2 := k.leaf(true), k.leaf(false)
		for _, m := range []mode{rpcSync, remote} {
			w.inContext(t, func(ctx context.Context, c *dist.Context) {
				ret := exec(t, ctx, w, m, w.next(), served(mixedMul, mixed, pair{t1, t2}))
				want, err := autograd.Mul(ctx, t1, t2)
				require.NoError(t, err)
				requireSame(t, want.Value(), ret.Value())
				pass(t, ctx, c, false, k.sum(t, ctx, ret))
				require.True(t, t1.RequiresGrad())
				require.False(t, t2.RequiresGrad())
				grads := c.Gradients()
				require.Contains(t, grads, t1)
				require.NotContains(t, grads, t2)
				requireSame(t, t2.Value(), grads[t1])
			})
		}
	}
}

// TestParityPasses has the cases of several passes through a graph, and of functions that call others.
func TestParityPasses(t *testing.T) {
	bothKinds(t, "test_multiple_backward", multipleBackward)
	bothKinds(t, "test_nested_backward_accumulate_grads", accumulateNested)
	bothKinds(t, "test_backwards_nested_python_udf", nestedFunction)
	bothKinds(t, "test_mixed_requires_grad", mixedRequiresGrad)
}
