package aten

import "github.com/tensorpipe-go/tensorpipe/tensor"

// ofSparse returns a kernel that calls f with argument 0, a sparse tensor, and returns the results
// of f. If argument 0 is not sparse, the kernel does not call f and returns an *ops.ValueError.
func ofSparse(f func(c *call, s *tensor.Sparse) (Value, error)) kernel {
	return func(c *call) (Value, error) {
		s, ok := c.args[0].(*tensor.Sparse)
		if !ok {
			return nil, valueErrorf("expected a sparse tensor, not a %s", describe(c.args[0]))
		}
		return f(c, s)
	}
}

// ofCoalesced returns a kernel that calls f with argument 0, a coalesced sparse tensor, and returns
// the tensor that f returns, without a copy. If argument 0 is not sparse or not coalesced, the
// error of the kernel is an *ops.ValueError. In its text, the string what names the part of the
// tensor that f returns.
func ofCoalesced(what string, f func(*tensor.Sparse) *tensor.Tensor) kernel {
	return ofSparse(func(_ *call, s *tensor.Sparse) (Value, error) {
		if !s.Coalesced() {
			return nil, valueErrorf("Cannot get %s on an uncoalesced tensor, please call .coalesce() first", what)
		}
		return f(s), nil
	})
}

// makeSparse returns a kernel that creates a sparse tensor from copies of argument 0, the indices,
// and argument 1, the values, which it casts to the requested dtype. If inferred is false, argument
// 2 is the shape. If inferred is true there is no such argument, and the shape is the smallest one
// that contains all indices. The next arguments are dtype, layout, device and pin_memory.
func makeSparse(inferred bool) kernel {
	return func(c *call) (Value, error) {
		indices, values, options := c.tensor(0), c.tensor(1), 3
		var shape []int
		if inferred {
			options = 2
		} else {
			shape = c.ints(2)
		}
		if layout := c.args[options+1]; layout == int64(1) { // the sparse layout
			c.args[options+1] = nil
		}
		d, err := c.options(options, values.DType())
		if err != nil {
			return nil, err
		}
		if values, err = c.engine.Cast(c.ctx, values, d); err != nil {
			return nil, err
		}
		return value(c.engine.NewSparse(c.ctx, indices, values, shape))
	}
}

// toDense is the kernel of aten::to_dense: it returns argument 0, a sparse tensor, as a new dense
// tensor, cast to the dtype in argument 1 unless that is nil. If argument 0 is dense, it is only
// cast; as in PyTorch, the result is then the argument itself if the dtype does not change.
func toDense(c *call) (Value, error) {
	t, _ := c.args[0].(*tensor.Tensor)
	if s, ok := c.args[0].(*tensor.Sparse); ok {
		var err error
		if t, err = c.engine.ToDense(c.ctx, s); err != nil {
			return nil, err
		}
	}
	d, err := c.dtype(1, t.DType())
	if err != nil {
		return nil, err
	}
	return value(c.engine.Cast(c.ctx, t, d))
}
