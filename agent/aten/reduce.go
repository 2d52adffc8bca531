package aten

import (
	"math"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// reduction is a tensor arranged in rows, each of which is to be reduced to one element.
type reduction struct {
	rows  *tensor.Tensor // contiguous; n consecutive elements form a row
	shape []int          // of the result
	n     int            // elements of a row
}

// reduceArgs returns the arguments of a reduction of tensor 0: dims, the dimensions, sorted and from 0
// on; keep, whether the result keeps them; and next, the position of the argument after them. An empty
// list stands for all dimensions. If overDims is not set the operator has no such arguments: dims are
// then all dimensions, which the result does not keep. The error is a *ValueError for a dimension that
// does not exist or occurs twice.
func (c *call) reduceArgs(overDims bool) (dims []int, keep bool, next int, err error) {
	rank := c.tensor(0).Rank()
	if !overDims {
		return allDims(rank), false, 1, nil
	}
	dims, keep, next = c.ints(1), c.bool(2), 3
	for i, dim := range dims {
		if dims[i], err = wrapDim(dim, rank); err != nil {
			return nil, false, 0, err
		}
	}
	slices.Sort(dims)
	for i := 1; i < len(dims); i++ {
		if dims[i] == dims[i-1] {
			return nil, false, 0, valueErrorf("dim %d appears multiple times in the list of dims", dims[i])
		}
	}
	if len(dims) == 0 || rank == 0 {
		dims = allDims(rank)
	}
	return dims, keep, next, nil
}

// allDims returns the dimensions of a tensor of the given rank.
func allDims(rank int) []int {
	dims := make([]int, rank)
	for i := range dims {
		dims[i] = i
	}
	return dims
}

// reduce returns t arranged for a reduction over dims, which must be sorted. If keep is set, these
// dimensions have size 1 in the shape of the result; otherwise they are removed. The error is that of
// contiguous.
func (c *call) reduce(t *tensor.Tensor, dims []int, keep bool) (*reduction, error) {
	r := &reduction{n: 1, shape: []int{}}
	var order []int
	for dim, size := range t.Shape() {
		_, isReduced := slices.BinarySearch(dims, dim)
		switch {
		case !isReduced:
			order = append(order, dim)
			r.shape = append(r.shape, size)
		case keep:
			r.shape = append(r.shape, 1)
		}
	}
	for _, dim := range dims {
		r.n *= t.Shape()[dim]
	}
	var err error
	if r.rows, err = t.Permute(append(order, dims...)...); err != nil {
		return nil, err
	}
	r.rows, err = c.contiguous(r.rows)
	return r, err
}

// fold returns a new tensor of the shape of r with f of each row. The elements of r.rows must have type
// S.
func fold[S, T tensor.Element](c *call, r *reduction, f func(row []S) T) (*tensor.Tensor, error) {
	out, to, err := newTensor[T](c, r.shape...)
	if err != nil {
		return nil, err
	}
	from, err := elements[S](c, r.rows)
	if err != nil {
		return nil, err
	}
	for i := range to {
		to[i] = f(from[i*r.n:][:r.n])
	}
	return out, nil
}

// sumRow returns the sum of a row, computed in T.
func sumRow[S realNum, T int64 | float64](row []S) T {
	var sum T
	for _, v := range row {
		sum += T(v)
	}
	return sum
}

// sumComplexRow returns the sum of a row of complex numbers.
func sumComplexRow[S cmplxNum](row []S) complex128 {
	var sum complex128
	for _, v := range row {
		sum += complex128(v)
	}
	return sum
}

// sumRows returns a new tensor with the sum of each row, as I64, F64 or C128. It changes r.rows to the
// dtype in which it reads the elements.
func (c *call) sumRows(r *reduction) (*tensor.Tensor, error) {
	rows, err := c.cast(r.rows, computeType(r.rows.DType()))
	if err != nil {
		return nil, err
	}
	r.rows = rows
	switch rows.DType() {
	case tensor.U8:
		return fold(c, r, sumRow[uint8, int64])
	case tensor.I8:
		return fold(c, r, sumRow[int8, int64])
	case tensor.I16:
		return fold(c, r, sumRow[int16, int64])
	case tensor.I32:
		return fold(c, r, sumRow[int32, int64])
	case tensor.I64:
		return fold(c, r, sumRow[int64, int64])
	case tensor.F32:
		return fold(c, r, sumRow[float32, float64])
	case tensor.F64:
		return fold(c, r, sumRow[float64, float64])
	case tensor.C64:
		return fold(c, r, sumComplexRow[complex64])
	default:
		return fold(c, r, sumComplexRow[complex128])
	}
}

// sum returns a kernel for the sums of a tensor over all dimensions, or over those of its arguments if
// overDims is set. If the dtype is not given the sums of integers and bools are I64.
func sum(overDims bool) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		dims, keep, dtype, err := c.reduceArgs(overDims)
		if err != nil {
			return nil, err
		}
		x := c.tensor(0)
		d := x.DType()
		if isInt(d) || d == tensor.Bool {
			d = tensor.I64
		}
		if d, err = c.dtype(dtype, d); err != nil {
			return nil, err
		}
		if c.given(dtype) {
			if x, err = c.cast(x, d); err != nil {
				return nil, err
			}
		}
		r, err := c.reduce(x, dims, keep)
		if err != nil {
			return nil, err
		}
		out, err := c.sumRows(r)
		if err != nil {
			return nil, err
		}
		return c.cast(out, d)
	})
}

