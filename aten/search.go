package aten

import (
	"math"
	"math/cmplx"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// argMax returns the index of the first maximum of row, which must not be empty. If row contains
// NaN, the result is the index of the first NaN.
func argMax[T realNum](row []T) int {
	best := 0
	for i, v := range row {
		if math.IsNaN(float64(v)) {
			return i
		}
		if v > row[best] {
			best = i
		}
	}
	return best
}

// argMin returns the index of the first minimum of row, which must not be empty. If row contains
// NaN, the result is the index of the first NaN.
func argMin[T realNum](row []T) int {
	best := 0
	for i, v := range row {
		if math.IsNaN(float64(v)) {
			return i
		}
		if v < row[best] {
			best = i
		}
	}
	return best
}

// extremes returns two new tensors of the shape r.shape: values has the maximum of each row of r,
// or its minimum if low is true; indices, of dtype I64, has the index of the first such element in
// the row. A NaN counts as the extreme. The rows must not be empty, and T must be the Go type of
// their dtype. The error is a *LimitError or an error of package tensor.
func extremes[T realNum](c *call, r *reduction, low bool) (values, indices *tensor.Tensor, err error) {
	find := argMax[T]
	if low {
		find = argMin[T]
	}
	if indices, err = fold(c, r, func(row []T) int64 { return int64(find(row)) }); err != nil {
		return nil, nil, err
	}
	values, err = fold(c, r, func(row []T) T { return row[find(row)] })
	return values, indices, err
}

// extremes returns two new tensors: values has the maxima of x over dims, or the minima if low is
// true, in the dtype of x, and indices their I64 indices in row-major order of dims. dims must be
// sorted. The results keep these dimensions with size 1 if keep is true. The error is a *ValueError
// if there are no elements to compare or x is complex, a *LimitError, or an error of package
// tensor.
func (c *call) extremes(x *tensor.Tensor, dims []int, keep, low bool) (values, indices *tensor.Tensor, err error) {
	d := x.DType()
	if x, err = c.cast(x, computeType(d)); err != nil {
		return nil, nil, err
	}
	r, err := c.reduce(x, dims, keep)
	if err != nil {
		return nil, nil, err
	}
	if r.n == 0 {
		return nil, nil, valueErrorf("Expected reduction dim to be specified for input.numel() == 0, and to have non-zero size.")
	}
	switch x.DType() {
	case tensor.U8:
		values, indices, err = extremes[uint8](c, r, low)
	case tensor.I8:
		values, indices, err = extremes[int8](c, r, low)
	case tensor.I16:
		values, indices, err = extremes[int16](c, r, low)
	case tensor.I32:
		values, indices, err = extremes[int32](c, r, low)
	case tensor.I64:
		values, indices, err = extremes[int64](c, r, low)
	case tensor.F32:
		values, indices, err = extremes[float32](c, r, low)
	case tensor.F64:
		values, indices, err = extremes[float64](c, r, low)
	default:
		return nil, nil, valueErrorf("complex numbers cannot be ordered")
	}
	if err != nil {
		return nil, nil, err
	}
	values, err = c.cast(values, d)
	return values, indices, err
}

// extremeOfAll returns the kernel of aten::max, or of aten::min if low is true, for a whole tensor:
// it returns the extreme element of argument 0 as a new tensor of rank 0. The errors are those of
// call.extremes.
func extremeOfAll(low bool) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		x := c.tensor(0)
		values, _, err := c.extremes(x, allDims(x.Rank()), false, low)
		return values, err
	})
}

// extremeOfDim returns the kernel of aten::max.dim, or of aten::min.dim if low is true. The kernel
// has two results, both new tensors: the maxima or minima of argument 0 along dimension argument 1,
// and their indices. They keep the dimension, with size 1, if argument 2 is true. The error is a
// *ValueError for an invalid dimension; otherwise it is an error of call.extremes.
func extremeOfDim(low bool) kernel {
	return func(c *call) (Value, error) {
		dims, err := c.oneDim(1, c.tensor(0).Rank())
		if err != nil {
			return nil, err
		}
		values, indices, err := c.extremes(c.tensor(0), dims, c.bool(2), low)
		if err != nil {
			return nil, err
		}
		return results{values, indices}, nil
	}
}

// oneDim returns argument i of the call, the dimension of a tensor of the given rank, as a new
// slice with that dimension, counted from 0. The slice is nil if rank is 0. If there is no such
// dimension, the error is a *ValueError.
func (c *call) oneDim(i, rank int) ([]int, error) {
	dim, err := c.dim(i, rank)
	if err != nil || rank == 0 {
		return nil, err
	}
	return []int{dim}, nil
}

