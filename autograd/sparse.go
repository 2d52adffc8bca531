package autograd

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// mulSparse returns the products of the elements of x and y, of which at least one is sparse.
func mulSparse(ctx context.Context, x, y *Variable) (*Variable, error) {
	v, err := x.value.times(ctx, y.value)
	if err != nil {
		return nil, opError("mul", err)
	}
	n := newNode(ctx, "MulBackward0", x, y)
	r := New(v)
	n.addResult(r)
	if n != nil {
		n.takesSparse = true
		xs, ys := n.saveIf(n.needs(1), x), n.saveIf(n.needs(0), y)
		n.backward = func(ctx context.Context, grads, out []Value) error {
			for i, other := range [2]saved{ys, xs} {
				if !n.needs(i) {
					continue
				}
				v, err := other.get()
				if err != nil {
					return err
				}
				if out[i], err = grads[0].times(ctx, v); err != nil {
					return err
				}
			}
			return nil
		}
	}
	return r, nil
}

// times returns the products of the elements of v and w, which is sparse if one of them is.
func (v Value) times(ctx context.Context, w Value) (Value, error) {
	e := engineOf(ctx)
	var s *tensor.Sparse
	var err error
	switch {
	case v.dense != nil && w.dense != nil:
		t, err := e.Mul(ctx, v.dense, w.dense)
		return Dense(t), err
	case v.sparse != nil && w.sparse != nil:
		s, err = e.MulSparse(ctx, v.sparse, w.sparse)
	case v.sparse != nil:
		s, err = e.MulSparseDense(ctx, v.sparse, w.dense)
	default:
		s, err = e.MulSparseDense(ctx, w.sparse, v.dense)
	}
	return Sparse(s), err
}

// ToDense returns x, which is sparse, as a dense tensor in new memory. The gradient of x is sparse, and has
// the indices of x.
func ToDense(ctx context.Context, x *Variable) (*Variable, error) {
	if err := present("to_dense", x); err != nil {
		return nil, err
	}
	if x.value.sparse == nil {
		return nil, opError("to_dense", fmt.Errorf("%w: argument 0 is not sparse", ErrSparse))
	}
	t, err := engineOf(ctx).ToDense(ctx, x.value.sparse)
	if err != nil {
		return nil, opError("to_dense", err)
	}
	n := newNode(ctx, "ToDenseBackward0", x)
	if n != nil {
		at, err := n.savePositions(x)
		if err != nil {
			return nil, opError("to_dense", err)
		}
		n.backward = func(ctx context.Context, grads, out []Value) error {
			s, err := at.get()
			if err == nil {
				out[0].sparse, err = engineOf(ctx).SparseMask(ctx, grads[0].dense, s.sparse)
			}
			return err
		}
	}
	return result(t, n), nil
}

// savePositions saves x, which is sparse, with each position once: a gradient that lists a position twice
// would have the sum there.
func (n *Node) savePositions(x *Variable) (saved, error) {
	s := n.save(x)
	var err error
	s.value.sparse, err = x.value.sparse.Coalesce()
	return s, err
}

// sumSparse returns the sum of the elements of x, which is sparse.
func sumSparse(ctx context.Context, x *Variable) (*Variable, error) {
	t, err := engineOf(ctx).SumSparse(ctx, x.value.sparse)
	if err != nil {
		return nil, opError("sum", err)
	}
	n := newNode(ctx, "SumBackward0", x)
	if n != nil {
		at, err := n.savePositions(x)
		if err != nil {
			return nil, opError("sum", err)
		}
		n.backward = func(ctx context.Context, grads, out []Value) error {
			s, err := at.get()
			if err == nil {
				out[0].sparse, err = engineOf(ctx).FillLikeSparse(ctx, s.sparse, grads[0].dense)
			}
			return err
		}
	}
	return result(t, n), nil
}
