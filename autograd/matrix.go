package autograd

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// MatMul returns the product of x and y, which are dense and have the same dtype, in new memory. Each is a
// vector, or has matrices in its last two dimensions; the dimensions before these are broadcast. A vector
// x counts as a matrix with one row, and a vector y as one with one column, which the result does not have.
func MatMul(ctx context.Context, x, y *Variable) (*Variable, error) {
	return product(ctx, "matmul", matMulName(x, y), x, y, (*ops.Engine).MatMul)
}

// matMulName returns the name of the node of a product: that of the one which multiplies where PyTorch
// records several.
func matMulName(x, y *Variable) string {
	if present("", x, y) != nil {
		return ""
	}
	switch rank, other := len(x.Shape()), len(y.Shape()); {
	case rank == 1 && other == 1:
		return "DotBackward0"
	case other == 1 || rank == 1 && other > 2:
		return "MvBackward0"
	case rank > 2 && other > 2:
		return "BmmBackward0"
	}
	return "MmBackward0"
}

// Bmm returns the products of the matrices in x, of shape [b, m, k], and in y, of shape [b, k, n], in
// the shape [b, m, n], in new memory. Both are dense and have the same dtype.
func Bmm(ctx context.Context, x, y *Variable) (*Variable, error) {
	return product(ctx, "bmm", "BmmBackward0", x, y, (*ops.Engine).Bmm)
}

type binaryFunc func(e *ops.Engine, ctx context.Context, x, y *tensor.Tensor) (*tensor.Tensor, error)

// product returns f of x and y, a product of matrices.
func product(ctx context.Context, op, name string, x, y *Variable, f binaryFunc) (*Variable, error) {
	if err := dense(op, x, y); err != nil {
		return nil, err
	}
	t, err := f(engineOf(ctx), ctx, x.value.dense, y.value.dense)
	if err != nil {
		return nil, opError(op, err)
	}
	n := newNode(ctx, name, x, y)
	if n != nil {
		xs, ys := n.saveIf(n.needs(1), x), n.saveIf(n.needs(0), y)
		row, column := len(x.Shape()) == 1, len(y.Shape()) == 1
		n.backward = func(ctx context.Context, grads, out []Value) error {
			return productBackward(ctx, n, grads[0].dense, xs, ys, row, column, out)
		}
	}
	return result(t, n), nil
}

// productBackward sets out to the gradients of the factors of a product: grad·yᵀ and xᵀ·grad, of which
// the dimensions of batches are summed afterwards. row is set if x is a vector, and column if y is.
func productBackward(ctx context.Context, n *Node, grad *tensor.Tensor, xs, ys saved, row, column bool,
	out []Value,
) error {
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
			if g, err = e.SumTo(ctx, g, 1, g.Shape()[g.Rank()-1]); err == nil {
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
			if g, err = e.SumTo(ctx, g, g.Shape()[g.Rank()-2], 1); err == nil {
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
