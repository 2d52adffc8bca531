package autograd_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// sparseLeaf returns a sparse Variable of shape [2, 3] that requires a gradient, with the given values at
// [0, 1], [1, 2] and [1, 0].
func sparseLeaf(t *testing.T, values ...float64) *variable {
	t.Helper()
	indices := integers([]int64{0, 1, 1, 1, 2, 0}, 2, 3)
	s, err := tensor.NewSparse(indices.Tensor(), constant(values, 3).Tensor(), 2, 3)
	require.NoError(t, err)
	x := autograd.New(autograd.Sparse(s))
	require.NoError(t, x.RequireGrad())
	return x
}

// TestSparseGradients checks the gradients of operators on sparse tensors.
func TestSparseGradients(t *testing.T) {
	ctx, do := t.Context(), must(t)
	d := leaf(t, []float64{1, 2, 3, 4, 5, 6}, 2, 3)
	cases := map[string]struct {
		want []float64
		f    func(x *variable) (*variable, error)
	}{
		"sum": {[]float64{0, 1, 0, 1, 0, 1}, func(x *variable) (*variable, error) {
			return x, nil
		}},
		"add": {[]float64{0, 4, 0, 4, 0, 4}, func(x *variable) (*variable, error) {
			return autograd.AddScaled(ctx, x, x, 3)
		}},
		"sub": {[]float64{0, -2, 0, -2, 0, -2}, func(x *variable) (*variable, error) {
			return autograd.SubScaled(ctx, x, x, 3)
		}},
		"neg": {[]float64{0, -1, 0, -1, 0, -1}, func(x *variable) (*variable, error) { return autograd.Neg(ctx, x) }},
		"mul number": {[]float64{0, 2.5, 0, 2.5, 0, 2.5}, func(x *variable) (*variable, error) {
			return autograd.MulNumber(ctx, x, 2.5)
		}},
		"div number": {[]float64{0, 0.25, 0, 0.25, 0, 0.25}, func(x *variable) (*variable, error) {
			return autograd.DivNumber(ctx, x, 4)
		}},
		"square": {[]float64{0, 20, 0, 60, 0, 40}, func(x *variable) (*variable, error) {
			return autograd.Mul(ctx, x, x)
		}},
		"mul dense": {[]float64{0, 2, 0, 4, 0, 6}, func(x *variable) (*variable, error) {
			return autograd.Mul(ctx, x, d)
		}},
		"dense mul": {[]float64{0, 2, 0, 4, 0, 6}, func(x *variable) (*variable, error) {
			return autograd.Mul(ctx, d, x)
		}},
		"clone": {[]float64{0, 1, 0, 1, 0, 1}, func(x *variable) (*variable, error) { return autograd.Clone(ctx, x) }},
		"dense add": {[]float64{3, 3, 3, 3, 3, 3}, func(x *variable) (*variable, error) {
			return autograd.AddScaled(ctx, d, x, 3)
		}},
		"dense sub": {[]float64{-1, -1, -1, -1, -1, -1}, func(x *variable) (*variable, error) {
			return autograd.Sub(ctx, d, x)
		}},
		"to dense": {[]float64{0, 1, 0, 1, 0, 1}, func(x *variable) (*variable, error) {
			return autograd.ToDense(ctx, x)
		}},
		"to dense mul": {[]float64{0, 2, 0, 4, 0, 6}, func(x *variable) (*variable, error) {
			return autograd.Mul(ctx, do(autograd.ToDense(ctx, x)), d)
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			x := sparseLeaf(t, 10, 20, 30)
			y := do(c.f(x))
			require.NoError(t, backward(t, do(autograd.Sum(ctx, y))))
			requireGrad(t, x, c.want...)
			if y.Sparse() != nil || name == "to dense" {
				require.NotNil(t, x.Grad().Sparse())
			}
		})
	}
}

// TestSparseGradientOfDense checks a sparse gradient that meets operators that take only dense ones.
func TestSparseGradientOfDense(t *testing.T) {
	ctx, do := t.Context(), must(t)
	table, index := leaf(t, []float64{1, 2, 3, 4, 5, 6}, 3, 2), integers([]int64{2, 0, 2}, 3)
	y := do(autograd.Embedding(ctx, do(autograd.Exp(ctx, do(autograd.Neg(ctx, table)))), index, true))
	require.NoError(t, backward(t, do(autograd.Sum(ctx, y))))
	require.NotNil(t, table.Grad().Tensor())
	want := do(autograd.Neg(ctx, do(autograd.Exp(ctx, do(autograd.Neg(ctx, table))))))
	e := floats(t, want.Tensor())
	requireGrad(t, table, e[0], e[1], 0, 0, 2*e[4], 2*e[5])
}