// indexOfExtreme returns the kernel of aten::argmax, or of aten::argmin if low is true. The kernel
// returns a new I64 tensor with the indices of the maxima or minima of argument 0 along dimension
// argument 1. If argument 1 is nil, the tensor has one element: the index of the maximum or minimum
// in the flattened argument 0. Reduced dimensions are kept with size 1 if argument 2 is true. The
// error is a *ValueError for an invalid dimension; otherwise it is an error of call.extremes.
func indexOfExtreme(low bool) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		x := c.tensor(0)
		dims, err := allDims(x.Rank()), error(nil)
		if c.given(1) {
			dims, err = c.oneDim(1, x.Rank())
		}
		if err != nil {
			return nil, err
		}
		_, indices, err := c.extremes(x, dims, c.bool(2), low)
		return indices, err
	})
}

// nonzeroIndices is the kernel of aten::nonzero: it returns a new I64 matrix with one row for each
// element of argument 0 that is not zero, in row-major order. The row has the index of the element
// in each dimension. The error is a *LimitError or an error of package tensor.
func nonzeroIndices(c *call) (*tensor.Tensor, error) {
	x := c.tensor(0)
	mask, err := c.nonzeroMask(x)
	if err != nil {
		return nil, err
	}
	found, err := elements[bool](c, mask)
	if err != nil {
		return nil, err
	}
	n := 0
	for _, nonzero := range found {
		if nonzero {
			n++
		}
	}
	out, to, err := newTensor[int64](c, n, x.Rank())
	if err != nil {
		return nil, err
	}
	for i, nonzero := range found {
		if nonzero {
			for dim := x.Rank() - 1; dim >= 0; dim-- {
				to[dim] = int64(i % x.Shape()[dim])
				i /= x.Shape()[dim]
			}
			to = to[x.Rank():]
		}
	}
	return out, nil
}

// tensorsEqual is the kernel of aten::equal: it returns, as a bool, whether arguments 0 and 1 have
// the same shape and equal elements. Their dtypes may differ; elements are compared in the dtype to
// which both are promoted. NaN equals nothing. The error is a *LimitError or an error of package
// tensor.
func tensorsEqual(c *call) (Value, error) {
	x, y := c.tensor(0), c.tensor(1)
	if !slices.Equal(x.Shape(), y.Shape()) {
		return false, nil
	}
	d := computeType(promote(x.DType(), y.DType()))
	x, err := c.cast(x, d)
	if err != nil {
		return nil, err
	}
	if y, err = c.cast(y, d); err != nil {
		return nil, err
	}
	out, err := c.compare(opEq, x, y)
	if err != nil {
		return nil, err
	}
	return c.allTrue(out)
}

// sameDType returns nil if x and y have the same dtype, and otherwise a *ValueError.
func sameDType(x, y *tensor.Tensor) error {
	if x.DType() != y.DType() {
		return valueErrorf("expected scalar type %s but found %s", torchNames[x.DType()], torchNames[y.DType()])
	}
	return nil
}

// allTrue returns, as a bool, whether all elements of t, a tensor of bools, are true. If t has no
// elements the result is true. The errors are those of elements.
func (c *call) allTrue(t *tensor.Tensor) (Value, error) {
	all, err := elements[bool](c, t)
	if err != nil {
		return nil, err
	}
	return !slices.Contains(all, false), nil
}

// allClose is the kernel of aten::allclose: it returns, as a bool, whether |x-y| <= atol+rtol*|y|
// for all elements x and y of arguments 0 and 1, with broadcasting. rtol, atol and equal_nan are
// arguments 2 to 4. An infinity is close only to an equal one; two NaNs are close if equal_nan is
// true, and otherwise NaN is close to nothing. The error is a *ValueError if the dtypes differ or a
// tolerance is negative or NaN, a *SizeError if the shapes cannot be broadcast, a *LimitError, or
// an error of package tensor.
func allClose(c *call) (Value, error) {
	x, y := c.tensor(0), c.tensor(1)
	if x.DType() != y.DType() {
		return nil, valueErrorf("%s did not match %s", torchNames[x.DType()], torchNames[y.DType()])
	}
	rtol, atol, nans := c.float(2), c.float(3), c.bool(4)
	if !(rtol >= 0) || !(atol >= 0) {
		return nil, valueErrorf("rtol and atol must be greater than or equal to zero, but got %v and %v", rtol, atol)
	}
	x, err := c.cast(x, tensor.C128)
	if err != nil {
		return nil, err
	}
	if y, err = c.cast(y, tensor.C128); err != nil {
		return nil, err
	}
	out, err := combineTensors(c, opEq, x, y, func(_ opcode, out []bool, x, y []complex128) {
		for i := range out {
			diff := cmplx.Abs(x[i] - y[i])
			out[i] = x[i] == y[i] || !math.IsInf(diff, 0) && diff <= atol+rtol*cmplx.Abs(y[i]) ||
				nans && cmplx.IsNaN(x[i]) && cmplx.IsNaN(y[i])
		}
	})
	if err != nil {
		return nil, err
	}
	return c.allTrue(out)
}
