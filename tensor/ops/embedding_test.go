package ops_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// indexTensor returns a tensor of random row numbers, of I64 or I32.
func (s *source) indexTensor(d tensor.DType, layout string, rows int, shape ...int) *tensor.Tensor {
	s.t.Helper()
	x := tensorOf(s.t, tensor.I64, func(int) float64 { return float64(s.rng.IntN(rows)) }, shape...)
	if d == tensor.I32 {
		list := make([]int32, x.Len())
		for i, v := range floats(s.t, x) {
			list[i] = int32(v)
		}
		var err error
		x, err = tensor.FromSlice(list, shape...)
		require.NoError(s.t, err)
	}
	return arrange(s.t, x, layout)
}

// numbers returns the elements of x, of I64 or I32.
func numbers(t testing.TB, x *tensor.Tensor) []int {
	t.Helper()
	var out []int
	if x.DType() == tensor.I32 {
		data, err := tensor.Data[int32](clone(t, x))
		require.NoError(t, err)
		for _, v := range data {
			out = append(out, int(v))
		}
		return out
	}
	for _, v := range floats(t, x) {
		out = append(out, int(v))
	}
	return out
}

func toDense(t testing.TB, s *tensor.Sparse) *tensor.Tensor {
	t.Helper()
	x, err := s.ToDense()
	require.NoError(t, err)
	return x
}

func TestEmbedding(t *testing.T) {
	s := newSource(t)
	const rows, width = 5, 3
	for _, shape := range [][]int{{}, {4}, {2, 6}, {2, 2, 2}, {0}, {3, 0}} {
		for _, d := range []tensor.DType{tensor.F32, tensor.F64} {
			for _, layout := range layouts {
				for name, e := range engines {
					for _, index := range []tensor.DType{tensor.I64, tensor.I32} {
						t.Run(fmt.Sprint(shape, d, layout, name, index), func(t *testing.T) {
							checkEmbedding(t, s, e, d, layout, s.indexTensor(index, layout, rows, shape...), rows, width)
						})
					}
				}
			}
		}
	}
}

// checkEmbedding compares the rows that indices lists, and the gradients, with loops.
func checkEmbedding(t *testing.T, s *source, e *ops.Engine, d tensor.DType, layout string, indices *tensor.Tensor, rows, width int) {
	t.Helper()
	weight, list := s.tensor(d, layout, rows, width), numbers(t, indices)
	table := floats(t, weight)
	shape := append(append([]int(nil), indices.Shape()...), width)
	grad := s.tensor(d, layout, shape...)
	g := floats(t, grad)
	var want []float64
	gradient := make([]float64, rows*width)
	for k, row := range list {
		want = append(want, table[row*width:][:width]...)
		for j := range width {
			gradient[row*width+j] += g[k*width+j]
		}
	}
	if want == nil {
		want = []float64{}
	}
	got, err := e.Embedding(t.Context(), weight, indices)
	require.NoError(t, err)
	requireClose(t, d, shape, want, got)

	got, err = e.EmbeddingBackward(t.Context(), grad, indices, rows)
	require.NoError(t, err)
	requireClose(t, d, []int{rows, width}, gradient, got)

	sparse, err := e.EmbeddingSparseBackward(t.Context(), grad, indices, rows)
	require.NoError(t, err)
	require.Equal(t, []int{1, len(list)}, sparse.Indices().Shape())
	require.Equal(t, list, numbers(t, sparse.Indices()))
	requireClose(t, d, []int{len(list), width}, g, sparse.Values())
	requireClose(t, d, []int{rows, width}, gradient, toDense(t, sparse))
}

func TestEmbeddingErrors(t *testing.T) {
	z := func(d tensor.DType, shape ...int) *tensor.Tensor {
		x, err := tensor.Zeros(d, shape...)
		require.NoError(t, err)
		return x
	}
	index := func(v float64) *tensor.Tensor { return tensorOf(t, tensor.I64, func(int) float64 { return v }, 2) }
	e := &ops.Engine{MaxBytes: 1 << 16}
	weight, grad := z(tensor.F32, 3, 4), z(tensor.F32, 2, 4)
	for _, v := range []float64{-1, 3, math.MinInt64, 1 << 62} {
		text := fmt.Sprintf("index out of range in self: %d is not in [0, 3)", int64(v))
		_, err := e.Embedding(t.Context(), weight, index(v))
		requireValueError(t, err, text)
		_, err = e.EmbeddingBackward(t.Context(), grad, index(v), 3)
		requireValueError(t, err, text)
		_, err = e.EmbeddingSparseBackward(t.Context(), grad, index(v), 3)
		requireValueError(t, err, text)
	}
	_, err := e.Embedding(t.Context(), z(tensor.F32, 3), index(0))
	requireValueError(t, err, "'weight' must be 2-D")
	_, err = e.Embedding(t.Context(), z(tensor.I64, 3, 4), index(0))
	requireValueError(t, err, "\"embedding\" not implemented for 'Long'")
	_, err = e.Embedding(t.Context(), weight, z(tensor.F32, 2))
	requireValueError(t, err, "Expected indices to have one of the following scalar types: Long, Int; but got Float instead")
	_, err = e.EmbeddingBackward(t.Context(), grad, z(tensor.I64, 3), 3)
	requireValueError(t, err, "the gradient of embedding has the shape [2 4], which does not fit indices of the shape [3]")
	_, err = e.EmbeddingBackward(t.Context(), z(tensor.F32), z(tensor.I64), 3)
	requireValueError(t, err, "the gradient of embedding has the shape [], which does not fit indices of the shape []")
	_, err = e.EmbeddingSparseBackward(t.Context(), grad, index(0), -1)
	requireValueError(t, err, "a weight cannot have -1 rows")

	var limit *ops.LimitError
	var shape *tensor.ShapeError
	_, err = e.Embedding(t.Context(), weight, expand(t, tensor.Scalar(int64(0)), 1<<40))
	require.ErrorAs(t, err, &limit)
	_, err = e.Embedding(t.Context(), expand(t, tensor.Scalar(float32(0)), 1<<40, 1), index(0))
	require.ErrorAs(t, err, &limit)
	_, err = e.EmbeddingBackward(t.Context(), grad, index(0), 1<<40)
	require.ErrorAs(t, err, &limit)
	_, err = e.EmbeddingSparseBackward(t.Context(), grad, index(0), math.MaxInt)
	require.ErrorAs(t, err, &shape)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = e.Embedding(ctx, weight, index(0))
	require.ErrorIs(t, err, context.Canceled)
}

// The indices of a sparse gradient are a copy: a caller may use the memory of its indices again.
func TestEmbeddingSparseIndices(t *testing.T) {
	indices := tensorOf(t, tensor.I64, func(i int) float64 { return float64(i) }, 2)
	grad, err := tensor.Zeros(tensor.F32, 2, 4)
	require.NoError(t, err)
	sparse, err := engines["loops"].EmbeddingSparseBackward(t.Context(), grad, indices, 3)
	require.NoError(t, err)
	require.NoError(t, tensor.Fill(indices, int64(99)))
	requireData(t, []int64{0, 1}, sparse.Indices())
}
