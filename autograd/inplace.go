package autograd

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// AddInPlace adds alpha*y, which is broadcast, to x, which is dense; y may be sparse, of the same shape.
// The graph knows of it: x then depends on x as it was before, and a pass that needs the elements from
// before fails with ErrModified. No other goroutine may use x during the change.
//
// The error matches ErrInPlace if ctx records a graph, x or y requires a gradient, and x is a leaf that
// does, is a view, or has views. Otherwise it is one of Add, or wraps one of
// ops.Engine.AddInPlace, for example for memory that is read-only. After an error x is unchanged.
func AddInPlace(ctx context.Context, x, y *Variable, alpha float64) error {
	return sumInPlace(ctx, "add_", "AddBackward0", x, y, alpha, alpha, (*ops.Engine).AddInPlace)
}

// SubInPlace subtracts alpha*y from x, as AddInPlace adds it.
func SubInPlace(ctx context.Context, x, y *Variable, alpha float64) error {
	return sumInPlace(ctx, "sub_", "SubBackward0", x, y, alpha, -alpha, (*ops.Engine).SubInPlace)
}

// sumInPlace adds factor*y, which is what f does for alpha, to x.
func sumInPlace(ctx context.Context, op, name string, x, y *Variable, alpha, factor float64,
	f func(_ *ops.Engine, ctx context.Context, x, y *tensor.Tensor, alpha ops.Number) error,
) error {
	if err := present(op, x, y); err != nil {
		return err
	}
	return inPlace(ctx, op, name, x, y, func(e *ops.Engine) error {
		if y.value.sparse != nil {
			return e.AddSparseInPlace(ctx, x.value.dense, y.value.sparse, number(factor))
		}
		return f(e, ctx, x.value.dense, y.value.dense, number(alpha))
	}, func(n *Node) (backwardFunc, error) {
		n.takesSparse = true
		return sumBackward(n, factor), nil
	})
}

// MulInPlace multiplies x by y, which is broadcast. Both are dense. See AddInPlace.
func MulInPlace(ctx context.Context, x, y *Variable) error {
	if err := dense("mul_", x, y); err != nil {
		return err
	}
	return inPlace(ctx, "mul_", "MulBackward0", x, y, func(e *ops.Engine) error {
		return e.MulInPlace(ctx, x.value.dense, y.value.dense)
	}, func(n *Node) (backwardFunc, error) {
		before, err := n.cloneIf(ctx, n.needs(1), x)
		if err != nil {
			return nil, err
		}
		ys := n.saveIf(n.needs(0), y)
		return func(ctx context.Context, grads, out []Value) (err error) {
			if n.needs(1) {
				if out[1].dense, err = engineOf(ctx).Mul(ctx, grads[0].dense, before); err != nil {
					return err
				}
			}
			if n.needs(0) {
				out[0], err = ys.times(ctx, grads[0])
			}
			return err
		}, nil
	})
}

// DivInPlace divides x by y, which is broadcast. Both are dense. See AddInPlace.
func DivInPlace(ctx context.Context, x, y *Variable) error {
	if err := dense("div_", x, y); err != nil {
		return err
	}
	return inPlace(ctx, "div_", "DivBackward0", x, y, func(e *ops.Engine) error {
		return e.DivInPlace(ctx, x.value.dense, y.value.dense)
	}, func(n *Node) (backwardFunc, error) {
		before, err := n.cloneIf(ctx, n.needs(1), x)
		if err != nil {
			return nil, err
		}
		ys := n.save(y)
		return func(ctx context.Context, grads, out []Value) error {
			divisor, err := ys.getDense()
			if err != nil {
				return err
			}
			return quotientBackward(ctx, n, grads[0].dense, before, divisor, out)
		}, nil
	})
}

// cloneIf returns a copy of x, which is dense, for the backward function of n, or nil unless needed is
// true.
func (n *Node) cloneIf(ctx context.Context, needed bool, x *Variable) (*tensor.Tensor, error) {
	if !needed {
		return nil, nil
	}
	n.saves = true
	return engineOf(ctx).Clone(ctx, x.value.dense)
}

// inPlace runs change, which changes x by y. prepare returns the backward function, for which it saves
// tensors before the change.
func inPlace(ctx context.Context, op, name string, x, y *Variable,
	change func(*ops.Engine) error, prepare func(*Node) (backwardFunc, error),
) error {
	if err := dense(op, x); err != nil {
		return err
	}
	n := newNode(ctx, name, x, y)
	switch {
	case n == nil:
	case x.node == nil && x.requiresGrad:
		return opError(op, fmt.Errorf("a leaf Variable that requires grad %w", ErrInPlace))
	case x.isView:
		return opError(op, fmt.Errorf("a view of a Variable %w", ErrInPlace))
	case x.version.viewed.Load():
		return opError(op, fmt.Errorf("a Variable that has views %w", ErrInPlace))
	}
	var backward backwardFunc
	if n != nil {
		var err error
		if backward, err = prepare(n); err != nil {
			return opError(op, err)
		}
	}
	if err := change(engineOf(ctx)); err != nil {
		return opError(op, err)
	}
	x.version.n.Add(1)
	if n != nil {
		n.backward = backward
		n.addResult(x)
	}
	return nil
}
