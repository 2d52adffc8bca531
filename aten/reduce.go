package aten

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// reducer is an operator of an engine that reduces dimensions.
type reducer func(e *ops.Engine, ctx context.Context, x *tensor.Tensor, dims []int, keepDim bool,
	d tensor.DType) (*tensor.Tensor, error)

// reduction returns the kernel that calls f with argument 0. If overDims is true, the dimensions are
// argument 1, where nil and an empty list stand for all, and the result keeps them if argument
// 2 is true. If it is false, the operator does not have these arguments. The next argument is the
// dtype, or nil.
func reduction(f reducer, overDims bool) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		var dims []int
		keep, next := false, 1
		if overDims {
			dims, keep, next = c.ints(1), c.bool(2), 3
		}
		d, err := c.dtype(next, 0)
		if err != nil {
			return nil, err
		}
		return f(c.engine, c.ctx, c.tensor(0), dims, keep, d)
	})
}

// extremes is an operator of an engine that finds the largest or smallest elements along a dimension.
type extremes func(e *ops.Engine, ctx context.Context, x *tensor.Tensor, dim int,
	keepDim bool) (values, indices *tensor.Tensor, err error)

// extremesOfDim returns the kernel of aten::max.dim or aten::min.dim, which has two results.
func extremesOfDim(f extremes) kernel {
	return func(c *call) (Value, error) {
		values, indices, err := f(c.engine, c.ctx, c.tensor(0), c.int(1), c.bool(2))
		if err != nil {
			return nil, err
		}
		return results{values, indices}, nil
	}
}

// indexOf returns the kernel of aten::argmax or aten::argmin: it calls ofAll if argument 1, the
// dimension, is nil, and otherwise ofDim.
func indexOf(ofAll func(*ops.Engine, context.Context, *tensor.Tensor, bool) (*tensor.Tensor, error),
	ofDim extremes) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		if !c.given(1) {
			return ofAll(c.engine, c.ctx, c.tensor(0), c.bool(2))
		}
		_, indices, err := ofDim(c.engine, c.ctx, c.tensor(0), c.int(1), c.bool(2))
		return indices, err
	})
}

// softmax returns the kernel of aten::softmax or aten::log_softmax: it casts argument 0 to the dtype
// in argument 2, unless that is nil, and calls f with the dimension in argument 1.
func softmax(f func(*ops.Engine, context.Context, *tensor.Tensor, int) (*tensor.Tensor, error)) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		x := c.tensor(0)
		d, err := c.dtype(2, x.DType())
		if err != nil {
			return nil, err
		}
		if x, err = c.engine.Cast(c.ctx, x, d); err != nil {
			return nil, err
		}
		return f(c.engine, c.ctx, x, c.int(1))
	})
}
