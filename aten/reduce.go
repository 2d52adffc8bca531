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

// reduceArgs returns the arguments of a reduction of argument 0, a tensor: dims, the dimensions
// over which it reduces, from 0 and sorted, in a new slice; keep, whether the result keeps them
// with size 1; and next, the position of the following argument. If overDims is true, dims comes
// from argument 1, where nil and an empty list stand for all dimensions, and keep from argument 2.
// If it is false, the operator does not have these arguments: dims has all dimensions and keep is
// false. The error is a *ValueError for a dimension that does not exist or occurs twice.
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

// allDims returns a new slice with the numbers from 0 to rank-1, the dimensions of a tensor of that
// rank.
func allDims(rank int) []int {
	dims := make([]int, rank)
	for i := range dims {
		dims[i] = i
	}
	return dims
}

// reduce returns t arranged in rows for a reduction over dims, which must be sorted: the elements
// of a row are those that are reduced to one element. If keep is true, the shape of the reduced
// tensor has the dimensions dims with size 1; otherwise it does not have them. The rows may share
// the memory of t. The errors are those of contiguous.
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

// fold calls f for each row of r and returns a new tensor of the shape r.shape with the results. S
// must be the Go type of the dtype of r.rows. f must not modify or keep the row. The error is a
// *LimitError or an error of package tensor.
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

// sumRow returns the sum of the elements of row, each converted to T before it is added. It is 0
// for an empty row.
func sumRow[S realNum, T int64 | float64](row []S) T {
	var sum T
	for _, v := range row {
		sum += T(v)
	}
	return sum
}

// sumComplexRow returns the sum of the elements of row, computed in complex128. It is 0 for an
// empty row.
func sumComplexRow[S cmplxNum](row []S) complex128 {
	var sum complex128
	for _, v := range row {
		sum += complex128(v)
	}
	return sum
}

// sumRows returns a new tensor of the shape r.shape with the sum of each row of r. Its dtype is I64
// for integers and bools, F64 for floats and C128 for complex numbers. sumRows may replace r.rows
// by a copy of another dtype. The error is a *LimitError or an error of package tensor.
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

// sum returns the kernel of aten::sum, which returns the sums of argument 0, a tensor, as a new
// tensor. If overDims is false, the kernel sums over all dimensions. Otherwise it sums over the
// dimensions in argument 1, where nil or an empty list stands for all, and keeps them with size 1
// if argument 2 is true. The next argument is the dtype, to which the elements are cast first; if
// it is nil, the result has the dtype of the tensor, or I64 for integers and bools. The error of
// the kernel is a *ValueError for an invalid dimension or dtype, a *LimitError, or an error of
// package tensor.
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

// mean returns the kernel of aten::mean, which returns the means of argument 0, a tensor, as a new
// tensor. If overDims is false, the kernel averages over all dimensions. Otherwise it averages over
// the dimensions in argument 1, where nil or an empty list stands for all, and keeps them with size
// 1 if argument 2 is true. The next argument is the dtype, to which the elements are cast first;
// nil stands for that of the tensor. The mean of no elements is NaN. The error of the kernel is a
// *ValueError if the dtype is neither floating point nor complex or if a dimension is invalid, a
// *LimitError, or an error of package tensor.
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

// softmax returns the kernel of aten::softmax, or of aten::log_softmax if logarithm is true: exp(x)
// divided by the sum of exp(x) over dimension argument 1, or the logarithm of that, for each
// element x of argument 0. The kernel casts to the dtype in argument 2, unless that is nil, and
// returns a new tensor. Its error is a *ValueError if the dtype is not floating point or the
// dimension is invalid, a *LimitError, or an error of package tensor.
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

// softmaxTensor returns a new tensor with the softmax of x along its last dimension, or the
// logarithm of it if logarithm is true. T must be the Go type of the dtype of x. The error is a
// *LimitError or an error of package tensor.
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

// softmaxRow sets out to the softmax of row, or to its logarithm if logarithm is true. row must not
// be empty, and out must be as long. To avoid overflow it subtracts the maximum of row before it
// computes exponentials.
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
