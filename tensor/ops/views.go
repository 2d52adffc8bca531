package ops

import (
	"context"
	"errors"
	"runtime"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// T returns a view of the matrix x with its dimensions exchanged. A tensor of rank 0 or 1 is
// returned itself. For a higher rank the error is a *ValueError.
func (e *Engine) T(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	switch x.Rank() {
	case 0, 1:
		return x, nil
	case 2:
		return x.Transpose(0, 1)
	}
	return nil, valueErrorf("t() expects a tensor with <= 2 dimensions, but self is %dD", x.Rank())
}

// Transpose returns a view of x with the dimensions a and b exchanged; a negative number counts from
// the last dimension. A tensor of rank 0 is returned itself. If a dimension does not exist, the error
// is a *ValueError.
func (e *Engine) Transpose(_ context.Context, x *tensor.Tensor, a, b int) (*tensor.Tensor, error) {
	a, err := wrapDim(a, x.Rank())
	if err != nil {
		return nil, err
	}
	if b, err = wrapDim(b, x.Rank()); err != nil {
		return nil, err
	}
	if x.Rank() == 0 {
		return x, nil
	}
	return x.Transpose(a, b)
}

// Permute returns a view of x with its dimensions in the order of dims, in which a negative number
// counts from the last dimension. The error is a *ValueError for a dimension that does not exist, or
// a *tensor.ShapeError unless dims has each dimension once.
func (e *Engine) Permute(_ context.Context, x *tensor.Tensor, dims ...int) (*tensor.Tensor, error) {
	dims = slices.Clone(dims)
	for i := range dims {
		var err error
		if dims[i], err = wrapDim(dims[i], x.Rank()); err != nil {
			return nil, err
		}
	}
	return x.Permute(dims...)
}

// View returns a view of x in the given shape, in which one size may be -1: the one with which the
// shape has as many elements as x. The error is a *ValueError if the shape does not fit x, that of
// tensor.NumElements, or tensor.ErrNotContiguous if no strides can express the view.
func (e *Engine) View(_ context.Context, x *tensor.Tensor, shape ...int) (*tensor.Tensor, error) {
	shape, err := inferShape(shape, x.Len())
	if err != nil {
		return nil, err
	}
	return x.View(shape...)
}

// Reshape returns x in the given shape, in which one size may be -1, as in View: a view of x if
// strides can express it, and otherwise a view of a contiguous copy. The errors are those of View
// and Clone.
func (e *Engine) Reshape(ctx context.Context, x *tensor.Tensor, shape ...int) (*tensor.Tensor, error) {
	shape, err := inferShape(shape, x.Len())
	if err != nil {
		return nil, err
	}
	v, err := x.View(shape...)
	if !errors.Is(err, tensor.ErrNotContiguous) {
		return v, err
	}
	if x, err = e.Clone(ctx, x); err != nil {
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
		return nil, valueErrorf("cannot reshape tensor of %d elements into shape %s because the unspecified dimension size -1 can be any value and is ambiguous",
			n, sizes(shape))
	case open >= 0 && n%remaining == 0:
		known[open] = n / remaining
	case open >= 0 || remaining != n:
		return nil, valueErrorf("shape '%s' is invalid for input of size %d", sizes(shape), n)
	}
	return known, nil
}

// Expand returns a view of x in the given shape, in which dimensions of size 1 are repeated and new
// dimensions come first. A size of -1 keeps the size of that dimension. The error is a *LimitError
// if a copy of the view would exceed the limit, since operators may copy the view, or an error of
// package tensor.
func (e *Engine) Expand(_ context.Context, x *tensor.Tensor, shape ...int) (*tensor.Tensor, error) {
	shape = slices.Clone(shape)
	for i, size := range shape {
		if old := i - len(shape) + x.Rank(); size == -1 && old >= 0 {
			shape[i] = x.Shape()[old]
		}
	}
	if err := e.checkSize(x.DType(), shape); err != nil {
		return nil, err
	}
	return x.Expand(shape...)
}

// Unsqueeze returns a view of x with a new dimension of size 1 at position dim; a negative one counts
// from the end of the new shape. The error is a *ValueError for an invalid position, or a
// *tensor.ShapeError if x has the maximum rank.
func (e *Engine) Unsqueeze(_ context.Context, x *tensor.Tensor, dim int) (*tensor.Tensor, error) {
	dim, err := wrapDim(dim, x.Rank()+1)
	if err != nil {
		return nil, err
	}
	return x.Unsqueeze(dim)
}

// Squeeze returns a view of x without those of the given dimensions that have size 1. Without dims it
// is without all dimensions of size 1. If there is nothing to remove, x itself is returned. If a
// dimension does not exist, the error is a *ValueError.
func (e *Engine) Squeeze(_ context.Context, x *tensor.Tensor, dims ...int) (*tensor.Tensor, error) {
	remove := make([]bool, x.Rank())
	for i := range remove {
		remove[i] = len(dims) == 0
	}
	for _, dim := range dims {
		dim, err := wrapDim(dim, x.Rank())
		if err != nil {
			return nil, err
		}
		if x.Rank() > 0 {
			remove[dim] = true
		}
	}
	for dim := x.Rank() - 1; dim >= 0; dim-- {
		if !remove[dim] || x.Shape()[dim] != 1 {
			continue
		}
		var err error
		if x, err = x.Select(dim, 0); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// Select returns a view, without dimension dim, of the elements of x at the given index of that
// dimension. Negative numbers count from the end. The error is a *ValueError if the dimension or the
// index does not exist.
func (e *Engine) Select(_ context.Context, x *tensor.Tensor, dim, index int) (*tensor.Tensor, error) {
	if x.Rank() == 0 {
		return nil, valueErrorf("select() cannot be applied to a 0-dim tensor.")
	}
	dim, err := wrapDim(dim, x.Rank())
	if err != nil {
		return nil, err
	}
	size := x.Shape()[dim]
	if index < -size || index >= size {
		return nil, valueErrorf("select(): index %d out of range for tensor of size %s at dimension %d",
			index, sizes(x.Shape()), dim)
	}
	if index < 0 {
		index += size
	}
	return x.Select(dim, index)
}

// Narrow returns a view of the elements from start to start+length-1 of dimension dim of x. A
// negative dim or start counts from the end. The error is a *ValueError if the dimension does not
// exist, or a *tensor.IndexError if the elements do not.
func (e *Engine) Narrow(_ context.Context, x *tensor.Tensor, dim, start, length int) (*tensor.Tensor, error) {
	if x.Rank() == 0 {
		return nil, valueErrorf("narrow() cannot be applied to a 0-dim tensor.")
	}
	dim, err := wrapDim(dim, x.Rank())
	if err != nil {
		return nil, err
	}
	if size := x.Shape()[dim]; start < 0 && start >= -size {
		start += size
	}
	return x.Narrow(dim, start, length)
}

// Clone returns a contiguous copy of x, which may need more memory than x if x is an expanded view.
// The error is a *DeviceError, a *LimitError or an error of package tensor.
func (e *Engine) Clone(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	k, err := e.kernelsOf(x, nil)
	if err != nil {
		return nil, err
	}
	if k != nil {
		return e.deviceClone(ctx, k, x)
	}
	return e.clone(x)
}

// Contiguous returns x itself if it is contiguous, and otherwise a contiguous copy, with the errors
// of Clone.
func (e *Engine) Contiguous(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	if x.IsContiguous() {
		return x, nil
	}
	return e.Clone(ctx, x)
}

// Item returns the element of x, which must have exactly one. The error is a *ValueError if it has
// another number of elements or is complex, and otherwise an error of package tensor.
func (e *Engine) Item(_ context.Context, x *tensor.Tensor) (Number, error) {
	if x.Len() != 1 {
		return Number{}, valueErrorf("a Tensor with %d elements cannot be converted to Scalar", x.Len())
	}
	switch d := x.DType(); {
	case isComplex(d):
		return Number{}, valueErrorf("a complex number cannot be converted to a Scalar value")
	case d == tensor.Bool:
		v, err := firstElement[bool](e, x)
		return Bool(v), err
	case isInt(d):
		v, err := firstElement[int64](e, x)
		return Int(v), err
	}
	v, err := firstElement[float64](e, x)
	return Float(v), err
}

// firstElement returns the first element of x, which must not be empty, cast to the dtype of T. The
// errors are those of Cast.
func firstElement[T tensor.Element](e *Engine, x *tensor.Tensor) (value T, err error) {
	x, err = e.cast(x, tensor.DTypeOf[T]())
	if err != nil {
		return value, err
	}
	data, err := elements[T](e, x)
	if err != nil {
		return value, err
	}
	value = data[0]
	runtime.KeepAlive(x)
	return value, nil
}
