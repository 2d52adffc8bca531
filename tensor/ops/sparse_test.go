package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// sparseOf returns a sparse tensor of the given shape with the positions in at, one after the other,
// and random values.
func (s *source) sparseOf(d tensor.DType, at [][]int, shape ...int) *tensor.Sparse {
	s.t.Helper()
	sparse, n := len(at[0]), len(at)
	indices := tensorOf(s.t, tensor.I64, func(i int) float64 { return float64(at[i%n][i/n]) }, sparse, n)
	out, err := tensor.NewSparse(indices, s.tensor(d, "contiguous", append([]int{n}, shape[sparse:]...)...), shape...)
	require.NoError(s.t, err)
	return out
}

// sparseShapes are sparse tensors with dense dimensions and without, some of which list positions
// repeatedly.
func (s *source) sparseShapes(d tensor.DType) []*tensor.Sparse {
	return []*tensor.Sparse{
		s.sparseOf(d, [][]int{{0, 1}, {2, 0}, {2, 3}}, 3, 4),
		s.sparseOf(d, [][]int{{2, 3}, {0, 1}, {2, 3}}, 3, 4),
		s.sparseOf(d, [][]int{{2}, {0}, {2}}, 3, 4),
		s.sparseOf(d, [][]int{{1}}, 3, 4),
	}
}

func dense(t testing.TB, s *tensor.Sparse) *tensor.Tensor {
	t.Helper()
	x, err := s.ToDense()
	require.NoError(t, err)
	return x
}

// TestSparseArithmetic compares operators on sparse tensors with the same ones on dense tensors.
func TestSparseArithmetic(t *testing.T) {
	s := newSource(t)
	ctx := t.Context()
	plus := func(v, w float64) float64 { return v + 2*w }
	times := func(v, w float64) float64 { return v * w }
	shape := []int{3, 4}
	for _, a := range s.sparseShapes(tensor.F64) {
		for _, b := range s.sparseShapes(tensor.F64) {
			for _, e := range engines {
				if a.Indices().Shape()[0] != b.Indices().Shape()[0] {
					_, err := e.AddSparse(ctx, a, b, ops.Int(1))
					require.ErrorContains(t, err, "same number of sparse dimensions")
					_, err = e.MulSparse(ctx, a, b)
					require.ErrorContains(t, err, "same number of sparse dimensions")
					continue
				}
				sum, err := e.AddSparse(ctx, a, b, ops.Int(2))
				require.NoError(t, err)
				requireClose(t, tensor.F64, shape, combined(t, plus, dense(t, a), dense(t, b), shape), dense(t, sum))
				back, err := e.SubSparse(ctx, sum, b, ops.Int(2))
				require.NoError(t, err)
				requireClose(t, tensor.F64, shape, floats(t, dense(t, a)), dense(t, back))
				product, err := e.MulSparse(ctx, a, b)
				require.NoError(t, err)
				require.True(t, product.Coalesced())
				requireClose(t, tensor.F64, shape, combined(t, times, dense(t, a), dense(t, b), shape), dense(t, product))
			}
		}
	}
}

// TestSparseDense compares operators on a sparse and a dense tensor with the same ones on dense
// tensors, for all layouts of the dense one.
func TestSparseDense(t *testing.T) {
	s := newSource(t)
	ctx := t.Context()
	shape := []int{3, 4}
	for _, a := range s.sparseShapes(tensor.F64) {
		for _, layout := range layouts {
			for _, e := range engines {
				x := s.tensor(tensor.F64, layout, shape...)
				want := combined(t, func(v, w float64) float64 { return v + 2*w }, x, dense(t, a), shape)
				sum, err := e.AddDenseSparse(ctx, x, a, ops.Int(2))
				require.NoError(t, err)
				requireClose(t, tensor.F64, shape, want, sum)
				difference, err := e.SubDenseSparse(ctx, sum, a, ops.Int(2))
				require.NoError(t, err)
				requireClose(t, tensor.F64, shape, floats(t, x), difference)
				if layout != "expanded" && layout != "read-only" {
					y := arrange(t, x, layout)
					require.NoError(t, e.AddSparseInPlace(ctx, y, a, ops.Int(2)))
					requireClose(t, tensor.F64, shape, want, y)
				}
				product, err := e.MulSparseDense(ctx, a, x)
				require.NoError(t, err)
				requireClose(t, tensor.F64, shape, combined(t, func(v, w float64) float64 { return v * w }, x, dense(t, a), shape), dense(t, product))
				row := s.tensor(tensor.F64, "contiguous", 4)
				product, err = e.MulSparseDense(ctx, a, row)
				require.NoError(t, err)
				requireClose(t, tensor.F64, shape, combined(t, func(v, w float64) float64 { return v * w }, dense(t, a), row, shape), dense(t, product))
			}
		}
	}
}

