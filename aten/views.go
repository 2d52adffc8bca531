package aten

import (
	"errors"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// transposed is the kernel of aten::t: it returns a view of argument 0, a matrix, with its
// dimensions swapped. A tensor of rank 0 or 1 is returned itself. For a higher rank the error is a
// *ValueError.
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

// transpose is the kernel of aten::transpose: it returns a view of argument 0 with dimensions
// arguments 1 and 2 swapped. A tensor of rank 0 is returned itself. If a dimension does not exist,
// the error is a *ValueError.
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

// permute is the kernel of aten::permute: it returns a view of argument 0 with its dimensions in
// the order of argument 1, a list. The error is a *ValueError for a dimension that does not exist,
// or a *tensor.ShapeError unless the list has each dimension once.
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

// view is the kernel of aten::view: it returns a view of argument 0 in the shape argument 1, in
// which one size may be -1. The error is that of inferShape or of tensor.Tensor.View, which is
// tensor.ErrNotContiguous if no strides can express the view.
func view(c *call) (*tensor.Tensor, error) {
	shape, err := inferShape(c.ints(1), c.tensor(0).Len())
	if err != nil {
		return nil, err
	}
	return c.tensor(0).View(shape...)
}

// reshape is the kernel of aten::reshape: it returns argument 0 in the shape argument 1, in which
// one size may be -1. The result is a view of the argument if strides can express it, and otherwise
// a view of a contiguous copy. The error is that of inferShape, of call.clone or of
// tensor.Tensor.View.
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

// inferShape returns a copy of shape in which -1, if there is one, is replaced by the size with
// which the shape has n elements. The error is a *ValueError if there are several -1, if a size is
// less than -1, if the shape cannot have n elements, or if it could have n with any size for -1; it
// is that of tensor.NumElements if the number of elements overflows.
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

// expand is the kernel of aten::expand: it returns a view of argument 0 in the shape argument 1, in
// which dimensions of size 1 are repeated and new dimensions come first. A size of -1 keeps the
// size of that dimension. The error is a *LimitError if a copy of the view would exceed the limit
// of the call, since kernels may copy the view, or an error of package tensor.
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

// unsqueeze is the kernel of aten::unsqueeze: it returns a view of argument 0 with a new dimension
// of size 1 at position argument 1. The error is a *ValueError for an invalid position, or a
// *tensor.ShapeError if the tensor has the maximum rank.
func unsqueeze(c *call) (*tensor.Tensor, error) {
	x := c.tensor(0)
	dim, err := wrapDim(c.int(1), x.Rank()+1)
	if err != nil {
		return nil, err
	}
	return x.Unsqueeze(dim)
}

// squeeze is the kernel of aten::squeeze: it returns a view of argument 0 without its dimensions of
// size 1, or the argument itself if it has none.
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

// squeezeDim is the kernel of aten::squeeze.dim: it returns a view of argument 0 without dimension
// argument 1 if that has size 1, and otherwise the argument itself. If the dimension does not
// exist, the error is a *ValueError.
func squeezeDim(c *call) (*tensor.Tensor, error) {
	x := c.tensor(0)
	dim, err := c.dim(1, x.Rank())
	if err != nil || x.Rank() == 0 || x.Shape()[dim] != 1 {
		return x, err
	}
	return x.Select(dim, 0)
}

// selectIndex is the kernel of aten::select: it returns a view of argument 0, without dimension
// argument 1, of the elements at index argument 2 of that dimension. A negative index counts from
// the end. The error is a *ValueError if the dimension or the index does not exist.
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

// narrow is the kernel of aten::narrow: it returns a view of argument 0 with a range of dimension
// argument 1. Argument 2 is the index of the first element of the range, counted from the end if it
// is negative, and argument 3 the number of elements. The error is a *ValueError if the dimension
// does not exist, or a *tensor.IndexError if the elements do not.
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

// clone is the kernel of aten::clone: it returns a copy of argument 0, a dense or sparse tensor, on
// the Go heap. The copy of a sparse tensor has copies of its indices and values, so it shares no
// memory with the argument. The error is that of call.clone or call.sparse.
func clone(c *call) (Value, error) {
	if s, ok := c.args[0].(*tensor.Sparse); ok {
		return value(c.sparse(s.Indices(), s.Values(), s.Shape()))
	}
	return value(c.clone(c.tensor(0)))
}

// contiguous is the kernel of aten::contiguous: it returns argument 0 itself if that is contiguous,
// and otherwise a contiguous copy. The errors are those of call.clone.
func contiguous(c *call) (*tensor.Tensor, error) { return c.contiguous(c.tensor(0)) }

// toDType is the kernel of aten::to.dtype: it returns argument 0 cast to the dtype in argument 1.
// If the tensor has that dtype already, the result is the tensor itself, or a copy if argument 3 is
// true. The error is that of call.dtype, cast or clone.
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

// item is the kernel of aten::item: it returns the element of argument 0, a tensor with one
// element, as a bool, an int64 or a float64. The error is a *ValueError if the number of elements
// is not one or the element is complex; otherwise it is a *LimitError or an error of package
// tensor.
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

// first returns the first element of x, a tensor that is not empty, converted to T. The error is a
// *LimitError or an error of package tensor.
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
