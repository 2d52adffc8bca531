package autograd

import (
	"context"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// Sum returns the sum of all elements of x, a new tensor without dimensions. x may be sparse; its gradient
// then is, and has the indices of x.
func Sum(ctx context.Context, x *Variable) (*Variable, error) {
	if x != nil && x.value.sparse != nil {
		return sumSparse(ctx, x)
	}
	return reduce(ctx, "sum", "SumBackward0", x, nil, false)
}

// SumDims returns the sums of x, which is dense, over the dimensions dims, in new memory. Negative dims
// count from the end; no dims stand for all. They have size 1 in the result if keep is true, and otherwise
// are left out.
func SumDims(ctx context.Context, x *Variable, dims []int, keep bool) (*Variable, error) {
	return reduce(ctx, "sum", "SumBackward1", x, dims, keep)
}

// Mean returns the mean of all elements of x, which is dense, a new tensor without dimensions.
func Mean(ctx context.Context, x *Variable) (*Variable, error) {
	return reduce(ctx, "mean", "MeanBackward0", x, nil, false)
}

// MeanDims returns the means of x over the dimensions dims, as SumDims does.
func MeanDims(ctx context.Context, x *Variable, dims []int, keep bool) (*Variable, error) {
	return reduce(ctx, "mean", "MeanBackward1", x, dims, keep)
}

// reduce returns the sums or means of x.
func reduce(ctx context.Context, op, name string, x *Variable, dims []int, keep bool) (*Variable, error) {
	if err := dense(op, x); err != nil {
		return nil, err
	}
	e := engineOf(ctx)
	compute := e.Sum
	if op == "mean" {
		compute = e.Mean
	}
	t, err := compute(ctx, x.value.dense, dims, keep, 0)
	if err != nil {
		return nil, opError(op, err)
	}
	n := newNode(ctx, name, x)
	if n != nil {
		shape, dims := slices.Clone(x.Shape()), slices.Clone(dims)
		factor := 1.0
		if op == "mean" && t.Len() > 0 {
			factor = float64(t.Len()) / float64(x.value.dense.Len())
		}
		n.backward = func(ctx context.Context, grads, out []Value) error {
			g, err := grads[0].scaledInPlace(ctx, factor)
			if err != nil {
				return err
			}
			out[0].dense, err = spread(g.dense, shape, dims, keep)
			return err
		}
	}
	return result(t, n), nil
}

// spread returns a view of t, the result of a reduction over dims, that has the given shape: it
// repeats the elements.
func spread(t *tensor.Tensor, shape, dims []int, keep bool) (*tensor.Tensor, error) {
	if !keep && len(shape) > 0 {
		wrapped := slices.Clone(dims)
		for i, d := range dims {
			if d < 0 {
				wrapped[i] += len(shape)
			}
		}
		slices.Sort(wrapped)
		for _, d := range wrapped {
			var err error
			if t, err = t.Unsqueeze(d); err != nil {
				return nil, err
			}
		}
	}
	return t.Expand(shape...)
}

// Softmax returns exp(v)/sum(exp(v)) of the elements v of x, which is dense, along dimension dim, in new
// memory. A negative dim counts from the end.
func Softmax(ctx context.Context, x *Variable, dim int) (*Variable, error) {
	return unary(ctx, "softmax", "SoftmaxBackward0", x, savesResult,
		func(e *ops.Engine, ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
			return e.Softmax(ctx, x, dim)
		},
		func(e *ops.Engine, ctx context.Context, grad, out *tensor.Tensor) (*tensor.Tensor, error) {
			return e.SoftmaxBackward(ctx, grad, out, dim)
		})
}

// LogSoftmax returns the logarithm of Softmax, in new memory.
func LogSoftmax(ctx context.Context, x *Variable, dim int) (*Variable, error) {
	return unary(ctx, "log_softmax", "LogSoftmaxBackward0", x, savesResult,
		func(e *ops.Engine, ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
			return e.LogSoftmax(ctx, x, dim)
		},
		func(e *ops.Engine, ctx context.Context, grad, out *tensor.Tensor) (*tensor.Tensor, error) {
			return e.LogSoftmaxBackward(ctx, grad, out, dim)
		})
}
