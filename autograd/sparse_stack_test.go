package autograd_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// TestStackSparse checks the stack of sparse tensors, and that the gradient of each one has its values
// and its positions only.
func TestStackSparse(t *testing.T) {
	leaf := func(at []int64, values ...float64) *autograd.Variable {
		indices, err := tensor.FromSlice(at, 1, len(at))
		require.NoError(t, err)
		data, err := tensor.FromSlice(values, len(values))
		require.NoError(t, err)
		s, err := tensor.NewSparse(indices, data, 4)
		require.NoError(t, err)
		x := autograd.New(autograd.Sparse(s))
		require.NoError(t, x.RequireGrad())
		return x
	}
	for _, dim := range []int{0, 1, -1} {
		ctx := t.Context()
		x, y := leaf([]int64{0, 2}, 3, 5), leaf([]int64{1}, 7)
		s, err := autograd.Stack(ctx, []*autograd.Variable{x, y}, dim)
		require.NoError(t, err)
		require.Equal(t, "StackBackward0", s.Node().Name())
		square, err := autograd.Mul(ctx, s, s)
		require.NoError(t, err)
		loss, err := autograd.Sum(ctx, square)
		require.NoError(t, err)
		require.NoError(t, autograd.Backward(ctx, []*autograd.Variable{loss}))
		for _, c := range []struct {
			of   *autograd.Variable
			want []float64
			n    int
		}{{x, []float64{6, 0, 10, 0}, 2}, {y, []float64{0, 14, 0, 0}, 1}} {
			require.NotNil(t, c.of.Grad().Sparse())
			require.Equal(t, c.n, c.of.Grad().Sparse().Len())
			whole, err := c.of.Grad().ToDense()
			require.NoError(t, err)
			got, err := tensor.Data[float64](whole)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		}
	}
}

// TestStackSparseErrors checks the errors for lists of dense and sparse tensors.
func TestStackSparseErrors(t *testing.T) {
	indices, err := tensor.FromSlice([]int64{0}, 1, 1)
	require.NoError(t, err)
	one, err := tensor.FromSlice([]float32{1}, 1)
	require.NoError(t, err)
	s, err := tensor.NewSparse(indices, one, 1)
	require.NoError(t, err)
	x := autograd.New(autograd.Sparse(s))
	_, err = autograd.Stack(t.Context(), []*autograd.Variable{x, autograd.Constant(one)}, 0)
	require.ErrorIs(t, err, autograd.ErrSparse)
	_, err = autograd.Stack(t.Context(), []*autograd.Variable{x, x}, 2)
	require.ErrorContains(t, err, "autograd: stack: Dimension out of range")
}
