package autograd

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// AddInPlace adds alpha*y, which is broadcast, to x. The graph knows of it: x then depends on what it
// was before, and a pass that needs the elements from before fails with ErrModified. The error matches
// ErrInPlace if ctx records a graph and x is a leaf that requires a gradient, or a view.
func AddInPlace(ctx context.Context, x, y *Variable, alpha float64) error {
	return inPlace(ctx, "add_", "AddBackward0", x, y, func(e *ops.Engine) error {
		return e.AddInPlace(ctx, x.value.dense, y.value.dense, number(alpha))
	}, func(n *Node) (backwardFunc, error) {
		return func(ctx context.Context, grads, out []Value) (err error) {
			out[0] = grads[0]
			if n.needs(1) {
				out[1], err = grads[0].scaled(ctx, alpha)
			}
			return err
		}, nil
	})
}

// SubInPlace subtracts alpha*y from x, as AddInPlace adds it.
func SubInPlace(ctx context.Context, x, y *Variable, alpha float64) error {
	return AddInPlace(ctx, x, y, -alpha)
}

// MulInPlace multiplies x by y, which is broadcast. See AddInPlace.
func MulInPlace(ctx context.Context, x, y *Variable) error {
	return inPlace(ctx, "mul_", "MulBackward0", x, y, func(e *ops.Engine) error {
		return e.MulInPlace(ctx, x.value.dense, y.value.dense)
	}, func(n *Node) (backwardFunc, error) {
		var before Value
		if n.needs(1) {
			var err error
			if before, err = x.value.clone(ctx); err != nil {
				return nil, err
			}
		}
		ys := n.saveIf(n.needs(0), y)
		return func(ctx context.Context, grads, out []Value) (err error) {
			if n.needs(0) {
				if out[0], err = ys.times(ctx, grads[0]); err != nil {
					return err
				}
			}
			if n.needs(1) {
				out[1], err = grads[0].times(ctx, before)
			}
			return err
		}, nil
	})
}

// inPlace runs change, which changes x by y. prepare returns the backward function, for which it saves
// what it needs before the change.
func inPlace(ctx context.Context, op, name string, x, y *Variable, change func(*ops.Engine) error, prepare func(*Node) (backwardFunc, error)) error {
	if err := dense(op, x, y); err != nil {
		return err
	}
	n := newNode(ctx, name, x, y)
	switch {
	case n == nil:
	case x.node == nil && x.requiresGrad:
		return opError(op, fmt.Errorf("a leaf Variable that requires grad %w", ErrInPlace))
	case x.isView:
		return opError(op, fmt.Errorf("a view of a Variable %w", ErrInPlace))
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
