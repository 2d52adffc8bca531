package aten

import (
	"errors"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

func transposed(c *call) (*tensor.Tensor, error) {
	x := c.tensor(0)
	switch x.Rank() {
	case 0, 1:
		return x, nil
	case 2:
		return x.Transpose(0, 1)
	}
	return nil, fault("t() expects a tensor with <= 2 dimensions, but self is %dD", x.Rank())
}

func transpose(c *call) (*tensor.Tensor, error) {
	x := c.tensor(0)
	a, err := c.dim(1, x.Rank())
	if err != nil {
		return nil, err
	}
	b, err := c.dim(2, x.Rank())
	if err != nil || x.Rank() == 0 {
		return x, err
	}
	return x.Transpose(a, b)
}

func permute(c *call) (*tensor.Tensor, error) {
	x, dims := c.tensor(0), c.ints(1)
	for i := range dims {
		var err error
		if dims[i], err = wrapDim(dims[i], x.Rank()); err != nil {
			return nil, err
		}
	}
	return x.Permute(dims...)
}

func view(c *call) (*tensor.Tensor, error) {
	shape, err := inferred(c.ints(1), c.tensor(0).Len())
	if err != nil {
		return nil, err
	}
	return c.tensor(0).View(shape...)
}

// reshape is a view where that is possible, else a copy.
func reshape(c *call) (*tensor.Tensor, error) {
	shape, err := inferred(c.ints(1), c.tensor(0).Len())
	if err != nil {
		return nil, err
	}
	return c.reshaped(c.tensor(0), shape)
}

func (c *call) reshaped(x *tensor.Tensor, shape []int) (*tensor.Tensor, error) {
	v, err := x.View(shape...)
	if !errors.Is(err, tensor.ErrNotContiguous) {
		return v, err
	}
	if x, err = c.clone(x); err != nil {
		return nil, err
	}
	return x.View(shape...)
}

// inferred is the shape with a size for the one -1 in it.
func inferred(shape []int, n int) ([]int, error) {
	open := -1
	known := slices.Clone(shape)
	for i, size := range shape {
		switch {
		case size == -1 && open >= 0:
			return nil, fault("only one dimension can be inferred")
		case size == -1:
			open, known[i] = i, 1
		case size < 0:
			return nil, fault("invalid shape dimension %d", size)
		}
	}
	rest, err := tensor.NumElements(known)
	if err != nil {
		return nil, err
	}
	switch {
	case open >= 0 && rest == 0:
		return nil, fault("cannot reshape tensor of %d elements into shape %s because the unspecified dimension size -1 can be any value and is ambiguous", n, sizes(shape))
	case open >= 0 && n%rest == 0:
		known[open] = n / rest
	case open >= 0 || rest != n:
		return nil, fault("shape '%s' is invalid for input of size %d", sizes(shape), n)
	}
	return known, nil
}

func expand(c *call) (*tensor.Tensor, error) {
	x, shape := c.tensor(0), c.ints(1)
	for i, size := range shape {
		if old := i - len(shape) + x.Rank(); size == -1 && old >= 0 {
			shape[i] = x.Shape()[old]
		}
	}
	if err := c.room(x.DType(), shape); err != nil {
		return nil, err
	}
	return x.Expand(shape...)
}

func unsqueeze(c *call) (*tensor.Tensor, error) {
	x := c.tensor(0)
	dim, err := wrapDim(c.int(1), x.Rank()+1)
	if err != nil {
		return nil, err
	}
	return x.Unsqueeze(dim)
}

func squeeze(c *call) (*tensor.Tensor, error) {
	x := c.tensor(0)
	for dim := x.Rank() - 1; dim >= 0; dim-- {
		if x.Shape()[dim] != 1 {
			continue
		}
		var err error
		if x, err = x.Select(dim, 0); err != nil {
			return nil, err
		}
	}
	return x, nil
}

func squeezeDim(c *call) (*tensor.Tensor, error) {
	x := c.tensor(0)
	dim, err := c.dim(1, x.Rank())
	if err != nil || x.Rank() == 0 || x.Shape()[dim] != 1 {
		return x, err
	}
	return x.Select(dim, 0)
}

func selectIndex(c *call) (*tensor.Tensor, error) {
	x := c.tensor(0)
	if x.Rank() == 0 {
		return nil, fault("select() cannot be applied to a 0-dim tensor.")
	}
	dim, err := c.dim(1, x.Rank())
	if err != nil {
		return nil, err
	}
	index, size := c.int(2), x.Shape()[dim]
	if index < -size || index >= size {
		return nil, fault("select(): index %d out of range for tensor of size %s at dimension %d", index, sizes(x.Shape()), dim)
	}
	if index < 0 {
		index += size
	}
	return x.Select(dim, index)
}

func narrow(c *call) (*tensor.Tensor, error) {
	x := c.tensor(0)
	if x.Rank() == 0 {
		return nil, fault("narrow() cannot be applied to a 0-dim tensor.")
	}
	dim, err := c.dim(1, x.Rank())
	if err != nil {
		return nil, err
	}
	start, size := c.int(2), x.Shape()[dim]
	if start < 0 && start >= -size {
		start += size
	}
	return x.Narrow(dim, start, c.int(3))
}

// clone copies. A sparse tensor is not changed by anybody, its parts are copied
// for memory that the caller may give back.
func clone(c *call) (Value, error) {
	if s, ok := c.args[0].(*tensor.Sparse); ok {
		return value(c.sparse(s.Indices(), s.Values(), s.Shape()))
	}
	return value(c.clone(c.tensor(0)))
}

func contiguous(c *call) (*tensor.Tensor, error) { return c.contiguous(c.tensor(0)) }

// toDType casts; a copy is made where it was asked for.
func toDType(c *call) (*tensor.Tensor, error) {
	x := c.tensor(0)
	d, err := c.dtype(1, x.DType())
	if err != nil {
		return nil, err
	}
	if c.bool(3) && d == x.DType() {
		return c.clone(x)
	}
	return c.cast(x, d)
}

// item is the number in a tensor of one element.
func item(c *call) (Value, error) {
	x := c.tensor(0)
	if x.Len() != 1 {
		return nil, fault("a Tensor with %d elements cannot be converted to Scalar", x.Len())
	}
	d := x.DType()
	switch {
	case isComplex(d):
		return nil, fault("a complex number is no value")
	case d == tensor.Bool:
		v, err := elements[bool](c, x)
		if err != nil {
			return nil, err
		}
		return v[0], nil
	case isInt(d):
		return first[int64](c, x)
	}
	return first[float64](c, x)
}

func first[T int64 | float64](c *call, x *tensor.Tensor) (Value, error) {
	x, err := c.cast(x, tensor.DTypeOf[T]())
	if err != nil {
		return nil, err
	}
	v, err := elements[T](c, x)
	if err != nil {
		return nil, err
	}
	return v[0], nil
}
