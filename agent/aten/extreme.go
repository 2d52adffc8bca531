package aten

import (
	"math"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// largest and smallest find the place of the first extreme of a row that is not
// empty; a NaN is more extreme than every number.
func largest[T realNum](row []T) int {
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

func smallest[T realNum](row []T) int {
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

// extremes are the values and the places of the extremes of rows.
func extremes[T realNum](c *call, r *reduction, low bool) (values, places *tensor.Tensor, err error) {
	find := largest[T]
	if low {
		find = smallest[T]
	}
	if places, err = fold(c, r, func(row []T) int64 { return int64(find(row)) }); err != nil {
		return nil, nil, err
	}
	values, err = fold(c, r, func(row []T) T { return row[find(row)] })
	return values, places, err
}

// extremes of a tensor that is made of rows over dims.
func (c *call) extremes(x *tensor.Tensor, dims []int, keep, low bool) (values, places *tensor.Tensor, err error) {
	d := x.DType()
	if x, err = c.cast(x, computed(d)); err != nil {
		return nil, nil, err
	}
	r, err := c.reduce(x, dims, keep)
	if err != nil {
		return nil, nil, err
	}
	if r.n == 0 {
		return nil, nil, fault("Expected reduction dim to be specified for input.numel() == 0, and to have non-zero size.")
	}
	switch x.DType() {
	case tensor.U8:
		values, places, err = extremes[uint8](c, r, low)
	case tensor.I8:
		values, places, err = extremes[int8](c, r, low)
	case tensor.I16:
		values, places, err = extremes[int16](c, r, low)
	case tensor.I32:
		values, places, err = extremes[int32](c, r, low)
	case tensor.I64:
		values, places, err = extremes[int64](c, r, low)
	case tensor.F32:
		values, places, err = extremes[float32](c, r, low)
	case tensor.F64:
		values, places, err = extremes[float64](c, r, low)
	default:
		return nil, nil, fault("complex numbers have no order")
	}
	if err != nil {
		return nil, nil, err
	}
	values, err = c.cast(values, d)
	return values, places, err
}

// extremeOfAll is a kernel of the one extreme of a tensor.
func extremeOfAll(low bool) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		x := c.tensor(0)
		values, _, err := c.extremes(x, allDims(x.Rank()), false, low)
		return values, err
	})
}

// extremeOfDim is a kernel of the extremes along a dimension, with their places.
func extremeOfDim(low bool) kernel {
	return func(c *call) (Value, error) {
		dims, err := c.oneDim(1, c.tensor(0).Rank())
		if err != nil {
			return nil, err
		}
		values, places, err := c.extremes(c.tensor(0), dims, c.bool(2), low)
		if err != nil {
			return nil, err
		}
		return results{values, places}, nil
	}
}

// oneDim is a dimension to reduce, none for a scalar.
func (c *call) oneDim(i, rank int) ([]int, error) {
	dim, err := c.dim(i, rank)
	if err != nil || rank == 0 {
		return nil, err
	}
	return []int{dim}, nil
}

// placeOfExtreme is a kernel of the place alone, without a dimension the place
// among all elements.
func placeOfExtreme(low bool) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		x := c.tensor(0)
		dims, err := allDims(x.Rank()), error(nil)
		if c.given(1) {
			dims, err = c.oneDim(1, x.Rank())
		}
		if err != nil {
			return nil, err
		}
		_, places, err := c.extremes(x, dims, c.bool(2), low)
		return places, err
	})
}
