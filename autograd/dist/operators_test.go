package dist_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// TestOperators calls operators by their names with Variables, plain tensors and lists of them, in the
// three modes, and on a reference.
func TestOperators(t *testing.T) {
	run(t, 2, nil, func(t *testing.T, g *group) {
		x, y := parameter(2, 2, 2), parameter(5, 2, 2)
		a := g.agents[0]
		g.inContext(func(ctx context.Context, c *dist.Context) {
			z, err := agent.One[*autograd.Variable](a.Op(ctx, "worker1", "aten::mul", x, y))
			require.NoError(t, err)
			s, err := agent.One[*autograd.Variable](a.Op(ctx, "worker1", "aten::stack", []*autograd.Variable{z, x, constant(1, 2, 2)}, 0))
			require.NoError(t, err)
			require.Equal(t, []int{3, 2, 2}, s.Shape())
			f := rref.RemoteOp[*autograd.Variable](ctx, a, "worker1", "aten::add", s, 3)
			defer func() { require.NoError(t, f.Release(ctx)) }()
			r, err := f.ToHere(ctx)
			require.NoError(t, err)
			require.NoError(t, c.Backward(ctx, sum(t, ctx, r)))
			requireGradient(t, 6, c, x)
			requireGradient(t, 2, c, y)
		})
		plain, err := agent.One[*tensor.Tensor](a.Op(t.Context(), "worker1", "aten::add", x.Tensor(), y.Tensor()))
		require.NoError(t, err)
		requireFilled(t, 7, autograd.Dense(plain))
		_, err = a.Op(t.Context(), "worker1", "aten::eq", x, y)
		require.ErrorIs(t, err, agent.ErrArguments, "this operator has no gradient")
	})
}

// TestBackwardRef computes gradients of roots to which there are references.
func TestBackwardRef(t *testing.T) {
	run(t, 2, nil, func(t *testing.T, g *group) {
		x := parameter(2, 3)
		g.inContext(func(ctx context.Context, c *dist.Context) {
			f := rref.Remote(ctx, g.agents[0], "worker1", total, x)
			require.NoError(t, dist.BackwardRef(ctx, f, dist.PassOptions{RetainGraph: true}))
			requireGradient(t, 1, c, x)
			require.NoError(t, dist.BackwardRef(ctx, f, dist.PassOptions{}))
			requireGradient(t, 2, c, x)
			require.ErrorIs(t, dist.BackwardRef(t.Context(), f, dist.PassOptions{}), dist.ErrNoContext)
			require.NoError(t, f.Release(ctx))
		})
		own := rref.Own(g.agents[0], sum(t, t.Context(), x))
		require.NoError(t, dist.BackwardRef(t.Context(), own, dist.PassOptions{}))
		requireFilled(t, 1, x.Grad())
		g.inContext(func(ctx context.Context, c *dist.Context) {
			again := rref.Own(g.agents[0], sum(t, ctx, x))
			require.NoError(t, dist.BackwardRef(ctx, again, dist.PassOptions{}))
			requireGradient(t, 1, c, x)
			require.NoError(t, again.Release(ctx))
		})
		require.NoError(t, own.Release(t.Context()))
	})
}

// TestOptimizers takes steps of each algorithm with parameters on two workers, whose numbers are those
// of PyTorch.
func TestOptimizers(t *testing.T) {
	for name, c := range map[string]struct {
		algorithm dist.Algorithm
		want      []float32 // the parameters after two steps
	}{
		"SGD":               {dist.SGD{LR: 0.1}, []float32{0.61, 1.82}},
		"SGD, momentum":     {dist.SGD{LR: 0.1, Momentum: 0.5}, []float32{0.51, 1.77}},
		"SGD, weight decay": {dist.SGD{LR: 0.1, WeightDecay: 0.5}, []float32{0.5325, 1.635}},
		"Adam":              {dist.Adam{LR: 0.1}, []float32{0.8001665, 1.8004122}},
		"Adagrad":           {dist.Adagrad{LR: 0.1}, []float32{0.831125, 1.8331035}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 3, nil, func(t *testing.T, g *group) {
				var params []*rref.Ref[*autograd.Variable]
				for i, to := range []agent.To{"worker1", "worker2"} {
					params = append(params, rref.Remote(t.Context(), g.agents[0], to, newParameter, float32(i+1)))
				}
				o := dist.NewOptimizer(params, c.algorithm)
				for range 2 {
					g.inContext(func(ctx context.Context, c *dist.Context) {
						require.NoError(t, c.Backward(ctx, product(t, ctx, g, params)))
						require.NoError(t, o.Step(ctx))
					})
				}
				for i, f := range params {
					x, err := f.ToHere(t.Context())
					require.NoError(t, err)
					requireFilled(t, c.want[i], x.Value())
					require.NoError(t, f.Release(t.Context()))
				}
				require.ErrorIs(t, o.Step(t.Context()), dist.ErrNoContext)
				require.NoError(t, o.Release(t.Context()))
			})
		})
	}
}

// product returns the sum of the products of both parameters, computed where the first one is.
func product(t *testing.T, ctx context.Context, g *group, params []*rref.Ref[*autograd.Variable]) *autograd.Variable {
	y, err := params[1].ToHere(ctx)
	require.NoError(t, err)
	z, err := mulMethod.Call(ctx, params[0], y)
	require.NoError(t, err)
	return sum(t, ctx, z)
}
