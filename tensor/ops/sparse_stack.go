package ops

import (
	"context"
	"runtime"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// StackSparse returns a new sparse tensor with the concatenation of xs, which must have one shape and
// one number of sparse dimensions, along a new sparse dimension at position dim; a negative one counts
// from the end of the new shape. The dtype is the one to which those of xs are promoted. The error is
// a *ValueError for an empty list, different shapes or a position that is invalid or among the dense
// dimensions, a *LimitError, or an error of package tensor.
func (e *Engine) StackSparse(ctx context.Context, xs []*tensor.Sparse, dim int) (*tensor.Sparse, error) {
	if len(xs) == 0 {
		return nil, valueErrorf("stack expects a non-empty TensorList")
	}
	first, d := xs[0], xs[0].DType()
	dim, err := wrapDim(dim, len(first.Shape())+1)
	if err != nil {
		return nil, err
	}
	if sparse := first.Indices().Shape()[0]; dim > sparse {
		return nil, valueErrorf("stack: position %d is among the dense dimensions, which begin at %d", dim, sparse)
	}
	for _, s := range xs[1:] {
		if err := checkSparsePair("stack", first, s); err != nil {
			return nil, err
		}
		d = promote(d, s.DType())
	}
	indices, values := make([]*tensor.Tensor, len(xs)), make([]*tensor.Tensor, len(xs))
	for i, s := range xs {
		if indices[i], err = e.withRow(ctx, s.Indices(), dim, int64(i)); err != nil {
			return nil, err
		}
		if values[i], err = e.cast(s.Values(), d); err != nil {
			return nil, err
		}
	}
	at, err := e.concat(ctx, indices, indices, 1)
	if err != nil {
		return nil, err
	}
	all, err := e.concat(ctx, values, values, 0)
	if err != nil {
		return nil, err
	}
	return tensor.NewSparse(at, all, slices.Insert(slices.Clone(first.Shape()), dim, len(xs))...)
}

// withRow returns a new matrix with the rows of indices, and before row number at one whose elements
// are value.
func (e *Engine) withRow(ctx context.Context, indices *tensor.Tensor, at int, value int64) (*tensor.Tensor, error) {
	row, err := e.empty(tensor.I64, 1, indices.Shape()[1])
	if err != nil {
		return nil, err
	}
	if err := tensor.Fill(row, value); err != nil {
		return nil, err
	}
	above, err := indices.Narrow(0, 0, at)
	if err != nil {
		return nil, err
	}
	below, err := indices.Narrow(0, at, indices.Shape()[0]-at)
	if err != nil {
		return nil, err
	}
	rows := []*tensor.Tensor{above, row, below}
	return e.concat(ctx, rows, rows, 0)
}

// SelectSparse returns a new sparse tensor with the part of s at the given index of the sparse
// dimension dim, without that dimension. Negative numbers count from the end. The error is a
// *ValueError for a dimension that is dense or does not exist, a *tensor.IndexError for an index
// outside the dimension, a *LimitError, or an error of package tensor.
func (e *Engine) SelectSparse(_ context.Context, s *tensor.Sparse, dim, index int) (*tensor.Sparse, error) {
	dim, err := wrapDim(dim, len(s.Shape()))
	if err != nil {
		return nil, err
	}
	sparse, n := s.Indices().Shape()[0], s.Len()
	if dim >= sparse {
		return nil, valueErrorf("select: dimension %d is not sparse", dim)
	}
	size := s.Shape()[dim]
	if index < -size || index >= size {
		return nil, &tensor.IndexError{What: "sparse dimension", Index: index, Len: size}
	}
	if index < 0 {
		index += size
	}
	data, err := elements[int64](e, s.Indices())
	if err != nil {
		return nil, err
	}
	var columns, parts []int // of the indices, and of the values
	for k, i := range data[dim*n:][:n] {
		if i == int64(index) {
			columns, parts = append(columns, k), append(parts, k*s.Values().Strides()[0])
		}
	}
	at, rows, err := newTensor[int64](e, sparse-1, len(columns))
	if err != nil {
		return nil, err
	}
	for r := range sparse {
		for _, k := range columns {
			if r != dim {
				rows[0], rows = data[r*n+k], rows[1:]
			}
		}
	}
	runtime.KeepAlive(s)
	runtime.KeepAlive(at)
	values, err := e.gather(s.Values(), parts, s.Values().Shape()[1:], s.Values().Strides()[1:])
	if err != nil {
		return nil, err
	}
	return tensor.NewSparse(at, values, slices.Delete(slices.Clone(s.Shape()), dim, dim+1)...)
}
