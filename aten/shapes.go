package aten

import (
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// constant returns a kernel that creates a new tensor in which each element is the number n, or
// argument 1 if n is nil. Argument 0 is the shape, or a tensor that has the shape and the default
// dtype. With a shape, the default dtype is F32, or, if n is nil, that of argument 1: Bool, I64 or
// F32. The next arguments are dtype, layout, device and pin_memory.
func constant(n *ops.Number) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		d, options := tensor.F32, 1
		var v ops.Number
		if n != nil {
			v = *n
		} else {
			v, options = c.number(1), 2
			d = v.DType()
		}
		shape := c.ints(0)
		if like, ok := c.args[0].(*tensor.Tensor); ok {
			shape, d = like.Shape(), like.DType()
		}
		d, err := c.options(options, d)
		if err != nil {
			return nil, err
		}
		return c.engine.Full(c.ctx, d, v, shape...)
	})
}

// eye returns a kernel that creates a new matrix of zeros with ones on its diagonal. If numbers is
// 1, the matrix is square and argument 0 is its size; if numbers is 2, arguments 0 and 1 are its
// rows and columns. The next arguments are dtype, layout, device and pin_memory; the default dtype
// is F32.
func eye(numbers int) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		d, err := c.options(numbers, tensor.F32)
		if err != nil {
			return nil, err
		}
		return c.engine.Eye(c.ctx, d, c.int(0), c.int(numbers-1))
	})
}

// arange returns a kernel that creates a new vector of the numbers start, start+step, ... before
// end. numbers is the number of arguments for them: 1 for end, 2 for start and end, 3 for start,
// end and step; start is 0 and step is 1 by default. The next arguments are dtype, layout, device
// and pin_memory.
func arange(numbers int) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		start, end, step := ops.Int(0), c.number(0), ops.Int(1)
		if numbers > 1 {
			start, end = end, c.number(1)
		}
		if numbers > 2 {
			step = c.number(2)
		}
		d, err := c.options(numbers, 0)
		if err != nil {
			return nil, err
		}
		return c.engine.Arange(c.ctx, d, start, end, step)
	})
}

func transpose(c *call) (*tensor.Tensor, error) {
	return c.engine.Transpose(c.ctx, c.tensor(0), c.int(1), c.int(2))
}

func permute(c *call) (*tensor.Tensor, error) {
	return c.engine.Permute(c.ctx, c.tensor(0), c.ints(1)...)
}

func reshape(c *call) (*tensor.Tensor, error) {
	return c.engine.Reshape(c.ctx, c.tensor(0), c.ints(1)...)
}

func view(c *call) (*tensor.Tensor, error) {
	return c.engine.View(c.ctx, c.tensor(0), c.ints(1)...)
}

func expand(c *call) (*tensor.Tensor, error) {
	return c.engine.Expand(c.ctx, c.tensor(0), c.ints(1)...)
}

func unsqueeze(c *call) (*tensor.Tensor, error) {
	return c.engine.Unsqueeze(c.ctx, c.tensor(0), c.int(1))
}

func squeeze(c *call) (*tensor.Tensor, error) { return c.engine.Squeeze(c.ctx, c.tensor(0)) }

func squeezeDim(c *call) (*tensor.Tensor, error) {
	return c.engine.Squeeze(c.ctx, c.tensor(0), c.int(1))
}

func selectIndex(c *call) (*tensor.Tensor, error) {
	return c.engine.Select(c.ctx, c.tensor(0), c.int(1), c.int(2))
}

func narrow(c *call) (*tensor.Tensor, error) {
	return c.engine.Narrow(c.ctx, c.tensor(0), c.int(1), c.int(2), c.int(3))
}

func split(c *call) (Value, error) {
	parts, err := c.engine.Split(c.ctx, c.tensor(0), c.int(1), c.int(2))
	if err != nil {
		return nil, err
	}
	return parts, nil
}

func cat(c *call) (*tensor.Tensor, error) { return c.engine.Cat(c.ctx, c.tensors(0), c.int(1)) }

func stack(c *call) (*tensor.Tensor, error) { return c.engine.Stack(c.ctx, c.tensors(0), c.int(1)) }

// clone is the kernel of aten::clone for a dense or sparse tensor.
func clone(c *call) (Value, error) {
	if s, ok := c.args[0].(*tensor.Sparse); ok {
		return value(c.engine.CloneSparse(c.ctx, s))
	}
	return value(c.engine.Clone(c.ctx, c.tensor(0)))
}

// toDType is the kernel of aten::to.dtype: it returns argument 0 cast to the dtype in argument 1.
// If the tensor has that dtype already, the result is the tensor itself, or a copy if argument 3 is
// true.
func toDType(c *call) (*tensor.Tensor, error) {
	x := c.tensor(0)
	d, err := c.dtype(1, x.DType())
	if err != nil {
		return nil, err
	}
	if c.bool(3) && d == x.DType() {
		return c.engine.Clone(c.ctx, x)
	}
	return c.engine.Cast(c.ctx, x, d)
}

// item is the kernel of aten::item: it returns the element of argument 0 as a bool, an int64 or a
// float64.
func item(c *call) (Value, error) {
	n, err := c.engine.Item(c.ctx, c.tensor(0))
	if err != nil {
		return nil, err
	}
	switch n.DType() {
	case tensor.Bool:
		return n.Int64() == 1, nil
	case tensor.I64:
		return n.Int64(), nil
	}
	return n.Float64(), nil
}