// TestSparseMask checks that a mask picks the elements at its positions, and that filling and
// summing know only these.
func TestSparseMask(t *testing.T) {
	s := newSource(t)
	ctx := t.Context()
	for _, e := range engines {
		mask := s.sparseOf(tensor.F32, [][]int{{2, 3}, {0, 1}}, 3, 4)
		x := tensorOf(t, tensor.F32, func(i int) float64 { return float64(i) }, 3, 4)
		got, err := e.SparseMask(ctx, x, mask)
		require.NoError(t, err)
		requireData(t, []float32{11, 1}, got.Values())
		got, err = e.SparseMask(ctx, transpose(t, clone(t, transpose(t, x, 0, 1)), 0, 1), mask)
		require.NoError(t, err)
		requireData(t, []float32{11, 1}, got.Values())
		rows := s.sparseOf(tensor.F32, [][]int{{2}, {0}}, 3, 4)
		got, err = e.SparseMask(ctx, transpose(t, clone(t, transpose(t, x, 0, 1)), 0, 1), rows)
		require.NoError(t, err)
		requireData(t, []float32{8, 9, 10, 11, 0, 1, 2, 3}, got.Values())
		sum, err := e.SumSparse(ctx, got)
		require.NoError(t, err)
		requireData(t, []float32{44}, sum)
		got, err = e.FillLikeSparse(ctx, rows, tensor.Scalar(float32(7)))
		require.NoError(t, err)
		require.Equal(t, []int{2, 4}, got.Values().Shape())
		sum, err = e.SumSparse(ctx, got)
		require.NoError(t, err)
		requireData(t, []float32{56}, sum)
		half, err := e.DivSparseNumber(ctx, got, ops.Int(2))
		require.NoError(t, err)
		double, err := e.MulSparseNumber(ctx, half, ops.Float(-4))
		require.NoError(t, err)
		positive, err := e.NegSparse(ctx, double)
		require.NoError(t, err)
		requireData(t, []float32{14, 14, 14, 14, 14, 14, 14, 14}, positive.Values())
		wide, err := e.CastSparse(ctx, half, tensor.F64)
		require.NoError(t, err)
		require.Equal(t, tensor.F64, wide.DType())
		whole, err := e.ToDense(ctx, wide)
		require.NoError(t, err)
		requireClose(t, tensor.F64, []int{3, 4}, []float64{3.5, 3.5, 3.5, 3.5, 0, 0, 0, 0, 3.5, 3.5, 3.5, 3.5}, whole)
		copied, err := e.CloneSparse(ctx, half)
		require.NoError(t, err)
		same, err := tensor.EqualSparse(half, copied)
		require.NoError(t, err)
		require.True(t, same)
		require.NotSame(t, half.Values().Storage(), copied.Values().Storage())
	}
}

func TestSparseMatMul(t *testing.T) {
	s := newSource(t)
	for _, a := range s.sparseShapes(tensor.F64)[:2] {
		for _, layout := range layouts {
			for _, e := range engines {
				y := s.tensor(tensor.F64, layout, 4, 2)
				got, err := e.SparseMatMul(t.Context(), a, y)
				require.NoError(t, err)
				requireClose(t, tensor.F64, []int{3, 2}, productOf(t, dense(t, a), y), got)
			}
		}
	}
}

// TestSparseErrors checks errors of sparse operators, and that those that modify x do nothing then.
func TestSparseErrors(t *testing.T) {
	s := newSource(t)
	e, ctx := &ops.Engine{}, t.Context()
	a := s.sparseOf(tensor.F32, [][]int{{0}, {1}}, 3)
	x := tensorOf(t, tensor.F32, func(int) float64 { return 1 }, 3)
	other := s.sparseOf(tensor.F32, [][]int{{0}}, 4)
	_, err := e.MulSparse(ctx, a, other)
	requireValueError(t, err, "mul: expected sizes of 'self' and 'other' to match, but [3] != [4]")
	_, err = e.AddSparse(ctx, a, other, ops.Int(1))
	requireValueError(t, err, "add: expected sizes of 'self' and 'other' to match, but [3] != [4]")
	require.ErrorContains(t, e.AddSparseInPlace(ctx, x, other, ops.Int(1)), "(FYI: dense-sparse addition does not currently support broadcasting)")
	n := tensorOf(t, tensor.I64, func(int) float64 { return 1 }, 3)
	requireValueError(t, e.AddSparseInPlace(ctx, n, a, ops.Int(1)), "result type Float can't be cast to the desired output type Long")
	_, err = e.SparseMask(ctx, tensorOf(t, tensor.F32, func(int) float64 { return 1 }, 2), a)
	require.Error(t, err)
	_, err = e.FillLikeSparse(ctx, a, x)
	require.Error(t, err)
	huge := s.sparseOf(tensor.F32, [][]int{{0}}, 1<<40)
	_, err = (&ops.Engine{MaxBytes: 1 << 20}).ToDense(ctx, huge)
	var limit *ops.LimitError
	require.ErrorAs(t, err, &limit)

	require.NoError(t, tensor.Set(a.Indices(), int64(3), 0, 1)) // a peer may do so in shared memory
	var index *tensor.IndexError
	for name, f := range map[string]func() error{
		"in place": func() error { return e.AddSparseInPlace(ctx, x, a, ops.Int(1)) },
		"mask":     func() error { _, err := e.SparseMask(ctx, x, a); return err },
		"dense":    func() error { _, err := e.ToDense(ctx, a); return err },
		"mul":      func() error { _, err := e.MulSparseDense(ctx, a, x); return err },
		"pair":     func() error { _, err := e.MulSparse(ctx, a, a); return err },
	} {
		require.ErrorAs(t, f(), &index, name)
	}
	requireData(t, []float32{1, 1, 1}, x)
}

// TestAddSparseInPlaceSharedMemory checks that values which are a part of x count as they were.
func TestAddSparseInPlaceSharedMemory(t *testing.T) {
	x := tensorOf(t, tensor.F32, func(i int) float64 { return float64(i + 1) }, 3)
	values, err := x.Narrow(0, 0, 2)
	require.NoError(t, err)
	s, err := tensor.NewSparse(tensorOf(t, tensor.I64, func(i int) float64 { return float64(1 - i) }, 1, 2), values, 3)
	require.NoError(t, err)
	require.NoError(t, (&ops.Engine{}).AddSparseInPlace(t.Context(), x, s, ops.Int(1)))
	requireData(t, []float32{3, 3, 3}, x)
}
