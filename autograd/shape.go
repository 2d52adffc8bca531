package autograd

import (
	"context"
	"fmt"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// viewOf returns the view t of x, the result of an operator whose gradient backward turns into that of
// x.
func viewOf(ctx context.Context, name string, t *tensor.Tensor, x *Variable, backward func(ctx context.Context, grad *tensor.Tensor) (*tensor.Tensor, error)) *Variable {
	n := newNode(ctx, name, x)
	if n != nil {
		n.backward = func(ctx context.Context, grads, out []Value) (err error) {
			out[0].dense, err = backward(ctx, grads[0].dense)
			return err
		}
	}
	if t.Storage() != x.value.dense.Storage() { // a copy
		return result(t, n)
	}
	return view(t, n, x)
}

// Reshape returns the elements of x in another shape, in which one dimension may be -1: its size
// follows from the others. The result shares the memory of x if strides can express it.
func Reshape(ctx context.Context, x *Variable, shape ...int) (*Variable, error) {
	return reshaped(ctx, "reshape", "ReshapeAliasBackward0", x, engineOf(ctx).Reshape, shape)
}

// View returns what Reshape returns, but never a copy: if strides cannot express the shape, the error
// matches tensor.ErrNotContiguous.
func View(ctx context.Context, x *Variable, shape ...int) (*Variable, error) {
	return reshaped(ctx, "view", "ViewBackward0", x, engineOf(ctx).View, shape)
}

func reshaped(ctx context.Context, op, name string, x *Variable, f func(context.Context, *tensor.Tensor, ...int) (*tensor.Tensor, error), shape []int) (*Variable, error) {
	if err := dense(op, x); err != nil {
		return nil, err
	}
	t, err := f(ctx, x.value.dense, shape...)
	if err != nil {
		return nil, opError(op, err)
	}
	before := slices.Clone(x.Shape())
	return viewOf(ctx, name, t, x, func(ctx context.Context, grad *tensor.Tensor) (*tensor.Tensor, error) {
		return engineOf(ctx).Reshape(ctx, grad, before...)
	}), nil
}

// Transpose returns a view of x with two dimensions exchanged; negative ones count from the end.
func Transpose(ctx context.Context, x *Variable, a, b int) (*Variable, error) {
	if err := dense("transpose", x); err != nil {
		return nil, err
	}
	t, err := engineOf(ctx).Transpose(ctx, x.value.dense, a, b)
	if err != nil {
		return nil, opError("transpose", err)
	}
	return viewOf(ctx, "TransposeBackward0", t, x, func(ctx context.Context, grad *tensor.Tensor) (*tensor.Tensor, error) {
		return engineOf(ctx).Transpose(ctx, grad, a, b)
	}), nil
}

// Expand returns a view of x that repeats dimensions of size 1, and adds dimensions in front. A size
// of -1 leaves the dimension as it is.
func Expand(ctx context.Context, x *Variable, shape ...int) (*Variable, error) {
	if err := dense("expand", x); err != nil {
		return nil, err
	}
	t, err := engineOf(ctx).Expand(ctx, x.value.dense, shape...)
	if err != nil {
		return nil, opError("expand", err)
	}
	before := slices.Clone(x.Shape())
	return viewOf(ctx, "ExpandBackward0", t, x, func(ctx context.Context, grad *tensor.Tensor) (*tensor.Tensor, error) {
		return engineOf(ctx).SumTo(ctx, grad, before...)
	}), nil
}

// Narrow returns a view of the elements of x from start to start+length-1 of dimension dim. Negative
// dim and start count from the end.
func Narrow(ctx context.Context, x *Variable, dim, start, length int) (*Variable, error) {
	if err := dense("narrow", x); err != nil {
		return nil, err
	}
	t, err := engineOf(ctx).Narrow(ctx, x.value.dense, dim, start, length)
	if err != nil {
		return nil, opError("narrow", err)
	}
	return viewOf(ctx, "SliceBackward0", t, x, padded(x, func(ctx context.Context, whole *tensor.Tensor) (*tensor.Tensor, error) {
		return engineOf(ctx).Narrow(ctx, whole, dim, start, length)
	})), nil
}

// Select returns a view of the elements of x at the given index of dimension dim, which the view does
// not have. Negative numbers count from the end.
func Select(ctx context.Context, x *Variable, dim, index int) (*Variable, error) {
	if err := dense("select", x); err != nil {
		return nil, err
	}
	t, err := engineOf(ctx).Select(ctx, x.value.dense, dim, index)
	if err != nil {
		return nil, opError("select", err)
	}
	return viewOf(ctx, "SelectBackward0", t, x, padded(x, func(ctx context.Context, whole *tensor.Tensor) (*tensor.Tensor, error) {
		return engineOf(ctx).Select(ctx, whole, dim, index)
	})), nil
}

// padded returns the backward function of a view of a part of x: it returns zeros of the form of x,
// with the gradient in that part.
func padded(x *Variable, part func(ctx context.Context, whole *tensor.Tensor) (*tensor.Tensor, error)) func(context.Context, *tensor.Tensor) (*tensor.Tensor, error) {
	f := formOf(x.value)
	return func(ctx context.Context, grad *tensor.Tensor) (*tensor.Tensor, error) {
		whole, err := f.zeros(ctx)
		if err != nil {
			return nil, err
		}
		to, err := part(ctx, whole.dense)
		if err != nil {
			return nil, err
		}
		return whole.dense, engineOf(ctx).CopyInPlace(ctx, to, grad)
	}
}

// Split returns views of parts of x along dimension dim, each of the given size, the last one
// possibly smaller.
func Split(ctx context.Context, x *Variable, size, dim int) ([]*Variable, error) {
	if err := dense("split", x); err != nil {
		return nil, err
	}
	parts, err := engineOf(ctx).Split(ctx, x.value.dense, size, dim)
	if err != nil {
		return nil, opError("split", err)
	}
	n := newNode(ctx, "SplitBackward0", x)
	if n != nil {
		n.backward = func(ctx context.Context, grads, out []Value) (err error) {
			all := make([]*tensor.Tensor, len(grads))
			for i, g := range grads {
				all[i] = g.dense
			}
			out[0].dense, err = engineOf(ctx).Cat(ctx, all, dim)
			return err
		}
	}
	results := make([]*Variable, len(parts))
	for i, t := range parts {
		results[i] = view(t, n, x)
	}
	return results, nil
}

// Cat returns the tensors xs, joined along dimension dim, which may be negative.
func Cat(ctx context.Context, xs []*Variable, dim int) (*Variable, error) {
	if err := dense("cat", xs...); err != nil {
		return nil, err
	}
	t, err := engineOf(ctx).Cat(ctx, tensorsOf(xs), dim)
	if err != nil {
		return nil, opError("cat", err)
	}
	n := newNode(ctx, "CatBackward0", xs...)
	if n != nil {
		sizes := make([]int, len(xs))
		for i, x := range xs {
			if sizes[i] = -1; x.value.dense.Rank() > 0 && len(x.Shape()) == t.Rank() {
				d := dim
				if d < 0 {
					d += t.Rank()
				}
				sizes[i] = x.Shape()[d]
			}
		}
		n.backward = func(ctx context.Context, grads, out []Value) (err error) {
			at := 0
			for i, size := range sizes {
				if size < 0 { // a tensor of shape [0], which Cat skips
					continue
				}
				if out[i].dense, err = engineOf(ctx).Narrow(ctx, grads[0].dense, dim, at, size); err != nil {
					return err
				}
				at += size
			}
			return nil
		}
	}
	return result(t, n), nil
}

// Stack returns the tensors xs, of the same shape, along a new dimension dim, which may be negative.
func Stack(ctx context.Context, xs []*Variable, dim int) (*Variable, error) {
	if err := dense("stack", xs...); err != nil {
		return nil, err
	}
	t, err := engineOf(ctx).Stack(ctx, tensorsOf(xs), dim)
	if err != nil {
		return nil, opError("stack", err)
	}
	n := newNode(ctx, "StackBackward0", xs...)
	if n != nil {
		n.backward = func(ctx context.Context, grads, out []Value) (err error) {
			for i := range out {
				if n.needs(i) {
					if out[i].dense, err = engineOf(ctx).Select(ctx, grads[0].dense, dim, i); err != nil {
						return err
					}
				}
			}
			return nil
		}
	}
	return result(t, n), nil
}

// Clone returns a copy of x in memory of its own.
func Clone(ctx context.Context, x *Variable) (*Variable, error) {
	if x == nil || x.value.IsZero() {
		return nil, opError("clone", fmt.Errorf("%w: there is no tensor", ErrSparse))
	}
	v, err := x.value.clone(ctx)
	if err != nil {
		return nil, opError("clone", err)
	}
	n := newNode(ctx, "CloneBackward0", x)
	r := New(v.Shared())
	n.addResult(r)
	if n != nil {
		n.backward = func(_ context.Context, grads, out []Value) error {
			out[0] = grads[0]
			return nil
		}
	}
	return r, nil
}
