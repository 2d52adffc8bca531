package autograd

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// Split returns views of parts of x, which is dense, along dimension dim, each of the given size, the last
// one possibly smaller. A negative dim counts from the end.
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

// Cat returns the tensors xs, which are dense, at least one, joined along dimension dim, in new memory. Their
// other dimensions are equal; those of shape [0] are skipped. A negative dim counts from the end.
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
					if out[i].dense, err = engineOf(ctx).FullOn(ctx, grads[0].Device(), grads[0].DType(), ops.Int(0), 0); err != nil {
						return err
					}
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

// Stack returns the tensors xs, at least one, of the same shape, along a new dimension dim, in new memory. A
// negative dim counts from the end of the new shape. All are dense, or all are sparse, and dim is then not
// among their dense dimensions.
func Stack(ctx context.Context, xs []*Variable, dim int) (*Variable, error) {
	if allSparse(xs) {
		return stackSparse(ctx, xs, dim)
	}
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
