package aten

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// method is an operator of an engine with one argument.
type method func(e *ops.Engine, ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error)

// unary returns the kernel that calls f with argument 0, a dense tensor.
func unary(f method) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) { return f(c.engine, c.ctx, c.tensor(0)) })
}

// pair is an operator of an engine with two tensors.
type pair func(e *ops.Engine, ctx context.Context, x, y *tensor.Tensor) (*tensor.Tensor, error)

// binary returns the kernel that calls f with arguments 0 and 1, dense tensors.
func binary(f pair) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		return f(c.engine, c.ctx, c.tensor(0), c.tensor(1))
	})
}

// add is the kernel of aten::add: argument 0 plus argument 2, alpha, times argument 1. Both may be
// sparse, but a sparse argument 0 needs a sparse argument 1; the result is sparse or dense like
// argument 0.
func add(c *call) (Value, error) {
	e, alpha := c.engine, c.number(2)
	switch y := c.args[1].(type) {
	case *tensor.Sparse:
		if s, ok := c.args[0].(*tensor.Sparse); ok {
			return value(e.AddSparse(c.ctx, s, y, alpha))
		}
		return value(e.AddDenseSparse(c.ctx, c.tensor(0), y, alpha))
	case *tensor.Tensor:
		if _, ok := c.args[0].(*tensor.Sparse); ok {
			return nil, valueErrorf("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
		}
		return value(e.Add(c.ctx, c.tensor(0), y, alpha))
	}
	return value(e.AddNumber(c.ctx, c.tensor(0), c.number(1), alpha))
}

// sub is the kernel of aten::sub, with the arguments of add.
func sub(c *call) (Value, error) {
	e, alpha := c.engine, c.number(2)
	switch y := c.args[1].(type) {
	case *tensor.Sparse:
		if s, ok := c.args[0].(*tensor.Sparse); ok {
			return value(e.SubSparse(c.ctx, s, y, alpha))
		}
		return value(e.SubDenseSparse(c.ctx, c.tensor(0), y, alpha))
	case *tensor.Tensor:
		if _, ok := c.args[0].(*tensor.Sparse); ok {
			return nil, valueErrorf("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
		}
		return value(e.Sub(c.ctx, c.tensor(0), y, alpha))
	}
	return value(e.SubNumber(c.ctx, c.tensor(0), c.number(1), alpha))
}

// mul is the kernel of aten::mul for two tensors. The product is sparse if one of them is.
func mul(c *call) (Value, error) {
	x, xSparse := c.args[0].(*tensor.Sparse)
	y, ySparse := c.args[1].(*tensor.Sparse)
	switch {
	case xSparse && ySparse:
		return value(c.engine.MulSparse(c.ctx, x, y))
	case xSparse:
		return value(c.engine.MulSparseDense(c.ctx, x, c.tensor(1)))
	case ySparse:
		return value(c.engine.MulSparseDense(c.ctx, y, c.tensor(0)))
	}
	return value(c.engine.Mul(c.ctx, c.tensor(0), c.tensor(1)))
}

// mulNumber is the kernel of aten::mul for a tensor, which may be sparse, and a number.
func mulNumber(c *call) (Value, error) {
	if s, ok := c.args[0].(*tensor.Sparse); ok {
		return value(c.engine.MulSparseNumber(c.ctx, s, c.number(1)))
	}
	return value(c.engine.MulNumber(c.ctx, c.tensor(0), c.number(1)))
}

// divNumber is the kernel of aten::div for a tensor, which may be sparse, and a number.
func divNumber(c *call) (Value, error) {
	if s, ok := c.args[0].(*tensor.Sparse); ok {
		return value(c.engine.DivSparseNumber(c.ctx, s, c.number(1)))
	}
	return value(c.engine.DivNumber(c.ctx, c.tensor(0), c.number(1)))
}

// neg is the kernel of aten::neg for a tensor, which may be sparse.
func neg(c *call) (Value, error) {
	if s, ok := c.args[0].(*tensor.Sparse); ok {
		return value(c.engine.NegSparse(c.ctx, s))
	}
	return value(c.engine.Neg(c.ctx, c.tensor(0)))
}

func pow(c *call) (*tensor.Tensor, error) { return c.engine.Pow(c.ctx, c.tensor(0), c.number(1)) }

// comparison returns the kernel that compares argument 0 with argument 1, a tensor or a number.
func comparison(op ops.Comparison) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		if y, ok := c.args[1].(*tensor.Tensor); ok {
			return c.engine.Compare(c.ctx, op, c.tensor(0), y)
		}
		return c.engine.CompareNumber(c.ctx, op, c.tensor(0), c.number(1))
	})
}

func equal(c *call) (Value, error) {
	return boolean(c.engine.Equal(c.ctx, c.tensor(0), c.tensor(1)))
}

func allClose(c *call) (Value, error) {
	return boolean(c.engine.AllClose(c.ctx, c.tensor(0), c.tensor(1), c.float(2), c.float(3), c.bool(4)))
}

// boolean returns v as a Value, and err.
func boolean(v bool, err error) (Value, error) { return v, err }

// mm is the kernel of aten::mm, whose first matrix may be sparse.
func mm(c *call) (Value, error) {
	y, ok := c.args[1].(*tensor.Tensor)
	if !ok {
		return nil, valueErrorf("mm does not take a %s as its second matrix", describe(c.args[1]))
	}
	if s, ok := c.args[0].(*tensor.Sparse); ok {
		return value(c.engine.SparseMatMul(c.ctx, s, y))
	}
	return value(c.engine.Mm(c.ctx, c.tensor(0), y))
}

func linear(c *call) (*tensor.Tensor, error) {
	bias, _ := c.args[2].(*tensor.Tensor) // nil if there is none
	return c.engine.Linear(c.ctx, c.tensor(0), c.tensor(1), bias)
}

func multiDot(c *call) (*tensor.Tensor, error) { return c.engine.MultiDot(c.ctx, c.tensors(0)) }
