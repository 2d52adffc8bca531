package autograd

import (
	"context"
	"fmt"
	"math"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// dense returns the error of the operator op if one of args is nil or not dense.
func dense(op string, args ...*Variable) error {
	for i, x := range args {
		switch {
		case x == nil || x.value.IsZero():
			return opError(op, fmt.Errorf("%w: argument %d is nil", ErrNoTensor, i))
		case x.value.dense == nil:
			return opError(op, fmt.Errorf("%w: argument %d is not dense", ErrSparse, i))
		}
	}
	return nil
}

// present returns the error of the operator op if one of args is nil.
func present(op string, args ...*Variable) error {
	for i, x := range args {
		if x == nil || x.value.IsZero() {
			return opError(op, fmt.Errorf("%w: argument %d is nil", ErrNoTensor, i))
		}
	}
	return nil
}

// Add returns x + y in new memory, with broadcasting and promotion of dtypes if both are dense. Both may
// be sparse, of the same shape, which gives a sparse result, or only y. The gradient of a sparse Variable
// has the layout of that of the result.
//
// The errors of operators are *OpError. They match ErrNoTensor for a nil argument, ErrSparse for a
// sparse one that the operator does not take, and otherwise wrap the error of package tensor/ops.
func Add(ctx context.Context, x, y *Variable) (*Variable, error) {
	return addScaled(ctx, x, y, 1)
}

// AddScaled returns x + alpha*y, as Add does.
func AddScaled(ctx context.Context, x, y *Variable, alpha float64) (*Variable, error) {
	return addScaled(ctx, x, y, alpha)
}

// Sub returns x - y, as Add does.
func Sub(ctx context.Context, x, y *Variable) (*Variable, error) {
	return subScaled(ctx, x, y, 1)
}

// SubScaled returns x - alpha*y, as Add does.
func SubScaled(ctx context.Context, x, y *Variable, alpha float64) (*Variable, error) {
	return subScaled(ctx, x, y, alpha)
}

// number returns v as a number for tensors of integers and of floating point numbers.
func number(v float64) ops.Number {
	if n := int64(v); float64(n) == v && (n != 0 || !math.Signbit(v)) {
		return ops.Int(n)
	}
	return ops.Float(v)
}

func addScaled(ctx context.Context, x, y *Variable, alpha float64) (*Variable, error) {
	if err := present("add", x, y); err != nil {
		return nil, err
	}
	out, err := addValues(ctx, x.value, y.value, number(alpha))
	if err != nil {
		return nil, opError("add", err)
	}
	return sumResult(ctx, "AddBackward0", out, x, y, alpha), nil
}

func subScaled(ctx context.Context, x, y *Variable, alpha float64) (*Variable, error) {
	if err := present("sub", x, y); err != nil {
		return nil, err
	}
	out, err := subValues(ctx, x.value, y.value, number(alpha))
	if err != nil {
		return nil, opError("sub", err)
	}
	return sumResult(ctx, "SubBackward0", out, x, y, -alpha), nil
}

// sumResult returns the result out of x + factor*y.
func sumResult(ctx context.Context, name string, out Value, x, y *Variable, factor float64) *Variable {
	n := newNode(ctx, name, x, y)
	r := New(out)
	if n != nil {
		n.addResult(r)
		n.takesSparse, n.backward = true, sumBackward(n, factor)
	}
	return r
}

// sumBackward returns the backward function of x + factor*y.
func sumBackward(n *Node, factor float64) backwardFunc {
	return func(ctx context.Context, grads, out []Value) (err error) {
		out[0] = grads[0]
		if n.needs(1) {
			out[1], err = grads[0].scaled(ctx, factor)
		}
		return err
	}
}

// addValues returns x + alpha*y.
func addValues(ctx context.Context, x, y Value, alpha ops.Number) (Value, error) {
	switch e := engineOf(ctx); {
	case x.dense != nil && y.dense != nil:
		t, err := e.Add(ctx, x.dense, y.dense, alpha)
		return Dense(t), err
	case x.dense != nil:
		t, err := e.AddDenseSparse(ctx, x.dense, y.sparse, alpha)
		return Dense(t), err
	case y.sparse != nil:
		s, err := e.AddSparse(ctx, x.sparse, y.sparse, alpha)
		return Sparse(s), err
	}
	return Value{}, errSparseDense
}

// subValues returns x - alpha*y.
func subValues(ctx context.Context, x, y Value, alpha ops.Number) (Value, error) {
	switch e := engineOf(ctx); {
	case x.dense != nil && y.dense != nil:
		t, err := e.Sub(ctx, x.dense, y.dense, alpha)
		return Dense(t), err
	case x.dense != nil:
		t, err := e.SubDenseSparse(ctx, x.dense, y.sparse, alpha)
		return Dense(t), err
	case y.sparse != nil:
		s, err := e.SubSparse(ctx, x.sparse, y.sparse, alpha)
		return Sparse(s), err
	}
	return Value{}, errSparseDense
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

// scaledInPlace returns factor*v, a gradient, in the memory of v if nothing else holds it.
func (v Value) scaledInPlace(ctx context.Context, factor float64) (Value, error) {
	if factor == 1 || !v.isWritable() {
		return v.scaled(ctx, factor)
	}
	return v, engineOf(ctx).MulNumberInPlace(ctx, v.dense, ops.Float(factor))
}

// Mul returns the products of the elements of x and y in new memory, with broadcasting and promotion of
// dtypes. If one is sparse, the result is; two sparse tensors must have the same shape. The gradient of
// a sparse argument is sparse.
func Mul(ctx context.Context, x, y *Variable) (*Variable, error) {
	if err := present("mul", x, y); err != nil {
		return nil, err
	}
	if x.value.sparse != nil || y.value.sparse != nil {
		return mulSparse(ctx, x, y)
	}
	t, err := engineOf(ctx).Mul(ctx, x.value.dense, y.value.dense)
	if err != nil {
		return nil, opError("mul", err)
	}
	n := newNode(ctx, "MulBackward0", x, y)
	if n != nil {
		xs, ys := n.saveIf(n.needs(1), x), n.saveIf(n.needs(0), y)
		n.backward = func(ctx context.Context, grads, out []Value) (err error) {
			if n.needs(1) {
				grad := grads[0]
				grad.unique = grad.unique && !n.needs(0)
				if out[1], err = xs.times(ctx, grad); err != nil {
					return err
				}
			}
			if n.needs(0) {
				out[0], err = ys.times(ctx, grads[0])
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

// times returns the products of the elements of a dense gradient and the saved tensor, in the memory of
// the gradient if nothing else holds it.
func (s saved) times(ctx context.Context, grad Value) (Value, error) {
	t, err := s.getDense()
	if err != nil {
		return Value{}, err
	}
	e := engineOf(ctx)
	if grad.isWritable() && t.DType() == grad.dense.DType() {
		return grad, e.MulInPlace(ctx, grad.dense, t)
	}
	t, err = e.Mul(ctx, grad.dense, t)
	return Dense(t), err
}

// Div returns the quotients of the elements of x and y, which are dense, in new memory, with broadcasting
// and promotion of dtypes.
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
			x, err := xs.getDense()
			if err != nil {
				return err
			}
			y, err := ys.getDense()
			if err != nil {
				return err
			}
			return quotientBackward(ctx, n, grads[0].dense, x, y, out)
		}
	}
	return result(t, n), nil
}

// quotientBackward sets out to the gradients of x and y for x/y: grad/y and -(grad/y)*x/y. x may be nil
// if y needs none.
func quotientBackward(ctx context.Context, n *Node, grad, x, y *tensor.Tensor, out []Value) error {
	e := engineOf(ctx)
	q, err := e.Div(ctx, grad, y)
	if err != nil {
		return err
	}
	out[0] = Dense(q)
	if !n.needs(1) {
		return nil
	}
	if q, err = e.Mul(ctx, q, x); err != nil {
		return err
	}
	if q, err = e.Div(ctx, q, y); err != nil {
		return err
	}
	out[1].dense, err = e.Neg(ctx, q)
	return err
}
