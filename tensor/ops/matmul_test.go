package ops_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops/gonumblas"
)

// productOf returns the product of x and y, of two dimensions or more and with the same dimensions
// before the matrices, by a loop over all elements.
func productOf(t testing.TB, x, y *tensor.Tensor) []float64 {
	t.Helper()
	r := x.Rank()
	m, k, n := x.Shape()[r-2], x.Shape()[r-1], y.Shape()[r-1]
	a, b := floats(t, x), floats(t, y)
	batches := 1
	for _, size := range x.Shape()[:r-2] {
		batches *= size
	}
	out := make([]float64, 0, batches*m*n)
	for p := range batches {
		for i := range m {
			for j := range n {
				sum := 0.0
				for l := range k {
					sum += a[(p*m+i)*k+l] * b[(p*k+l)*n+j]
				}
				out = append(out, sum)
			}
		}
	}
	return out
}

func expand(t testing.TB, x *tensor.Tensor, shape ...int) *tensor.Tensor {
	t.Helper()
	x, err := x.Expand(shape...)
	require.NoError(t, err)
	return x
}

func unsqueeze(t testing.TB, x *tensor.Tensor, dim int) *tensor.Tensor {
	t.Helper()
	x, err := x.Unsqueeze(dim)
	require.NoError(t, err)
	return x
}

func TestMatMulMatrices(t *testing.T) {
	s := newSource(t)
	for _, size := range [][3]int{{1, 1, 1}, {2, 2, 2}, {3, 5, 4}, {1, 7, 6}, {7, 6, 1}, {32, 64, 10}, {70, 65, 67}, {0, 3, 2}, {3, 0, 2}, {3, 2, 0}} {
		m, k, n := size[0], size[1], size[2]
		for _, d := range []tensor.DType{tensor.F32, tensor.F64} {
			for _, left := range layouts {
				for _, right := range layouts {
					x, y := s.tensor(d, left, m, k), s.tensor(d, right, k, n)
					for name, e := range engines {
						t.Run(fmt.Sprint(size, d, left, "x", right, name), func(t *testing.T) {
							got, err := e.MatMul(t.Context(), x, y)
							require.NoError(t, err)
							requireClose(t, d, []int{m, n}, productOf(t, x, y), got)
							mm, err := e.Mm(t.Context(), x, y)
							require.NoError(t, err)
							require.Equal(t, floats(t, got), floats(t, mm))
						})
					}
				}
			}
		}
	}
}

func TestMatMulRanks(t *testing.T) {
	s := newSource(t)
	for _, c := range []struct{ x, y, batch []int }{
		{[]int{4, 2, 3}, []int{3, 5}, []int{4}},
		{[]int{2, 4, 2, 3}, []int{3, 5}, []int{2, 4}},
		{[]int{4, 2, 3}, []int{1, 1, 3, 5}, []int{1, 4}},
		{[]int{4, 2, 3}, []int{4, 3, 5}, []int{4}},
		{[]int{2, 3}, []int{4, 3, 5}, []int{4}},
		{[]int{1, 2, 3}, []int{4, 3, 5}, []int{4}},
		{[]int{6, 1, 2, 3}, []int{4, 3, 5}, []int{6, 4}},
		{[]int{0, 2, 3}, []int{3, 5}, []int{0}},
		{[]int{0, 2, 3}, []int{0, 3, 5}, []int{0}},
		{[]int{2, 0, 2, 3}, []int{0, 3, 5}, []int{2, 0}},
	} {
		for _, layout := range layouts {
			for name, e := range engines {
				t.Run(fmt.Sprint(c, layout, name), func(t *testing.T) {
					x, y := s.tensor(tensor.F64, layout, c.x...), s.tensor(tensor.F64, layout, c.y...)
					got, err := e.MatMul(t.Context(), x, y)
					require.NoError(t, err)
					m, k, n := c.x[len(c.x)-2], c.x[len(c.x)-1], c.y[len(c.y)-1]
					all := func(z *tensor.Tensor, a, b int) *tensor.Tensor {
						return expand(t, z, append(append([]int(nil), c.batch...), a, b)...)
					}
					requireClose(t, tensor.F64, append(append([]int(nil), c.batch...), m, n), productOf(t, all(x, m, k), all(y, k, n)), got)
				})
			}
		}
	}
}

