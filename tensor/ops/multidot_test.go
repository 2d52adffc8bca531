package ops_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

func TestMultiDot(t *testing.T) {
	s := newSource(t)
	for _, sizes := range [][]int{{2, 3, 4}, {10, 1, 20, 3, 5}, {5, 30, 2, 40, 1, 6, 3}, {1, 4, 5, 1}, {3, 0, 4, 2}, {0, 3, 2, 5}} {
		for _, layout := range layouts {
			for name, e := range engines {
				t.Run(fmt.Sprint(sizes, layout, name), func(t *testing.T) {
					var xs []*tensor.Tensor
					for i := range sizes[1:] {
						xs = append(xs, s.tensor(tensor.F64, layout, sizes[i], sizes[i+1]))
					}
					want := xs[0]
					for _, x := range xs[1:] {
						var err error
						want, err = tensor.FromSlice(productOf(t, want, x), want.Shape()[0], x.Shape()[1])
						require.NoError(t, err)
					}
					got, err := e.MultiDot(t.Context(), xs)
					require.NoError(t, err)
					requireClose(t, tensor.F64, want.Shape(), floats(t, want), got)
				})
			}
		}
	}
}

func TestMultiDotVectors(t *testing.T) {
	s := newSource(t)
	v, w := s.tensor(tensor.F64, "strided", 3), s.tensor(tensor.F64, "strided", 5)
	a, b := s.tensor(tensor.F64, "contiguous", 3, 4), s.tensor(tensor.F64, "contiguous", 4, 5)
	row, err := tensor.FromSlice(productOf(t, unsqueeze(t, v, 0), a), 1, 4)
	require.NoError(t, err)
	ab, err := tensor.FromSlice(productOf(t, a, b), 3, 5)
	require.NoError(t, err)
	for _, e := range engines {
		for _, c := range []struct {
			xs    []*tensor.Tensor
			shape []int
			want  []float64
		}{
			{[]*tensor.Tensor{v, v}, []int{}, productOf(t, unsqueeze(t, v, 0), unsqueeze(t, v, 1))},
			{[]*tensor.Tensor{v, a, b}, []int{5}, productOf(t, row, b)},
			{[]*tensor.Tensor{a, b, w}, []int{3}, productOf(t, ab, unsqueeze(t, w, 1))},
			{[]*tensor.Tensor{v, ab, w}, []int{}, productOf(t, unsqueeze(t, v, 0), matrixOf(t, mustMv(t, ab, w)))},
		} {
			got, err := e.MultiDot(t.Context(), c.xs)
			require.NoError(t, err)
			requireClose(t, tensor.F64, c.shape, c.want, got)
		}
	}
}

// mustMv returns the product of a matrix and a vector as a matrix with one column.
func mustMv(t testing.TB, a, v *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	out, err := tensor.FromSlice(productOf(t, a, unsqueeze(t, v, 1)), a.Shape()[0], 1)
	require.NoError(t, err)
	return out
}

// The order of multiplication is the one with the fewest multiplications: from left to right, or from
// right to left, this product would need a matrix beyond the limit of the engine.
func TestMultiDotOrder(t *testing.T) {
	s := newSource(t)
	xs := []*tensor.Tensor{
		s.tensor(tensor.F64, "contiguous", 50, 1), s.tensor(tensor.F64, "contiguous", 1, 200),
		s.tensor(tensor.F64, "contiguous", 200, 1), s.tensor(tensor.F64, "contiguous", 1, 50),
	}
	e := &ops.Engine{MaxBytes: 50 * 50 * 8}
	_, err := e.MultiDot(t.Context(), xs)
	require.NoError(t, err)
	var limit *ops.LimitError
	_, err = e.Mm(t.Context(), xs[0], xs[1])
	require.ErrorAs(t, err, &limit)
	_, err = e.Mm(t.Context(), xs[2], xs[3])
	require.ErrorAs(t, err, &limit)
}

func TestMultiDotMany(t *testing.T) {
	one := tensorOf(t, tensor.F64, func(int) float64 { return 1 }, 1, 1)
	xs := make([]*tensor.Tensor, 1000)
	for i := range xs {
		xs[i] = one
	}
	got, err := (&ops.Engine{}).MultiDot(t.Context(), xs)
	require.NoError(t, err)
	requireData(t, []float64{1}, got)
}

func TestMultiDotErrors(t *testing.T) {
	f := func(shape ...int) *tensor.Tensor {
		x, err := tensor.Zeros(tensor.F32, shape...)
		require.NoError(t, err)
		return x
	}
	double, err := tensor.Zeros(tensor.F64, 2, 2)
	require.NoError(t, err)
	for _, c := range []struct {
		xs   []*tensor.Tensor
		text string
	}{
		{nil, "multi_dot(): expected at least 2 tensors but got 0"},
		{[]*tensor.Tensor{f(2, 2)}, "multi_dot(): expected at least 2 tensors but got 1"},
		{[]*tensor.Tensor{f(), f(2, 2)}, "multi_dot(): the first tensor must be 1D or 2D but got 0D"},
		{[]*tensor.Tensor{f(2, 2), f(2, 2, 2)}, "multi_dot(): the last tensor must be 1D or 2D but got 3D"},
		{[]*tensor.Tensor{f(2, 2), f(2), f(2, 2)}, "multi_dot(): tensor 1 must be 2D but got 1D"},
		{[]*tensor.Tensor{f(2, 2), double}, "multi_dot(): all tensors must have the same dtype but tensor 0 is Float and tensor 1 Double"},
		{[]*tensor.Tensor{f(2, 2), f(2, 2), f(3, 2)}, "multi_dot(): tensors 1 and 2 with shapes [2 2] and [3 2] cannot be multiplied"},
		{[]*tensor.Tensor{f(2, 2), f(3, 2)}, "mat1 and mat2 shapes cannot be multiplied (2x2 and 3x2)"},
	} {
		_, err := (&ops.Engine{}).MultiDot(t.Context(), c.xs)
		requireValueError(t, err, c.text)
	}
}
