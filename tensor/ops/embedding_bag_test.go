package ops_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// bagCase is the shape of the indices of embedding_bag, and the bags in them.
type bagCase struct {
	shape   []int
	offsets []int64 // nil if there is none
	last    bool    // IncludeLastOffset
	bags    [][2]int
}

var bagCases = []bagCase{
	{[]int{6}, []int64{0, 2, 5}, false, [][2]int{{0, 2}, {2, 5}, {5, 6}}},
	{[]int{6}, []int64{0, 0, 3, 6}, false, [][2]int{{0, 0}, {0, 3}, {3, 6}, {6, 6}}},
	{[]int{6}, []int64{0, 2, 5}, true, [][2]int{{0, 2}, {2, 5}}},
	{[]int{6}, []int64{0}, true, [][2]int{}},
	{[]int{4}, []int64{}, false, [][2]int{}},
	{[]int{0}, []int64{0, 0}, false, [][2]int{{0, 0}, {0, 0}}},
	{[]int{2, 3}, nil, false, [][2]int{{0, 3}, {3, 6}}},
	{[]int{3, 0}, nil, false, [][2]int{{0, 0}, {0, 0}, {0, 0}}},
	{[]int{0, 3}, nil, false, [][2]int{}},
}

func TestEmbeddingBag(t *testing.T) {
	s := newSource(t)
	for i, c := range bagCases {
		for _, d := range []tensor.DType{tensor.F32, tensor.F64} {
			for _, layout := range layouts {
				for name, e := range engines {
					for _, mode := range []string{"sum", "mean", "weights"} {
						t.Run(fmt.Sprint(i, d, layout, name, mode), func(t *testing.T) { checkBag(t, s, c, e, d, layout, mode) })
					}
				}
			}
		}
	}
}

// checkBag compares the result and the gradients of embedding_bag with loops.
func checkBag(t *testing.T, s *source, c bagCase, e *ops.Engine, d tensor.DType, layout, mode string) {
	t.Helper()
	const rows, width = 5, 3
	o := ops.BagOptions{IncludeLastOffset: c.last}
	weight, indices := s.tensor(d, layout, rows, width), s.indexTensor(tensor.I64, layout, rows, c.shape...)
	grad := s.tensor(d, layout, len(c.bags), width)
	var offsets, samples *tensor.Tensor
	if c.offsets != nil {
		offsets = tensorOf(t, tensor.I64, func(i int) float64 { return float64(c.offsets[i]) }, len(c.offsets))
	}
	list, table, g := numbers(t, indices), floats(t, weight), floats(t, grad)
	factors := make([]float64, len(list))
	for i := range factors {
		factors[i] = 1
	}
	switch mode {
	case "mean":
		o.Mode = ops.BagMean
		for _, bag := range c.bags {
			for k := bag[0]; k < bag[1]; k++ {
				factors[k] = 1 / float64(bag[1]-bag[0])
			}
		}
	case "weights":
		samples = s.tensor(d, layout, c.shape...)
		factors = floats(t, samples)
	}
	sums, gradient, products := make([]float64, len(c.bags)*width), make([]float64, rows*width), make([]float64, len(list))
	for b, bag := range c.bags {
		for k := bag[0]; k < bag[1]; k++ {
			for j := range width {
				sums[b*width+j] += factors[k] * table[list[k]*width+j]
				gradient[list[k]*width+j] += factors[k] * g[b*width+j]
				products[k] += table[list[k]*width+j] * g[b*width+j]
			}
		}
	}
	got, err := e.EmbeddingBag(t.Context(), weight, indices, offsets, samples, o)
	require.NoError(t, err)
	requireClose(t, d, []int{len(c.bags), width}, sums, got)

	got, err = e.EmbeddingBagBackward(t.Context(), grad, indices, offsets, samples, rows, o)
	require.NoError(t, err)
	requireClose(t, d, []int{rows, width}, gradient, got)

	sparse, err := e.EmbeddingBagSparseBackward(t.Context(), grad, indices, offsets, samples, rows, o)
	require.NoError(t, err)
	end := 0
	if len(c.bags) > 0 {
		end = c.bags[len(c.bags)-1][1]
	}
	require.Equal(t, append([]int(nil), list[:end]...), numbers(t, sparse.Indices()))
	requireClose(t, d, []int{rows, width}, gradient, toDense(t, sparse))

	got, err = e.EmbeddingBagWeightsBackward(t.Context(), grad, weight, indices, offsets, c.last)
	require.NoError(t, err)
	requireClose(t, d, c.shape, products, got)
}

