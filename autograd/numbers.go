package autograd

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// AddNumber returns x + c in new memory. x is dense.
func AddNumber(ctx context.Context, x *Variable, c float64) (*Variable, error) {
	return withNumber(ctx, "add", "AddBackward0", x, c, 1,
		func(e *ops.Engine, t *tensor.Tensor, c ops.Number) (*tensor.Tensor, error) {
			return e.AddNumber(ctx, t, c, ops.Int(1))
		})
}

// SubNumber returns x - c in new memory. x is dense.
func SubNumber(ctx context.Context, x *Variable, c float64) (*Variable, error) {
	return withNumber(ctx, "sub", "SubBackward0", x, c, 1,
		func(e *ops.Engine, t *tensor.Tensor, c ops.Number) (*tensor.Tensor, error) {
			return e.SubNumber(ctx, t, c, ops.Int(1))
		})
}

// MulNumber returns c*x in new memory. x may be sparse.
func MulNumber(ctx context.Context, x *Variable, c float64) (*Variable, error) {
	if x != nil && x.value.sparse != nil {
		return scaledSparse(ctx, "mul", "MulBackward0", x, c, engineOf(ctx).MulSparseNumber)
	}
	return withNumber(ctx, "mul", "MulBackward0", x, c, c,
		func(e *ops.Engine, t *tensor.Tensor, c ops.Number) (*tensor.Tensor, error) {
			return e.MulNumber(ctx, t, c)
		})
}

// DivNumber returns x/c in new memory. x may be sparse.
func DivNumber(ctx context.Context, x *Variable, c float64) (*Variable, error) {
	if x != nil && x.value.sparse != nil {
		return scaledSparse(ctx, "div", "DivBackward0", x, c, engineOf(ctx).DivSparseNumber)
	}
	return withNumber(ctx, "div", "DivBackward0", x, c, 1/c,
		func(e *ops.Engine, t *tensor.Tensor, c ops.Number) (*tensor.Tensor, error) {
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
		n.takesSparse = true
		n.backward = func(ctx context.Context, grads, out []Value) (err error) {
			out[0], err = grads[0].scaledInPlace(ctx, factor)
			return err
		}
	}
	return result(t, n), nil
}

// scaledSparse returns f of x, which is sparse, and c: their product or quotient.
func scaledSparse(ctx context.Context, op, name string, x *Variable, c float64,
	f func(context.Context, *tensor.Sparse, ops.Number) (*tensor.Sparse, error),
) (*Variable, error) {
	s, err := f(ctx, x.value.sparse, number(c))
	if err != nil {
		return nil, opError(op, err)
	}
	factor := c
	if op == "div" {
		factor = 1 / c
	}
	return sparseResult(ctx, name, s, x, factor), nil
}

// sparseResult returns the result s of an operator on x whose derivative is factor.
func sparseResult(ctx context.Context, name string, s *tensor.Sparse, x *Variable, factor float64) *Variable {
	n := newNode(ctx, name, x)
	r := New(Sparse(s))
	if n != nil {
		n.addResult(r)
		n.takesSparse = true
		n.backward = func(ctx context.Context, grads, out []Value) (err error) {
			out[0], err = grads[0].scaledInPlace(ctx, factor)
			return err
		}
	}
	return r
}
