package autograd

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Linear returns x·weightᵀ + bias in new memory. x has the shape [..., in], weight [out, in], and bias
// [out]; bias may be nil. They are dense and have the same dtype. The result has the shape [..., out].
func Linear(ctx context.Context, x, weight, bias *Variable) (*Variable, error) {
	args, name := []*Variable{x, weight, bias}, "AddmmBackward0"
	switch {
	case bias == nil:
		args, name = args[:2], "MmBackward0"
	case x != nil && len(x.Shape()) == 1:
		name = "AddBackward0"
	}
	if err := dense("linear", args...); err != nil {
		return nil, err
	}
	var b *tensor.Tensor
	if bias != nil {
		b = bias.value.dense
	}
	t, err := engineOf(ctx).Linear(ctx, x.value.dense, weight.value.dense, b)
	if err != nil {
		return nil, opError("linear", err)
	}
	n := newNode(ctx, name, args...)
	if n != nil {
		needs := [3]bool{n.needs(0), n.needs(1), bias != nil && n.needs(2)}
		xs, ws := n.saveIf(needs[1], x), n.saveIf(needs[0], weight)
		n.backward = func(ctx context.Context, grads, out []Value) error {
			x, err := xs.getDense()
			if err != nil {
				return err
			}
			weight, err := ws.getDense()
			if err != nil {
				return err
			}
			gx, gw, gb, err := engineOf(ctx).LinearBackward(ctx, grads[0].dense, x, weight, needs)
			out[0].dense, out[1].dense = gx, gw
			if needs[2] {
				out[2].dense = gb
			}
			return err
		}
	}
	return result(t, n), nil
}

// MultiDot returns the product of the matrices xs, at least two, in new memory. They are multiplied in the
// order that takes the fewest multiplications. The first and the last may be vectors, which have no
// dimension in the result. All are dense and have the same dtype.
func MultiDot(ctx context.Context, xs []*Variable) (*Variable, error) {
	if err := dense("multi_dot", xs...); err != nil {
		return nil, err
	}
	t, err := engineOf(ctx).MultiDot(ctx, tensorsOf(xs))
	if err != nil {
		return nil, opError("multi_dot", err)
	}
	n := newNode(ctx, "MmBackward0", xs...)
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
