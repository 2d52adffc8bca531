package autograd

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// MatMul returns the product of x and y. Each is a vector, or has matrices in its last two dimensions;
// the dimensions before these are broadcast. A vector x counts as a matrix with one row, and a vector
// y as one with one column, which the result does not have.
func MatMul(ctx context.Context, x, y *Variable) (*Variable, error) {
	return product(ctx, "matmul", "MmBackward0", x, y, engineOf(ctx).MatMul)
}

// Bmm returns the products of the matrices in x, of shape [b, m, k], and in y, of shape [b, k, n], in
// the shape [b, m, n].
func Bmm(ctx context.Context, x, y *Variable) (*Variable, error) {
	return product(ctx, "bmm", "BmmBackward0", x, y, engineOf(ctx).Bmm)
}

type binaryFunc func(ctx context.Context, x, y *tensor.Tensor) (*tensor.Tensor, error)

// product returns f of x and y, a product of matrices.
func product(ctx context.Context, op, name string, x, y *Variable, f binaryFunc) (*Variable, error) {
	if err := dense(op, x, y); err != nil {
		return nil, err
	}
	t, err := f(ctx, x.value.dense, y.value.dense)
	if err != nil {
		return nil, opError(op, err)
	}
	n := newNode(ctx, name, x, y)
	if n != nil {
		xs, ys := n.saveIf(n.needs(1), x), n.saveIf(n.needs(0), y)
		xForm, yForm := formOf(x.value), formOf(y.value)
		n.backward = func(ctx context.Context, grads, out []Value) error {
			return productBackward(ctx, n, grads[0].dense, xs, ys, &xForm, &yForm, out)
		}
	}
	return result(t, n), nil
}

// productBackward sets out to the gradients of the factors of a product: grad·yᵀ and xᵀ·grad, of which
// the dimensions of batches are summed afterwards.
func productBackward(ctx context.Context, n *Node, grad *tensor.Tensor, xs, ys saved, xForm, yForm *form, out []Value) error {
	row, column := xForm.rank == 1, yForm.rank == 1
	grad, err := withDims(grad, row, column)
	if err != nil {
		return err
	}
	e := engineOf(ctx)
	if n.needs(0) {
		y, err := ys.matrix(false, column)
		if err != nil {
			return err
		}
		if y, err = y.Transpose(y.Rank()-2, y.Rank()-1); err != nil {
			return err
		}
		g, err := e.MatMul(ctx, grad, y)
		if err != nil {
			return err
		}
		if row {
			if g, err = e.SumTo(ctx, g, 1, xForm.dims[0]); err == nil {
				g, err = g.Select(0, 0)
			}
		}
		if err != nil {
			return err
		}
		out[0] = Dense(g)
	}
	if n.needs(1) {
		x, err := xs.matrix(row, false)
		if err != nil {
			return err
		}
		if x, err = x.Transpose(x.Rank()-2, x.Rank()-1); err != nil {
			return err
		}
		g, err := e.MatMul(ctx, x, grad)
		if err != nil {
			return err
		}
		if column {
			if g, err = e.SumTo(ctx, g, yForm.dims[0], 1); err == nil {
				g, err = g.Select(1, 0)
			}
		}
		if err != nil {
			return err
		}
		out[1] = Dense(g)
	}
	return nil
}

// matrix returns the saved tensor, a vector as a matrix with one row or one column.
func (s saved) matrix(row, column bool) (*tensor.Tensor, error) {
	v, err := s.get()
	if err != nil {
		return nil, err
	}
	switch {
	case row:
		return v.dense.Unsqueeze(0)
	case column:
		return v.dense.Unsqueeze(1)
	}
	return v.dense, nil
}

// withDims returns the gradient of a product with the dimensions of size 1 that the product of a
// vector does not have.
func withDims(grad *tensor.Tensor, row, column bool) (*tensor.Tensor, error) {
	var err error
	if column {
		if grad, err = grad.Unsqueeze(grad.Rank()); err != nil {
			return nil, err
		}
	}
	if row {
		return grad.Unsqueeze(grad.Rank() - 1)
	}
	return grad, nil
}

