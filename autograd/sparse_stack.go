package autograd

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// allSparse reports whether xs has Variables, and all are sparse.
func allSparse(xs []*Variable) bool {
	for _, x := range xs {
		if x == nil || x.value.sparse == nil {
			return false
		}
	}
	return len(xs) > 0
}

// stackSparse is Stack of sparse tensors.
func stackSparse(ctx context.Context, xs []*Variable, dim int) (*Variable, error) {
	all := make([]*tensor.Sparse, len(xs))
	for i, x := range xs {
		all[i] = x.value.sparse
	}
	s, err := engineOf(ctx).StackSparse(ctx, all, dim)
	if err != nil {
		return nil, opError("stack", err)
	}
	n := newNode(ctx, "StackBackward0", xs...)
	r := New(Sparse(s))
	n.addResult(r)
	if n != nil {
		n.takesSparse = true
		n.backward = func(ctx context.Context, grads, out []Value) (err error) {
			for i := range out {
				switch {
				case !n.needs(i):
				case grads[0].sparse != nil:
					out[i].sparse, err = engineOf(ctx).SelectSparse(ctx, grads[0].sparse, dim, i)
				default:
					out[i].dense, err = engineOf(ctx).Select(ctx, grads[0].dense, dim, i)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}
	}
	return r, nil
}
