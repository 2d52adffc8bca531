package autograd_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// operands is an operator with the shapes of its arguments that have gradients.
type operands struct {
	shapes [][]int
	apply  func(ctx context.Context, xs []*autograd.Variable) ([]*autograd.Variable, error)
}

// gradientCase is an operator for tensors with elements, and for tensors without.
type gradientCase struct {
	name  string
	plain operands
	empty operands
}

// layouts makes a tensor with the given elements, in row-major order, in different layouts. The one with
// stride 0 repeats the elements of index 0 of the first dimension.
var layouts = map[string]func(t *testing.T, data []float64, shape []int) *tensor.Tensor{
	"plain": func(t *testing.T, data []float64, shape []int) *tensor.Tensor {
		x, err := tensor.FromSlice(data, shape...)
		require.NoError(t, err)
		return x
	},
	"transposed": func(t *testing.T, data []float64, shape []int) *tensor.Tensor {
		x, err := tensor.FromSlice(data, shape...)
		require.NoError(t, err)
		dims := make([]int, len(shape))
		for i := range dims {
			dims[i] = len(shape) - 1 - i
		}
		x, err = x.Permute(dims...)
		require.NoError(t, err)
		x, err = x.Clone()
		require.NoError(t, err)
		x, err = x.Permute(dims...)
		require.NoError(t, err)
		return x
	},
	"stride 0": func(t *testing.T, data []float64, shape []int) *tensor.Tensor {
		if len(shape) == 0 {
			shape = []int{1}
		}
		first := slices.Clone(shape)
		first[0] = 1
		x, err := tensor.FromSlice(data[:len(data)/shape[0]], first...)
		require.NoError(t, err)
		x, err = x.Expand(shape...)
		require.NoError(t, err)
		return x
	},
}

// TestGradients compares the gradients of all operators with central differences, for arguments in
// different layouts, arguments that were broadcast, and arguments without elements.
func TestGradients(t *testing.T) {
	for _, c := range gradientCases() {
		for layout, makeTensor := range layouts {
			t.Run(c.name+"/"+layout, func(t *testing.T) {
				xs := make([]*autograd.Variable, len(c.plain.shapes))
				for i, shape := range c.plain.shapes {
					x, err := autograd.Parameter(makeTensor(t, elements(i, shape), shape))
					require.NoError(t, err)
					xs[i] = x
				}
				checkGradients(t, c.plain, xs)
			})
		}
		t.Run(c.name+"/broadcast", func(t *testing.T) {
			checkGradients(t, broadcasting(c.plain), leaves(t, firstOnes(c.plain.shapes)))
		})
		t.Run(c.name+"/empty", func(t *testing.T) {
			require.Contains(t, slices.Concat(c.empty.shapes...), 0)
			checkGradients(t, c.empty, leaves(t, c.empty.shapes))
		})
	}
}

// elements returns elements for argument i of an operator, of the given shape: their absolute values are
// from 0.5 to 1.5, and those of the first argument of an operator are positive.
func elements(i int, shape []int) []float64 {
	n, err := tensor.NumElements(shape)
	if err != nil {
		return nil
	}
	random := rand.New(rand.NewPCG(uint64(n), uint64(i)))
	data := make([]float64, n)
	for k := range data {
		data[k] = 0.5 + random.Float64()
		if i > 0 && random.IntN(2) == 0 {
			data[k] = -data[k]
		}
	}
	return data
}

// leaves returns Variables of the given shapes that require gradients.
func leaves(t *testing.T, shapes [][]int) []*autograd.Variable {
	t.Helper()
	xs := make([]*autograd.Variable, len(shapes))
	for i, shape := range shapes {
		data, err := tensor.FromSlice(elements(i, shape), shape...)
		require.NoError(t, err)
		xs[i], err = autograd.Parameter(data)
		require.NoError(t, err)
	}
	return xs
}

// firstOnes returns shapes with 1 as the first size.
func firstOnes(shapes [][]int) [][]int {
	all := make([][]int, len(shapes))
	for i, shape := range shapes {
		if all[i] = slices.Clone(shape); len(shape) > 0 {
			all[i][0] = 1
		}
	}
	return all
}

// broadcasting returns c for arguments of which the first size is 1: they are expanded first.
func broadcasting(c operands) operands {
	return operands{c.shapes, func(ctx context.Context, xs []*autograd.Variable) ([]*autograd.Variable, error) {
		all := make([]*autograd.Variable, len(xs))
		for i, x := range xs {
			var err error
			if all[i], err = autograd.Expand(ctx, x, c.shapes[i]...); err != nil {
				return nil, err
			}
		}
		return c.apply(ctx, all)
	}}
}

// checkGradients compares the gradients of a sum of the results of c, with random factors, with central
// differences.
func checkGradients(t *testing.T, c operands, xs []*autograd.Variable) {
	t.Helper()
	results, err := c.apply(t.Context(), xs)
	require.NoError(t, err)
	grads, factors := make([]autograd.Value, len(results)), make([][]float64, len(results))
	for i, y := range results {
		require.Equal(t, tensor.F64, y.DType())
		require.False(t, y.IsLeaf())
		factors[i] = elements(i+10, y.Shape())
		grad, err := tensor.FromSlice(factors[i], y.Shape()...)
		require.NoError(t, err)
		grads[i] = autograd.Dense(grad)
	}
	require.NoError(t, autograd.Backward(t.Context(), results, autograd.WithGradients(grads...)))
	for i, x := range xs {
		require.False(t, x.Grad().IsZero(), "argument %d has no gradient", i)
		dense, err := x.Grad().ToDense()
		require.NoError(t, err)
		require.Equal(t, x.Shape(), dense.Shape())
		require.Equal(t, tensor.F64, dense.DType())
		want := differences(t, c, xs, i, factors)
		if len(want) > 0 {
			require.InDeltaSlice(t, want, floats(t, dense), 2e-6, "argument %d", i)
		}
	}
}

// differences returns the derivatives of the sum of the results of c times factors by the elements of
// argument number i.
func differences(t *testing.T, c operands, xs []*autograd.Variable, i int, factors [][]float64) []float64 {
	t.Helper()
	const step = 1e-5
	at := make([]*autograd.Variable, len(xs))
	var data []float64
	for k, x := range xs {
		values := slices.Clone(floats(t, x.Tensor()))
		if k == i {
			data = values
		}
		copied, err := tensor.FromSlice(values, x.Shape()...)
		require.NoError(t, err)
		at[k] = autograd.Constant(copied)
	}
	total := func() (sum float64) {
		results, err := c.apply(t.Context(), at)
		require.NoError(t, err)
		for k, y := range results {
			require.True(t, y.IsLeaf())
			for m, v := range floats(t, y.Tensor()) {
				sum += v * factors[k][m]
			}
		}
		return sum
	}
	derivatives := make([]float64, len(data))
	for k, v := range data {
		data[k] = v + step
		above := total()
		data[k] = v - step
		derivatives[k] = (above - total()) / (2 * step)
		data[k] = v
	}
	return derivatives
}