// Linear returns x·weightᵀ + bias. x has the shape [..., in], weight [out, in], and bias [out]; bias
// may be nil. The result has the shape [..., out].
func Linear(ctx context.Context, x, weight, bias *Variable) (*Variable, error) {
	args := []*Variable{x, weight, bias}
	var b *tensor.Tensor
	if bias == nil {
		args = args[:2]
	} else {
		b = bias.value.dense
	}
	if err := dense("linear", args...); err != nil {
		return nil, err
	}
	t, err := engineOf(ctx).Linear(ctx, x.value.dense, weight.value.dense, b)
	if err != nil {
		return nil, opError("linear", err)
	}
	n := newNode(ctx, "AddmmBackward0", args...)
	if n != nil {
		needs := [3]bool{n.needs(0), n.needs(1), bias != nil && n.needs(2)}
		xs, ws := n.saveIf(needs[1], x), n.saveIf(needs[0], weight)
		n.backward = func(ctx context.Context, grads, out []Value) error {
			var all [2]*tensor.Tensor
			for i, s := range [2]saved{xs, ws} {
				if needs[1-i] {
					v, err := s.get()
					if err != nil {
						return err
					}
					all[i] = v.dense
				}
			}
			gx, gw, gb, err := engineOf(ctx).LinearBackward(ctx, grads[0].dense, all[0], all[1], needs)
			out[0].dense, out[1].dense = gx, gw
			if needs[2] {
				out[2].dense = gb
			}
			return err
		}
	}
	return result(t, n), nil
}

// MultiDot returns the product of the matrices xs, at least two, in the order of multiplications that
// takes the fewest steps. The first and the last may be vectors.
func MultiDot(ctx context.Context, xs []*Variable) (*Variable, error) {
	if err := dense("multi_dot", xs...); err != nil {
		return nil, err
	}
	t, err := engineOf(ctx).MultiDot(ctx, tensorsOf(xs))
	if err != nil {
		return nil, opError("multi_dot", err)
	}
	n := newNode(ctx, "LinalgMultiDotBackward0", xs...)
	if n != nil {
		all := make([]saved, len(xs))
		for i, x := range xs {
			all[i] = n.save(x)
		}
		n.backward = func(ctx context.Context, grads, out []Value) error {
			return multiDotBackward(ctx, n, grads[0].dense, all, out)
		}
	}
	return result(t, n), nil
}

// multiDotBackward sets out to the gradients of the factors of a product: for each the product of those
// before it, transposed, the gradient, and those after it, transposed.
func multiDotBackward(ctx context.Context, n *Node, grad *tensor.Tensor, all []saved, out []Value) error {
	last := len(all) - 1
	factors := make([]*tensor.Tensor, len(all))
	row, column := false, false
	for i, s := range all {
		isRow, isColumn := i == 0 && s.value.dense.Rank() == 1, i == last && s.value.dense.Rank() == 1
		m, err := s.matrix(isRow, isColumn)
		if err != nil {
			return err
		}
		row, column = row || isRow, column || isColumn
		factors[i] = m
	}
	grad, err := withDims(grad, row, column)
	if err != nil {
		return err
	}
	e := engineOf(ctx)
	for i := range factors {
		if !n.needs(i) {
			continue
		}
		chain := make([]*tensor.Tensor, 0, len(factors))
		for k := i - 1; k >= 0; k-- {
			chain = append(chain, factors[k])
		}
		chain = append(chain, nil) // in place of factor i
		for k := last; k > i; k-- {
			chain = append(chain, factors[k])
		}
		for k, m := range chain {
			if m == nil {
				chain[k] = grad
			} else if chain[k], err = m.Transpose(0, 1); err != nil {
				return err
			}
		}
		g, err := e.MultiDot(ctx, chain)
		if err != nil {
			return err
		}
		if out[i].dense, err = g.Reshape(all[i].value.Shape()...); err != nil {
			return err
		}
	}
	return nil
}

// tensorsOf returns the tensors of xs, which are dense.
func tensorsOf(xs []*Variable) []*tensor.Tensor {
	all := make([]*tensor.Tensor, len(xs))
	for i, x := range xs {
		all[i] = x.value.dense
	}
	return all
}
