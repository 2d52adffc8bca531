package autograd

import (
	"context"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// viewBackward returns the gradient of a tensor, given that of a view of it.
type viewBackward func(ctx context.Context, grad *tensor.Tensor) (*tensor.Tensor, error)

// viewOf returns the view t of x, the result of an operator whose gradient backward turns into that of
// x.
func viewOf(ctx context.Context, name string, t *tensor.Tensor, x *Variable, backward viewBackward) *Variable {
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

// Reshape returns the elements of x, which is dense, in another shape, in which one size may be -1: it
// follows from the others. The result is a view of x if strides can express it, and otherwise in new memory.
func Reshape(ctx context.Context, x *Variable, shape ...int) (*Variable, error) {
	return reshaped(ctx, "reshape", "ReshapeAliasBackward0", x, (*ops.Engine).Reshape, shape)
}

// View returns what Reshape returns, but never a copy: if strides cannot express the shape, the error
// matches tensor.ErrNotContiguous.
func View(ctx context.Context, x *Variable, shape ...int) (*Variable, error) {
	return reshaped(ctx, "view", "ViewBackward0", x, (*ops.Engine).View, shape)
}

// viewFunc returns a view of x.
type viewFunc func(_ *ops.Engine, ctx context.Context, x *tensor.Tensor, numbers ...int) (*tensor.Tensor, error)

// reshaped returns the view f of x, whose gradient is given the shape of x.
func reshaped(ctx context.Context, op, name string, x *Variable, f viewFunc, numbers []int) (*Variable, error) {
	if err := dense(op, x); err != nil {
		return nil, err
	}
	t, err := f(engineOf(ctx), ctx, x.value.dense, numbers...)
	if err != nil {
		return nil, opError(op, err)
	}
	if op == "reshape" && t.Storage() != x.value.dense.Storage() {
		name = "UnsafeViewBackward0"
	}
	before := slices.Clone(x.Shape())
	return viewOf(ctx, name, t, x, func(ctx context.Context, grad *tensor.Tensor) (*tensor.Tensor, error) {
		return engineOf(ctx).Reshape(ctx, grad, before...)
	}), nil
}

// Transpose returns a view of x, which is dense, with two dimensions exchanged; negative ones count from the end.
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

// Squeeze returns a view of x, which is dense, without those of the dimensions dims that have size 1, or
// without all of size 1 if there are no dims. Negative ones count from the end.
func Squeeze(ctx context.Context, x *Variable, dims ...int) (*Variable, error) {
	name := "SqueezeBackward1"
	if len(dims) == 0 {
		name = "SqueezeBackward0"
	}
	return reshaped(ctx, "squeeze", name, x, (*ops.Engine).Squeeze, dims)
}

// Unsqueeze returns a view of x, which is dense, with a new dimension dim of size 1. A negative dim counts
// from the end of the new shape.
func Unsqueeze(ctx context.Context, x *Variable, dim int) (*Variable, error) {
	return reshaped(ctx, "unsqueeze", "UnsqueezeBackward0", x,
		func(e *ops.Engine, ctx context.Context, x *tensor.Tensor, dims ...int) (*tensor.Tensor, error) {
			return e.Unsqueeze(ctx, x, dims[0])
		}, []int{dim})
}

// Permute returns a view of x, which is dense, with its dimensions in the order of dims, of which each
// dimension is one. Negative ones count from the end.
func Permute(ctx context.Context, x *Variable, dims ...int) (*Variable, error) {
	if err := dense("permute", x); err != nil {
		return nil, err
	}
	t, err := engineOf(ctx).Permute(ctx, x.value.dense, dims...)
	if err != nil {
		return nil, opError("permute", err)
	}
	inverse := make([]int, len(dims))
	for i, d := range dims {
		if d < 0 {
			d += len(dims)
		}
		inverse[d] = i
	}
	return viewOf(ctx, "PermuteBackward0", t, x, func(ctx context.Context, grad *tensor.Tensor) (*tensor.Tensor, error) {
		return engineOf(ctx).Permute(ctx, grad, inverse...)
	}), nil
}

// T returns a view of x, which is dense, of at most two dimensions, with these exchanged.
func T(ctx context.Context, x *Variable) (*Variable, error) {
	if err := dense("t", x); err != nil {
		return nil, err
	}
	t, err := engineOf(ctx).T(ctx, x.value.dense)
	if err != nil {
		return nil, opError("t", err)
	}
	return viewOf(ctx, "TBackward0", t, x, func(ctx context.Context, grad *tensor.Tensor) (*tensor.Tensor, error) {
		return engineOf(ctx).T(ctx, grad)
	}), nil
}

// Expand returns a view of x, which is dense, of the given shape: it repeats dimensions of size 1, and adds
// dimensions in front. A size of -1 leaves the dimension as it is.
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

// Narrow returns a view of the elements of x, which is dense, from start to start+length-1 of dimension dim. Negative
// dim and start count from the end.
func Narrow(ctx context.Context, x *Variable, dim, start, length int) (*Variable, error) {
	if err := dense("narrow", x); err != nil {
		return nil, err
	}
	t, err := engineOf(ctx).Narrow(ctx, x.value.dense, dim, start, length)
	if err != nil {
		return nil, opError("narrow", err)
	}
	part := func(ctx context.Context, whole *tensor.Tensor) (*tensor.Tensor, error) {
		return engineOf(ctx).Narrow(ctx, whole, dim, start, length)
	}
	return viewOf(ctx, "SliceBackward0", t, x, padded(x, part)), nil
}

// Select returns a view of the elements of x, which is dense, at the given index of dimension dim, which
// the view does not have. Negative numbers count from the end.
func Select(ctx context.Context, x *Variable, dim, index int) (*Variable, error) {
	if err := dense("select", x); err != nil {
		return nil, err
	}
	t, err := engineOf(ctx).Select(ctx, x.value.dense, dim, index)
	if err != nil {
		return nil, opError("select", err)
	}
	part := func(ctx context.Context, whole *tensor.Tensor) (*tensor.Tensor, error) {
		return engineOf(ctx).Select(ctx, whole, dim, index)
	}
	return viewOf(ctx, "SelectBackward0", t, x, padded(x, part)), nil
}

// partFunc returns a view of a part of a tensor.
type partFunc func(ctx context.Context, whole *tensor.Tensor) (*tensor.Tensor, error)

// padded returns the backward function of a view of a part of x: it returns zeros of the form of x,
// with the gradient in that part.
func padded(x *Variable, part partFunc) viewBackward {
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

// Clone returns a copy of x, dense or sparse, in new memory.
func Clone(ctx context.Context, x *Variable) (*Variable, error) {
	if err := present("clone", x); err != nil {
		return nil, err
	}
	v, err := x.value.clone(ctx)
	if err != nil {
		return nil, opError("clone", err)
	}
	n := newNode(ctx, "CloneBackward0", x)
	r := New(v.Shared())
	if n != nil {
		n.addResult(r)
		n.takesSparse = true
		n.backward = func(_ context.Context, grads, out []Value) error {
			out[0] = grads[0]
			return nil
		}
	}
	return r, nil
}