func TestMatMulVectors(t *testing.T) {
	s := newSource(t)
	for _, layout := range layouts {
		for name, e := range engines {
			t.Run(layout+" "+name, func(t *testing.T) {
				v, w := s.tensor(tensor.F64, layout, 6), s.tensor(tensor.F64, layout, 6)
				row, column := unsqueeze(t, v, 0), unsqueeze(t, w, 1)
				a, batch := s.tensor(tensor.F64, layout, 6, 4), s.tensor(tensor.F64, layout, 3, 2, 6)

				got, err := e.Dot(t.Context(), v, w)
				require.NoError(t, err)
				requireClose(t, tensor.F64, []int{}, productOf(t, row, column), got)

				got, err = e.MatMul(t.Context(), v, a)
				require.NoError(t, err)
				requireClose(t, tensor.F64, []int{4}, productOf(t, row, a), got)

				got, err = e.Mv(t.Context(), transpose(t, a, 0, 1), w)
				require.NoError(t, err)
				requireClose(t, tensor.F64, []int{4}, productOf(t, transpose(t, a, 0, 1), column), got)

				got, err = e.MatMul(t.Context(), batch, w)
				require.NoError(t, err)
				requireClose(t, tensor.F64, []int{3, 2}, productOf(t, batch, expand(t, column, 3, 6, 1)), got)

				got, err = e.MatMul(t.Context(), v, transpose(t, batch, 1, 2))
				require.NoError(t, err)
				requireClose(t, tensor.F64, []int{3, 2}, productOf(t, expand(t, row, 3, 1, 6), transpose(t, batch, 1, 2)), got)

				got, err = e.Bmm(t.Context(), batch, transpose(t, batch, 1, 2))
				require.NoError(t, err)
				requireClose(t, tensor.F64, []int{3, 2, 2}, productOf(t, batch, transpose(t, batch, 1, 2)), got)
			})
		}
	}
}

// Integers wrap around, and complex numbers and half precision have no Gemm.
func TestMatMulOtherDTypes(t *testing.T) {
	for name, e := range engines {
		t.Run(name, func(t *testing.T) {
			bytes, err := tensor.FromSlice([]uint8{100, 3, 2, 1}, 2, 2)
			require.NoError(t, err)
			got, err := e.Mm(t.Context(), bytes, bytes)
			require.NoError(t, err)
			requireData(t, []uint8{10006 % 256, 303 % 256, 202, 7}, got)

			complexes, err := tensor.FromSlice([]complex64{1, 2i, 3, 4}, 2, 2)
			require.NoError(t, err)
			got, err = e.Mm(t.Context(), complexes, transpose(t, complexes, 0, 1))
			require.NoError(t, err)
			requireData(t, []complex64{-3, 3 + 8i, 3 + 8i, 25}, got)

			halves, err := tensor.FromSlice([]tensor.BFloat16{tensor.ToBFloat16(1.5), tensor.ToBFloat16(-2)}, 1, 2)
			require.NoError(t, err)
			bias, err := tensor.FromSlice([]tensor.BFloat16{tensor.ToBFloat16(0.25)}, 1)
			require.NoError(t, err)
			got, err = e.Linear(t.Context(), halves, halves, bias)
			require.NoError(t, err)
			requireData(t, []tensor.BFloat16{tensor.ToBFloat16(6.5)}, got)
		})
	}
}

func requireData[T tensor.Element](t testing.TB, want []T, got *tensor.Tensor) {
	t.Helper()
	data, err := tensor.Data[T](got)
	require.NoError(t, err)
	require.Equal(t, want, data)
}

