package autograd_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// cast returns x in another dtype, as a Variable that requires a gradient.
func cast(t *testing.T, x *variable, d tensor.DType) *variable {
	t.Helper()
	converted, err := (&ops.Engine{}).Cast(t.Context(), x.Tensor(), d)
	require.NoError(t, err)
	y, err := autograd.Parameter(converted)
	require.NoError(t, err)
	return y
}

// TestMixedTypes checks that each gradient has the dtype of its Variable.
func TestMixedTypes(t *testing.T) {
	ctx, do := t.Context(), must(t)
	for name, f := range map[string]func(_ context.Context, x, y *variable) (*variable, error){
		"add": autograd.Add, "sub": autograd.Sub, "mul": autograd.Mul, "div": autograd.Div,
	} {
		t.Run(name, func(t *testing.T) {
			a, b := leaf(t, []float64{2, 3}, 2), leaf(t, []float64{5, 7}, 2)
			x := cast(t, a, tensor.F32)
			for _, pair := range [][2]*variable{{x, b}, {b, x}} {
				x.ZeroGrad()
				b.ZeroGrad()
				y := do(f(ctx, pair[0], pair[1]))
				require.Equal(t, tensor.F64, y.DType())
				require.NoError(t, backward(t, do(autograd.Sum(ctx, y))))
				require.Equal(t, tensor.F32, x.Grad().DType())
				require.Equal(t, tensor.F64, b.Grad().DType())

				want := [2]*variable{a, leaf(t, []float64{5, 7}, 2)}
				if pair[0] == b {
					want[0], want[1] = want[1], want[0]
				}
				require.NoError(t, backward(t, do(autograd.Sum(ctx, do(f(ctx, want[0], want[1]))))))
				for i, v := range pair {
					require.InDeltaSlice(t, floats(t, want[i].Grad().Tensor()), floats(t, v.Grad().Tensor()), 1e-6)
				}
				a.ZeroGrad()
			}
		})
	}
}

// TestScalarOfOtherType checks a tensor without dimensions, whose dtype does not count for the result.
func TestScalarOfOtherType(t *testing.T) {
	ctx, do := t.Context(), must(t)
	x, scale := cast(t, leaf(t, []float64{2, 3}, 2), tensor.F32), leaf(t, []float64{5})
	y := do(autograd.Mul(ctx, x, scale))
	require.Equal(t, tensor.F32, y.DType())
	require.NoError(t, backward(t, do(autograd.Sum(ctx, y))))
	require.Equal(t, tensor.F32, x.Grad().DType())
	require.Equal(t, tensor.F64, scale.Grad().DType())
	requireGrad(t, scale, 5)
}

// TestIntegers checks integers among the arguments of operators, which get no gradient.
func TestIntegers(t *testing.T) {
	ctx, do := t.Context(), must(t)
	x, n := leaf(t, []float64{2, 3}, 2), integers([]int64{5, 7}, 2)
	require.NoError(t, backward(t, do(autograd.Sum(ctx, do(autograd.Mul(ctx, x, n))))))
	requireGrad(t, x, 5, 7)
	require.Equal(t, tensor.I64, do(autograd.MulNumber(ctx, n, 3)).DType())
	require.Equal(t, tensor.F32, do(autograd.MulNumber(ctx, n, 0.5)).DType())

	var wrong *tensor.DTypeError
	require.ErrorAs(t, n.RequireGrad(), &wrong)
	require.ErrorAs(t, new(variable).RequireGrad(), &wrong)
	_, err := autograd.Parameter(n.Tensor())
	require.ErrorAs(t, err, &wrong)
	require.False(t, n.RequiresGrad())
}

// TestGivenGradientOfOtherType checks a root's gradient in another dtype.
func TestGivenGradientOfOtherType(t *testing.T) {
	x := cast(t, leaf(t, []float64{2, 3}, 2), tensor.F32)
	y := must(t)(autograd.MulNumber(t.Context(), x, 2))
	require.NoError(t, backward(t, y, autograd.WithGradients(constant([]float64{1, 10}, 2).Value())))
	require.Equal(t, tensor.F32, x.Grad().DType())
	require.Equal(t, []float64{2, 20}, floats(t, x.Grad().Tensor()))
}

// TestNegativeZero checks that the sign of a number that is zero counts.
func TestNegativeZero(t *testing.T) {
	ctx, do := t.Context(), must(t)
	x := leaf(t, []float64{2})
	zero := do(autograd.MulNumber(ctx, constant([]float64{1}), -1))
	zero = do(autograd.MulNumber(ctx, zero, 0)) // -0
	y := do(autograd.Div(ctx, x, do(autograd.MulNumber(ctx, constant([]float64{1}), floats(t, zero.Tensor())[0]))))
	require.Negative(t, floats(t, y.Tensor())[0])
}
