package aten

import (
	"errors"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// transposed is the kernel of t: it swaps the dimensions of a matrix, and returns smaller tensors
// unchanged.
func transposed(c *call) (*tensor.Tensor, error) {
	x := c.tensor(0)
	switch x.Rank() {
	case 0, 1:
		return x, nil
	case 2:
		return x.Transpose(0, 1)
	}
	return nil, valueErrorf("t() expects a tensor with <= 2 dimensions, but self is %dD", x.Rank())
}

// transpose is a kernel that returns a view with two dimensions swapped.
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

// permute is a kernel that returns a view with the dimensions in the given order.
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

// view is a kernel that returns a view in another shape. It fails if strides cannot express it.
func view(c *call) (*tensor.Tensor, error) {
	shape, err := inferShape(c.ints(1), c.tensor(0).Len())
	if err != nil {
		return nil, err
	}
	return c.tensor(0).View(shape...)
}

// reshape is a kernel that returns a view of a tensor in another shape if strides can express it, and
// otherwise a view of a copy.
func reshape(c *call) (*tensor.Tensor, error) {
	shape, err := inferShape(c.ints(1), c.tensor(0).Len())
	if err != nil {
		return nil, err
	}
	x := c.tensor(0)
	v, err := x.View(shape...)
	if !errors.Is(err, tensor.ErrNotContiguous) {
		return v, err
	}
	if x, err = c.clone(x); err != nil {
		return nil, err
	}
	return x.View(shape...)
}

// inferShape returns a copy of shape in which a -1 is replaced by the size that makes n elements. The
// error is a *ValueError if there are several -1, or no size gives n elements.
func inferShape(shape []int, n int) ([]int, error) {
	open := -1
	known := slices.Clone(shape)
	for i, size := range shape {
		switch {
		case size == -1 && open >= 0:
			return nil, valueErrorf("only one dimension can be inferred")
		case size == -1:
			open, known[i] = i, 1
		case size < 0:
			return nil, valueErrorf("invalid shape dimension %d", size)
		}
	}
	remaining, err := tensor.NumElements(known)
	if err != nil {
		return nil, err
	}
	switch {
	case open >= 0 && remaining == 0:
		return nil, valueErrorf("cannot reshape tensor of %d elements into shape %s because the unspecified dimension size -1 can be any value and is ambiguous", n, sizes(shape))
	case open >= 0 && n%remaining == 0:
		known[open] = n / remaining
	case open >= 0 || remaining != n:
		return nil, valueErrorf("shape '%s' is invalid for input of size %d", sizes(shape), n)
	}
	return known, nil
}

// expand is a kernel that returns a view in which dimensions of size 1 are repeated; -1 keeps a size.
func expand(c *call) (*tensor.Tensor, error) {
	x, shape := c.tensor(0), c.ints(1)
	for i, size := range shape {
		if old := i - len(shape) + x.Rank(); size == -1 && old >= 0 {
			shape[i] = x.Shape()[old]
		}
	}
	if err := c.checkSize(x.DType(), shape); err != nil {
		return nil, err
	}
	return x.Expand(shape...)
}

// unsqueeze is a kernel that returns a view with a new dimension of size 1.
func unsqueeze(c *call) (*tensor.Tensor, error) {
	x := c.tensor(0)
	dim, err := wrapDim(c.int(1), x.Rank()+1)
	if err != nil {
		return nil, err
	}
	return x.Unsqueeze(dim)
}

// squeeze is a kernel that returns a view without the dimensions of size 1.
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

// squeezeDim is a kernel that returns a view without a dimension if that has size 1.
func squeezeDim(c *call) (*tensor.Tensor, error) {
	x := c.tensor(0)
	dim, err := c.dim(1, x.Rank())
	if err != nil || x.Rank() == 0 || x.Shape()[dim] != 1 {
		return x, err
	}
	return x.Select(dim, 0)
}

// selectIndex is a kernel that returns the view of one index of a dimension.
func selectIndex(c *call) (*tensor.Tensor, error) {
	x := c.tensor(0)
	if x.Rank() == 0 {
		return nil, valueErrorf("select() cannot be applied to a 0-dim tensor.")
	}
	dim, err := c.dim(1, x.Rank())
	if err != nil {
		return nil, err
	}
	index, size := c.int(2), x.Shape()[dim]
	if index < -size || index >= size {
		return nil, valueErrorf("select(): index %d out of range for tensor of size %s at dimension %d", index, sizes(x.Shape()), dim)
	}
	if index < 0 {
		index += size
	}
	return x.Select(dim, index)
}

// narrow is a kernel that returns the view of a range of a dimension.
func narrow(c *call) (*tensor.Tensor, error) {
	x := c.tensor(0)
	if x.Rank() == 0 {
		return nil, valueErrorf("narrow() cannot be applied to a 0-dim tensor.")
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

// clone is a kernel that copies a dense or sparse tensor. It copies the indices and values of a sparse
// tensor too, because the caller may release their memory.
func clone(c *call) (Value, error) {
	if s, ok := c.args[0].(*tensor.Sparse); ok {
		return value(c.sparse(s.Indices(), s.Values(), s.Shape()))
	}
	return value(c.clone(c.tensor(0)))
}

// contiguous is a kernel that returns a contiguous tensor: the argument itself or a copy.
func contiguous(c *call) (*tensor.Tensor, error) { return c.contiguous(c.tensor(0)) }

// toDType is a kernel that casts a tensor. A tensor that already has the dtype is returned itself, or
// copied if the argument copy is true.
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

// item is a kernel that returns the element of a tensor that has one element, as a bool, int64 or
// float64. The error is a *ValueError for any other number of elements or a complex number.
func item(c *call) (Value, error) {
	x := c.tensor(0)
	if x.Len() != 1 {
		return nil, valueErrorf("a Tensor with %d elements cannot be converted to Scalar", x.Len())
	}
	d := x.DType()
	switch {
	case isComplex(d):
		return nil, valueErrorf("a complex number cannot be converted to a Scalar value")
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

// first returns the first element of x, cast to T.
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
