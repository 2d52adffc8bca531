package autograd

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// dense returns the error of the operator op if one of args is nil or not dense.
func dense(op string, args ...*Variable) error {
	for i, x := range args {
		if x == nil || x.value.dense == nil {
			return opError(op, fmt.Errorf("%w: argument %d is not a dense tensor", ErrSparse, i))
		}
	}
	return nil
}

// Add returns x + y, with broadcasting. Both dense or both sparse, or a dense x and a sparse y.
func Add(ctx context.Context, x, y *Variable) (*Variable, error) {
	return addScaled(ctx, "add", "AddBackward0", x, y, 1)
}

// AddScaled returns x + alpha*y, as Add does.
func AddScaled(ctx context.Context, x, y *Variable, alpha float64) (*Variable, error) {
	return addScaled(ctx, "add", "AddBackward0", x, y, alpha)
}

// Sub returns x - y, as Add does.
func Sub(ctx context.Context, x, y *Variable) (*Variable, error) {
	return addScaled(ctx, "sub", "SubBackward0", x, y, -1)
}

// SubScaled returns x - alpha*y, as Add does.
func SubScaled(ctx context.Context, x, y *Variable, alpha float64) (*Variable, error) {
	return addScaled(ctx, "sub", "SubBackward0", x, y, -alpha)
}

// number returns v as a number for tensors of integers and of floating point numbers.
func number(v float64) ops.Number {
	if n := int64(v); float64(n) == v {
		return ops.Int(n)
	}
	return ops.Float(v)
}

func addScaled(ctx context.Context, op, name string, x, y *Variable, alpha float64) (*Variable, error) {
	out, err := addValues(ctx, op, x, y, alpha)
	if err != nil {
		return nil, opError(op, err)
	}
	n := newNode(ctx, name, x, y)
	r := New(out)
	n.addResult(r)
	if n != nil {
		n.backward = func(ctx context.Context, grads, out []Value) (err error) {
			out[0] = grads[0]
			if n.needs(1) {
				out[1], err = grads[0].scaled(ctx, alpha)
			}
			return err
		}
	}
	return r, nil
}

// addValues returns x + alpha*y.
func addValues(ctx context.Context, op string, x, y *Variable, alpha float64) (Value, error) {
	if x == nil || y == nil || x.value.IsZero() || y.value.IsZero() {
		return Value{}, dense(op, x, y)
	}
	e := engineOf(ctx)
	switch a, b := x.value, y.value; {
	case a.dense != nil && b.dense != nil:
		t, err := e.Add(ctx, a.dense, b.dense, number(alpha))
		return Dense(t), err
	case a.dense != nil:
		t, err := e.AddDenseSparse(ctx, a.dense, b.sparse, number(alpha))
		return Dense(t), err
	case b.sparse != nil:
		s, err := e.AddSparse(ctx, a.sparse, b.sparse, number(alpha))
		return Sparse(s), err
	}
	return Value{}, fmt.Errorf("%w: a dense tensor cannot be added to a sparse one", ErrSparse)
}

// scaled returns factor*v, which is v itself if factor is 1.
func (v Value) scaled(ctx context.Context, factor float64) (Value, error) {
	e := engineOf(ctx)
	switch {
	case factor == 1 || v.IsZero():
		return v, nil
	case v.sparse != nil:
		s, err := e.MulSparseNumber(ctx, v.sparse, ops.Float(factor))
		return Sparse(s), err
	}
	t, err := e.MulNumber(ctx, v.dense, ops.Float(factor))
	return Dense(t), err
}

// AddNumber returns x + c.
func AddNumber(ctx context.Context, x *Variable, c float64) (*Variable, error) {
	return withNumber(ctx, "add", "AddBackward0", x, c, 1, func(e *ops.Engine, t *tensor.Tensor, c ops.Number) (*tensor.Tensor, error) {
		return e.AddNumber(ctx, t, c, ops.Int(1))
	})
}

// MulNumber returns c*x. x may be sparse.
func MulNumber(ctx context.Context, x *Variable, c float64) (*Variable, error) {
	if x != nil && x.value.sparse != nil {
		return scaledSparse(ctx, "mul", "MulBackward0", x, c)
	}
	return withNumber(ctx, "mul", "MulBackward0", x, c, c, func(e *ops.Engine, t *tensor.Tensor, c ops.Number) (*tensor.Tensor, error) {
		return e.MulNumber(ctx, t, c)
	})
}