// TestSparseAndDenseGradients checks the sum of gradients of different layouts in one leaf.
func TestSparseAndDenseGradients(t *testing.T) {
	ctx, do := t.Context(), must(t)
	index := integers([]int64{2, 0, 2}, 3)
	rows := func(x *variable) *variable {
		return do(autograd.Sum(ctx, do(autograd.Embedding(ctx, x, index, true))))
	}
	all := func(x *variable) *variable { return do(autograd.Sum(ctx, do(autograd.MulNumber(ctx, x, 10)))) }
	for name, c := range map[string]struct {
		passes [][]func(x *variable) *variable
		sparse bool
	}{
		"sparse":                           {[][]func(x *variable) *variable{{rows}}, true},
		"sparse twice":                     {[][]func(x *variable) *variable{{rows}, {rows}}, true},
		"sparse, then dense":               {[][]func(x *variable) *variable{{rows}, {all}}, false},
		"dense, then sparse":               {[][]func(x *variable) *variable{{all}, {rows}}, false},
		"both in one pass":                 {[][]func(x *variable) *variable{{rows, all}}, false},
		"both in one pass, in other order": {[][]func(x *variable) *variable{{all, rows, rows}, {rows}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			x, want := leaf(t, make([]float64, 6), 3, 2), make([]float64, 6)
			for _, pass := range c.passes {
				var roots []*variable
				for _, f := range pass {
					roots = append(roots, f(x))
				}
				require.NoError(t, autograd.Backward(ctx, roots))
			}
			for _, pass := range c.passes {
				for _, f := range pass {
					y := leaf(t, make([]float64, 6), 3, 2)
					require.NoError(t, backward(t, f(y)))
					dense, err := y.Grad().ToDense()
					require.NoError(t, err)
					for i, v := range floats(t, dense) {
						want[i] += v
					}
				}
			}
			requireGrad(t, x, want...)
			require.Equal(t, c.sparse, x.Grad().Sparse() != nil)
		})
	}
}

// TestSparseGradientMemory checks that a sparse gradient moves into its leaf if nothing else holds it.
func TestSparseGradientMemory(t *testing.T) {
	grad := sparseLeaf(t, 1, 2, 3).Value()
	for _, owned := range []bool{true, false} {
		x, v := leaf(t, make([]float64, 6), 2, 3), grad
		if owned {
			v = autograd.Owned(v)
		}
		require.NoError(t, backward(t, gradientMemory(t, func() []autograd.Value { return []autograd.Value{v} }, x)))
		require.Equal(t, owned, grad.Sparse().Values().Storage() == x.Grad().Sparse().Values().Storage())
		require.Equal(t, owned, grad.Sparse().Indices().Storage() == x.Grad().Sparse().Indices().Storage())
		requireGrad(t, x, 0, 1, 0, 3, 0, 2)
	}
}

// TestSparseInPlace checks a sparse tensor that is added to a dense one.
func TestSparseInPlace(t *testing.T) {
	ctx, do := t.Context(), must(t)
	x := sparseLeaf(t, 10, 20, 30)
	y := do(autograd.Clone(ctx, constant([]float64{1, 2, 3, 4, 5, 6}, 2, 3)))
	require.NoError(t, autograd.SubInPlace(ctx, y, x, 2))
	require.Equal(t, []float64{1, -18, 3, -56, 5, -34}, floats(t, y.Tensor()))
	require.NoError(t, backward(t, do(autograd.Sum(ctx, y))))
	requireGrad(t, x, -2, -2, -2, -2, -2, -2)
}

// TestSparseRoot checks a sparse root, whose gradient is sparse.
func TestSparseRoot(t *testing.T) {
	ctx := t.Context()
	x := sparseLeaf(t, 10, 20, 30)
	y := must(t)(autograd.MulNumber(ctx, x, 2))
	require.ErrorIs(t, backward(t, y), autograd.ErrNotScalar)
	require.NoError(t, backward(t, y, autograd.WithGradients(x.Value())))
	requireGrad(t, x, 0, 20, 0, 60, 0, 40)
	require.NoError(t, y.AddHook(func(_ context.Context, g autograd.Value) (autograd.Value, error) {
		dense, err := g.ToDense()
		return autograd.Dense(dense), err
	}))
	x.ZeroGrad()
	require.NoError(t, backward(t, y, autograd.WithGradients(x.Value())))
	require.NotNil(t, x.Grad().Tensor())
	requireGrad(t, x, 0, 20, 0, 60, 0, 40)
}