func TestMatMulErrors(t *testing.T) {
	zeros := func(d tensor.DType, shape ...int) *tensor.Tensor {
		x, err := tensor.Zeros(d, shape...)
		require.NoError(t, err)
		return x
	}
	f := func(shape ...int) *tensor.Tensor { return zeros(tensor.F32, shape...) }
	for _, e := range engines {
		for _, c := range []struct {
			f    func(context.Context, *tensor.Tensor, *tensor.Tensor) (*tensor.Tensor, error)
			x, y *tensor.Tensor
			text string
		}{
			{e.MatMul, f(), f(2), "both arguments to matmul need to be at least 1D, but they are 0D and 1D"},
			{e.MatMul, f(2, 3), f(4, 5), "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"},
			{e.MatMul, f(2, 3), zeros(tensor.F64, 3, 5), "expected scalar type Float but found Double"},
			{e.MatMul, zeros(tensor.Bool, 1, 1), zeros(tensor.Bool, 1, 1), "matrices of bools cannot be multiplied"},
			{e.Mm, f(2), f(2, 2), "self must be a matrix"},
			{e.Mm, f(2, 2), f(2), "mat2 must be a matrix"},
			{e.Bmm, f(2, 2), f(2, 2, 2), "batch1 must be a 3D tensor"},
			{e.Bmm, f(2, 2, 2), f(2, 2), "batch2 must be a 3D tensor"},
			{e.Bmm, f(2, 3, 4), f(3, 4, 5), "Expected size for first two dimensions of batch2 tensor to be: [2, 4] but got: [3, 4]."},
			{e.Mv, f(2), f(2), "vector + matrix @ vector expected, got 1, 1, 1"},
			{e.Dot, f(2, 2), f(2), "1D tensors expected, but got 2D and 1D tensors"},
		} {
			_, err := c.f(t.Context(), c.x, c.y)
			requireValueError(t, err, c.text)
		}
		var size *ops.SizeError
		_, err := e.MatMul(t.Context(), f(2, 1, 1), f(3, 1, 1))
		require.ErrorAs(t, err, &size)
		require.Equal(t, ops.SizeError{A: 2, B: 3, Dim: 0}, *size)
	}
}

// Operands of a few bytes can stand for a product of any size.
func TestMatMulHuge(t *testing.T) {
	one := tensor.Scalar(float32(1))
	for _, gemm := range []ops.Gemm{nil, gonumblas.Gemm{}} {
		e := &ops.Engine{Gemm: gemm, MaxBytes: 1 << 20}
		var limit *ops.LimitError
		_, err := e.MatMul(t.Context(), expand(t, one, 1<<20, 1), expand(t, one, 1, 1<<20))
		require.ErrorAs(t, err, &limit)
		_, err = e.MatMul(t.Context(), expand(t, one, 1, 1<<40), expand(t, one, 1<<40, 1))
		require.ErrorAs(t, err, &limit)
		var shape *tensor.ShapeError
		_, err = e.MatMul(t.Context(), expand(t, one, 1<<40, 1), expand(t, one, 1, 1<<40))
		require.ErrorAs(t, err, &shape)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = e.MatMul(ctx, expand(t, one, 2, 2), expand(t, one, 2, 2))
		require.ErrorIs(t, err, context.Canceled)
	}
}

// A matrix that is repeated for each matrix of the other operand is copied once.
func TestMatMulRepeated(t *testing.T) {
	s := newSource(t)
	const batch, k = 100, 50
	row := s.tensor(tensor.F64, "strided", 1, k)
	columns := s.tensor(tensor.F64, "contiguous", batch, k, 1)
	for _, gemm := range []ops.Gemm{nil, gonumblas.Gemm{}} {
		e := &ops.Engine{Gemm: gemm, MaxBytes: batch * 8}
		got, err := e.MatMul(t.Context(), expand(t, row, batch, 1, k), columns)
		require.NoError(t, err)
		requireClose(t, tensor.F64, []int{batch, 1, 1}, productOf(t, expand(t, row, batch, 1, k), columns), got)
	}
}

func TestMatMulReleased(t *testing.T) {
	for _, e := range engines {
		x, err := tensor.Zeros(tensor.F32, 2, 2)
		require.NoError(t, err)
		x.Release()
		if invariants.Enabled {
			require.Panics(t, func() { _, _ = e.MatMul(t.Context(), x, x) })
			continue
		}
		_, err = e.MatMul(t.Context(), x, x)
		require.ErrorIs(t, err, tensor.ErrReleased)
	}
}

// NaN and infinity in the operands reach the result.
func TestMatMulNotFinite(t *testing.T) {
	for name, e := range engines {
		x, err := tensor.FromSlice([]float64{math.NaN(), 1, math.Inf(1), 1}, 2, 2)
		require.NoError(t, err)
		y, err := tensor.FromSlice([]float64{1, 1}, 2)
		require.NoError(t, err)
		got, err := e.Mv(t.Context(), x, y)
		require.NoError(t, err)
		data := floats(t, got)
		require.True(t, math.IsNaN(data[0]), name)
		require.True(t, math.IsInf(data[1], 1), name)
	}
}