// DivNumber returns x/c. x may be sparse.
func DivNumber(ctx context.Context, x *Variable, c float64) (*Variable, error) {
	if x != nil && x.value.sparse != nil {
		return scaledSparse(ctx, "div", "DivBackward0", x, 1/c)
	}
	return withNumber(ctx, "div", "DivBackward0", x, c, 1/c, func(e *ops.Engine, t *tensor.Tensor, c ops.Number) (*tensor.Tensor, error) {
		return e.DivNumber(ctx, t, c)
	})
}

// withNumber returns the result of f for x and the number c, whose derivative is factor.
func withNumber(ctx context.Context, op, name string, x *Variable, c, factor float64,
	f func(*ops.Engine, *tensor.Tensor, ops.Number) (*tensor.Tensor, error),
) (*Variable, error) {
	if err := dense(op, x); err != nil {
		return nil, err
	}
	t, err := f(engineOf(ctx), x.value.dense, number(c))
	if err != nil {
		return nil, opError(op, err)
	}
	n := newNode(ctx, name, x)
	if n != nil {
		n.backward = func(ctx context.Context, grads, out []Value) (err error) {
			out[0], err = grads[0].scaled(ctx, factor)
			return err
		}
	}
	return result(t, n), nil
}

// scaledSparse returns factor*x for a sparse x.
func scaledSparse(ctx context.Context, op, name string, x *Variable, factor float64) (*Variable, error) {
	v, err := x.value.scaled(ctx, factor)
	if err != nil {
		return nil, opError(op, err)
	}
	n := newNode(ctx, name, x)
	r := New(v)
	n.addResult(r)
	if n != nil {
		n.backward = func(ctx context.Context, grads, out []Value) (err error) {
			out[0], err = grads[0].scaled(ctx, factor)
			return err
		}
	}
	return r, nil
}

// Mul returns the products of the elements of x and y, with broadcasting. If one is sparse, the
// result is; two sparse tensors must have the same shape.
func Mul(ctx context.Context, x, y *Variable) (*Variable, error) {
	if x != nil && y != nil && (x.value.sparse != nil || y.value.sparse != nil) {
		return mulSparse(ctx, x, y)
	}
	if err := dense("mul", x, y); err != nil {
		return nil, err
	}
	t, err := engineOf(ctx).Mul(ctx, x.value.dense, y.value.dense)
	if err != nil {
		return nil, opError("mul", err)
	}
	n := newNode(ctx, "MulBackward0", x, y)
	if n != nil {
		xs, ys := n.saveIf(n.needs(1), x), n.saveIf(n.needs(0), y)
		n.backward = func(ctx context.Context, grads, out []Value) (err error) {
			if n.needs(0) {
				if out[0], err = ys.times(ctx, grads[0]); err != nil {
					return err
				}
			}
			if n.needs(1) {
				out[1], err = xs.times(ctx, grads[0])
			}
			return err
		}
	}
	return result(t, n), nil
}

// saveIf saves x if needed is true.
func (n *Node) saveIf(needed bool, x *Variable) saved {
	if !needed {
		return saved{}
	}
	return n.save(x)
}

// times returns the products of the elements of a dense gradient and the saved tensor.
func (s saved) times(ctx context.Context, grad Value) (Value, error) {
	v, err := s.get()
	if err != nil {
		return Value{}, err
	}
	g, err := grad.ToDense()
	if err != nil {
		return Value{}, err
	}
	t, err := engineOf(ctx).Mul(ctx, g, v.dense)
	return Dense(t), err
}

// Div returns the quotients of the elements of x and y, with broadcasting.
func Div(ctx context.Context, x, y *Variable) (*Variable, error) {
	if err := dense("div", x, y); err != nil {
		return nil, err
	}
	t, err := engineOf(ctx).Div(ctx, x.value.dense, y.value.dense)
	if err != nil {
		return nil, opError("div", err)
	}
	n := newNode(ctx, "DivBackward0", x, y)
	if n != nil {
		xs, ys := n.saveIf(n.needs(1), x), n.save(y)
		n.backward = func(ctx context.Context, grads, out []Value) error {
			yv, err := ys.get()
			if err != nil {
				return err
			}
			e := engineOf(ctx)
			q, err := e.Div(ctx, grads[0].dense, yv.dense) // the gradient of x
			if err != nil {
				return err
			}
			out[0] = Dense(q)
			if !n.needs(1) {
				return nil
			}
			v, err := xs.times(ctx, Dense(q))
			if err != nil {
				return err
			}
			if v.dense, err = e.Div(ctx, v.dense, yv.dense); err != nil {
				return err
			}
			out[1].dense, err = e.Neg(ctx, v.dense)
			return err
		}
	}
	return result(t, n), nil
}
