package aten

import (
	"math"
	"math/cmplx"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// argMax returns the index of the first maximum of a row that is not empty. A NaN counts as greater
// than any number.
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

// argMin returns the index of the first minimum of a row that is not empty. A NaN counts as less than
// any number.
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

// extremes returns two new tensors: the maximum, or minimum if low is set, of each row of r, and its
// index in the row as I64. The rows must not be empty, and their elements must have type T.
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

// extremes returns the maxima, or minima if low is set, of x over dims, and their indices. dims must be
// sorted; keep is that of reduce. The error is a *ValueError if there are no elements to compare or
// they are complex.
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

// extremeOfAll returns a kernel for the maximum, or minimum if low is set, of a tensor.
func extremeOfAll(low bool) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		x := c.tensor(0)
		values, _, err := c.extremes(x, allDims(x.Rank()), false, low)
		return values, err
	})
}

// extremeOfDim returns a kernel with two results: the maxima, or minima if low is set, along a
// dimension, and their indices.
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

// oneDim returns argument i, a dimension of a tensor of that rank, as a list of one element, or nil if
// rank is 0. The error is a *ValueError.
func (c *call) oneDim(i, rank int) ([]int, error) {
	dim, err := c.dim(i, rank)
	if err != nil || rank == 0 {
		return nil, err
	}
	return []int{dim}, nil
}

// indexOfExtreme returns a kernel for the indices of the maxima, or minima if low is set, along a
// dimension. Without a dimension it returns one index, that in the flattened tensor.
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

// nonzeroIndices is a kernel that returns an I64 matrix with one row for each nonzero element, which is
// the index of the element.
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

// tensorsEqual is a kernel that reports whether two tensors have the same shape and equal elements;
// their dtypes may differ.
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

// sameDType returns a *ValueError unless x and y have the same dtype.
func sameDType(x, y *tensor.Tensor) error {
	if x.DType() != y.DType() {
		return valueErrorf("expected scalar type %s but found %s", torchNames[x.DType()], torchNames[y.DType()])
	}
	return nil
}

// allTrue returns whether all elements of t, a tensor of bools, are true.
func (c *call) allTrue(t *tensor.Tensor) (Value, error) {
	all, err := elements[bool](c, t)
	if err != nil {
		return nil, err
	}
	return !slices.Contains(all, false), nil
}

// allClose is a kernel that reports whether |self - other| <= atol + rtol*|other| for all elements,
// with broadcasting. Equal infinities are close, and NaNs only if equal_nan is set. The error is a
// *ValueError if the dtypes differ or a tolerance is negative.
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