func TestEmbeddingBagErrors(t *testing.T) {
	z := func(d tensor.DType, shape ...int) *tensor.Tensor {
		x, err := tensor.Zeros(d, shape...)
		require.NoError(t, err)
		return x
	}
	long := func(values ...int64) *tensor.Tensor {
		x, err := tensor.FromSlice(values, len(values))
		require.NoError(t, err)
		return x
	}
	weight, matrix, mean := z(tensor.F32, 3, 4), z(tensor.I64, 2, 2), ops.BagOptions{Mode: ops.BagMean}
	e := &ops.Engine{MaxBytes: 1 << 16}
	for _, c := range []struct {
		indices, offsets, samples *tensor.Tensor
		o                         ops.BagOptions
		text                      string
	}{
		{long(1, 3), long(0), nil, mean, "index out of range in self: 3 is not in [0, 3)"},
		{long(1, -1), long(0), nil, mean, "index out of range in self: -1 is not in [0, 3)"},
		{long(1, 1), nil, nil, mean, "offsets has to be a 1D Tensor but got None"},
		{long(1, 1), matrix, nil, mean, "offsets has to be a 1D Tensor"},
		{long(1, 1), z(tensor.F32, 1), nil, mean, "Expected offsets to have one of the following scalar types: Long, Int; but got Float instead"},
		{long(1, 1), long(1), nil, mean, "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. However, got 1"},
		{long(1, 1), long(0, 2, 1), nil, mean, "offsets must not decrease, but offsets[2] is 1, after 2"},
		{long(1, 1), long(0, -1), nil, mean, "offsets must not decrease, but offsets[1] is -1, after 0"},
		{long(1, 1), long(0, 3), nil, mean, "offsets[1] can not be greater than input's length 2 but got offsets[1] of 3"},
		{long(1, 1), long(), nil, ops.BagOptions{IncludeLastOffset: true}, "include_last_offset: number of offset should be at least 1"},
		{matrix, long(0), nil, mean, "if input is 2D, then offsets has to be None, as input is treated is a mini-batch of fixed length sequences."},
		{z(tensor.I64, 1, 1, 1), nil, nil, mean, "input has to be 1D or 2D Tensor, but got Tensor of dimension 3"},
		{z(tensor.F32, 2), long(0), nil, mean, "Expected indices to have one of the following scalar types: Long, Int; but got Float instead"},
		{long(1, 1), long(0), z(tensor.F32, 3), ops.BagOptions{}, "embedding_bag: If per_sample_weights ([3]) is not None, then it must have the same shape as the input ([2])"},
		{long(1, 1), long(0), z(tensor.F64, 2), ops.BagOptions{}, "expected scalar type Float but found Double"},
		{long(1, 1), long(0), z(tensor.F32, 2), mean, "embedding_bag: per_sample_weights was not None. per_sample_weights is only supported for mode='sum' (got mode='mean')."},
		{long(1, 1), long(0), nil, ops.BagOptions{Mode: 7}, "7 is not a mode of embedding_bag: want sum or mean"},
	} {
		_, err := e.EmbeddingBag(t.Context(), weight, c.indices, c.offsets, c.samples, c.o)
		requireValueError(t, err, c.text)
		_, err = e.EmbeddingBagBackward(t.Context(), z(tensor.F32, 1, 4), c.indices, c.offsets, c.samples, 3, c.o)
		requireValueError(t, err, c.text)
		_, err = e.EmbeddingBagSparseBackward(t.Context(), z(tensor.F32, 1, 4), c.indices, c.offsets, c.samples, 3, c.o)
		requireValueError(t, err, c.text)
	}
	var invalid *ops.ValueError
	for _, grad := range []*tensor.Tensor{z(tensor.F32, 2, 4), z(tensor.F32, 4), z(tensor.F64, 1, 4), z(tensor.F32, 1, 5), z(tensor.I64, 1, 4)} {
		_, err := e.EmbeddingBagWeightsBackward(t.Context(), grad, weight, long(1, 1), long(0), false)
		require.ErrorAs(t, err, &invalid)
	}
	_, err := e.EmbeddingBagBackward(t.Context(), z(tensor.F32, 1, 4), long(1, 1), long(0), nil, -1, mean)
	requireValueError(t, err, "a weight cannot have -1 rows")
	_, err = e.EmbeddingBagBackward(t.Context(), z(tensor.F32, 3, 4), long(1, 1), long(0), nil, 3, mean)
	requireValueError(t, err, "the gradient of embedding_bag must have the shape [1 4], not [3 4]")
	_, err = e.EmbeddingBag(t.Context(), z(tensor.F32, 4), long(1), long(0), nil, mean)
	requireValueError(t, err, "'weight' must be 2-D")

	var limit *ops.LimitError
	_, err = e.EmbeddingBag(t.Context(), weight, z(tensor.I64, 1<<40, 0), nil, nil, mean)
	require.ErrorAs(t, err, &limit)
	_, err = e.EmbeddingBag(t.Context(), weight, long(), expand(t, tensor.Scalar(int64(0)), 1<<40), nil, mean)
	require.ErrorAs(t, err, &limit)
	_, err = e.EmbeddingBagBackward(t.Context(), z(tensor.F32, 1, 4), long(1, 1), long(0), nil, 1<<40, mean)
	require.ErrorAs(t, err, &limit)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = e.EmbeddingBagBackward(ctx, z(tensor.F32, 1, 4), long(1, 1), long(0), nil, 3, mean)
	require.ErrorIs(t, err, context.Canceled)
}
