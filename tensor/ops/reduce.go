package ops

import (
	"context"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Sum returns the sums of x over the dimensions dims as a new tensor, which keeps these dimensions
// with size 1 if keepDim is true. Nil or empty dims stand for all; negative ones count from the last
// dimension. Elements are cast to d first; the zero DType stands for that of x, or I64 for integers
// and bools. Floating point numbers are added in float64. The error is a *ValueError for a dimension
// that does not exist or occurs twice, a *LimitError, or an error of package tensor.
func (e *Engine) Sum(ctx context.Context, x *tensor.Tensor, dims []int, keepDim bool,
	d tensor.DType) (*tensor.Tensor, error) {
	dims, err := reducedDims(dims, x.Rank())
	if err != nil {
		return nil, err
	}
	if d != 0 {
		if x, err = e.Cast(ctx, x, d); err != nil {
			return nil, err
		}
	} else if d = x.DType(); isInt(d) || d == tensor.Bool {
		d = tensor.I64
	}
	k, err := e.kernelsOf(x, nil)
	if err != nil {
		return nil, err
	}
	if k != nil {
		if err := checkDeviceDType(d, x); err != nil {
			return nil, err
		}
		return e.deviceSum(ctx, k, x, dims, keepDim)
	}
	return e.sumOver(x, dims, reducedShape(x.Shape(), dims, keepDim), d, 1)
}

// Mean returns the means of x over the dimensions dims as a new tensor, with dims and keepDim as in
// Sum. Elements are cast to d first; the zero DType stands for that of x. The mean of no elements is
// NaN. The error is a *ValueError if the dtype is neither floating point nor complex or if a
// dimension is invalid, a *LimitError, or an error of package tensor.
func (e *Engine) Mean(ctx context.Context, x *tensor.Tensor, dims []int, keepDim bool,
	d tensor.DType) (*tensor.Tensor, error) {
	dims, err := reducedDims(dims, x.Rank())
	if err != nil {
		return nil, err
	}
	if d == 0 {
		d = x.DType()
	}
	if !isFloat(d) && !isComplex(d) {
		name := d.String()
		if d.Valid() {
			name = torchNames[d]
		}
		return nil, valueErrorf("mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. Got: %s",
			name)
	}
	if x, err = e.cast(x, d); err != nil {
		return nil, err
	}
	n := 1
	for _, dim := range dims {
		n *= x.Shape()[dim]
	}
	k, err := e.kernelsOf(x, nil)
	if err != nil {
		return nil, err
	}
	if k == nil {
		return e.sumOver(x, dims, reducedShape(x.Shape(), dims, keepDim), d, n)
	}
	out, err := e.deviceSum(ctx, k, x, dims, keepDim)
	if err != nil {
		return nil, err
	}
	return out, k.Scale(ctx, out, out, Float(1/float64(n)))
}

// SumTo is the reverse of broadcasting: it returns the sums of x over the dimensions that repeat a
// tensor of the given shape when it is broadcast to the shape of x. That is x itself if the shapes
// are equal, and otherwise a new tensor of the given shape and the dtype of x. The error is a
// *SizeError or *ValueError if shape cannot be broadcast to that of x, a *LimitError, or an error of
// package tensor.
func (e *Engine) SumTo(ctx context.Context, x *tensor.Tensor, shape ...int) (*tensor.Tensor, error) {
	if slices.Equal(x.Shape(), shape) {
		return x, nil
	}
	added := x.Rank() - len(shape)
	if added < 0 {
		return nil, valueErrorf("the shape %s has more dimensions than %s and cannot be broadcast to it",
			sizes(shape), sizes(x.Shape()))
	}
	dims := make([]int, 0, x.Rank())
	for i, size := range x.Shape() {
		switch {
		case i < added:
			dims = append(dims, i)
		case shape[i-added] == size:
		case shape[i-added] == 1:
			dims = append(dims, i)
		default:
			return nil, &SizeError{A: size, B: shape[i-added], Dim: i}
		}
	}
	k, err := e.kernelsOf(x, nil)
	if err != nil {
		return nil, err
	}
	if k == nil {
		return e.sumOver(x, dims, shape, x.DType(), 1)
	}
	out, err := e.deviceSum(ctx, k, x, dims, true)
	if err != nil {
		return nil, err
	}
	return out.View(shape...)
}

// reducedDims returns dims as sorted numbers from 0, in a new slice: all dimensions of a tensor of
// the given rank if dims is empty. The error is a *ValueError for a dimension that does not exist or
// occurs twice.
func reducedDims(dims []int, rank int) ([]int, error) {
	out := make([]int, 0, max(rank, len(dims)))
	for _, dim := range dims {
		dim, err := wrapDim(dim, rank)
		if err != nil {
			return nil, err
		}
		out = append(out, dim)
	}
	slices.Sort(out)
	for i := 1; i < len(out); i++ {
		if out[i] == out[i-1] {
			return nil, valueErrorf("dim %d appears multiple times in the list of dims", out[i])
		}
	}
	if len(dims) > 0 && rank > 0 {
		return out, nil
	}
	return allDims(rank), nil
}

// allDims returns a new slice with the numbers from 0 to rank-1.
func allDims(rank int) []int {
	dims := make([]int, rank)
	for i := range dims {
		dims[i] = i
	}
	return dims
}

// reducedShape returns shape without the dimensions dims, or with size 1 in these if keep is true, in
// a new slice that is not nil. dims must be sorted.
func reducedShape(shape, dims []int, keep bool) []int {
	out := make([]int, 0, len(shape))
	for i, size := range shape {
		_, reduced := slices.BinarySearch(dims, i)
		switch {
		case !reduced:
			out = append(out, size)
		case keep:
			out = append(out, 1)
		}
	}
	return out
}

// sumOver returns the sums of x over dims, sorted numbers from 0, divided by n, as a new tensor of
// dtype d with the given shape. n must be 1 if d is neither floating point nor complex. The error is
// a *LimitError or an error of package tensor.
func (e *Engine) sumOver(x *tensor.Tensor, dims, shape []int, d tensor.DType, n int) (*tensor.Tensor, error) {
	x, err := e.cast(x, computeType(x.DType()))
	if err != nil {
		return nil, err
	}
	if err := e.checkSize(d, shape); err != nil {
		return nil, err
	}
	if !x.IsContiguous() { // an expanded tensor may have more elements than its memory
		if err := e.checkSize(x.DType(), x.Shape()); err != nil {
			return nil, err
		}
	}
	switch x.DType() {
	case tensor.U8:
		return sumReals[uint8, int64](e, x, dims, shape, d, n)
	case tensor.I8:
		return sumReals[int8, int64](e, x, dims, shape, d, n)
	case tensor.I16:
		return sumReals[int16, int64](e, x, dims, shape, d, n)
	case tensor.I32:
		return sumReals[int32, int64](e, x, dims, shape, d, n)
	case tensor.I64:
		return sumReals[int64, int64](e, x, dims, shape, d, n)
	case tensor.F32:
		return sumReals[float32, float64](e, x, dims, shape, d, n)
	case tensor.F64:
		return sumReals[float64, float64](e, x, dims, shape, d, n)
	case tensor.C64:
		return sumComplex[complex64](e, x, dims, shape, d, n)
	default:
		return sumComplex[complex128](e, x, dims, shape, d, n)
	}
}