// mean returns a kernel for the means of a tensor over all dimensions, or over those of its arguments
// if overDims is set; the mean of no elements is NaN. The error is a *ValueError unless the dtype is
// floating point or complex.
func mean(overDims bool) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		dims, keep, dtype, err := c.reduceArgs(overDims)
		if err != nil {
			return nil, err
		}
		x := c.tensor(0)
		d, err := c.dtype(dtype, x.DType())
		if err != nil {
			return nil, err
		}
		if !isFloat(d) && !isComplex(d) {
			return nil, valueErrorf("mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. Got: %s", torchNames[d])
		}
		if x, err = c.cast(x, d); err != nil {
			return nil, err
		}
		r, err := c.reduce(x, dims, keep)
		if err != nil {
			return nil, err
		}
		sums, err := c.sumRows(r)
		if err != nil {
			return nil, err
		}
		count, err := c.scalar(float64(r.n), sums.DType())
		if err != nil {
			return nil, err
		}
		out, err := c.arith(opDiv, sums, count)
		if err != nil {
			return nil, err
		}
		return c.cast(out, d)
	})
}

// softmax returns a kernel for exp(x) divided by its sum over a dimension, or, if logarithm is set, for
// the logarithm of that.
func softmax(logarithm bool) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		x := c.tensor(0)
		d, err := c.dtype(2, x.DType())
		if err != nil {
			return nil, err
		}
		if !isFloat(d) {
			return nil, valueErrorf("softmax is not implemented for '%s'", torchNames[d])
		}
		dim, err := c.dim(1, x.Rank())
		if err != nil {
			return nil, err
		}
		if x, err = c.operand(x, d); err != nil {
			return nil, err
		}
		last := x.Rank() - 1
		if last > 0 {
			if x, err = x.Transpose(dim, last); err != nil {
				return nil, err
			}
		}
		if x.DType() == tensor.F32 {
			x, err = softmaxTensor[float32](c, x, logarithm)
		} else {
			x, err = softmaxTensor[float64](c, x, logarithm)
		}
		if err != nil {
			return nil, err
		}
		if last > 0 {
			if x, err = x.Transpose(dim, last); err != nil {
				return nil, err
			}
		}
		if x, err = c.contiguous(x); err != nil {
			return nil, err
		}
		return c.cast(x, d)
	})
}

// softmaxTensor returns a new tensor with the softmax of x, or its logarithm, along the last dimension.
// The elements of x must have type T.
func softmaxTensor[T floatNum](c *call, x *tensor.Tensor, logarithm bool) (*tensor.Tensor, error) {
	out, to, err := newTensor[T](c, x.Shape()...)
	if err != nil {
		return nil, err
	}
	from, err := elements[T](c, x)
	if err != nil {
		return nil, err
	}
	n := 1
	if rank := x.Rank(); rank > 0 {
		n = x.Shape()[rank-1]
	}
	for at := 0; at < len(to); at += n {
		softmaxRow(to[at:at+n], from[at:at+n], logarithm)
	}
	return out, nil
}

// softmaxRow sets out to the softmax of row, which is not empty, or to its logarithm. It subtracts the
// maximum first, so that the exponential does not overflow.
func softmaxRow[T floatNum](out, row []T, logarithm bool) {
	top := float64(row[argMax(row)])
	sum := 0.0
	for _, v := range row {
		sum += math.Exp(float64(v) - top)
	}
	logSum := top + math.Log(sum)
	for i, v := range row {
		if logarithm {
			out[i] = T(float64(v) - logSum)
		} else {
			out[i] = T(math.Exp(float64(v)-top) / sum)
		}
	}
}
