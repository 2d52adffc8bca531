package ops

import (
	"context"
	"math"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Cat returns a new tensor with the concatenation of xs along dimension dim; a negative one counts
// from the end. All must have the same shape, except in dim, and are cast to the dtype to which they
// are promoted; on devices, which do not cast, they must have it. As in PyTorch, vectors without elements
// count only for the dtype. The error is a
// *ValueError for an empty list, a tensor of rank 0, shapes that do not match or a dimension that
// does not exist, a *DeviceMismatchError, a *LimitError, or an error of package tensor.
func (e *Engine) Cat(ctx context.Context, xs []*tensor.Tensor, dim int) (*tensor.Tensor, error) {
	if len(xs) == 0 {
		return nil, valueErrorf("torch.cat(): expected a non-empty list of Tensors")
	}
	var parts []*tensor.Tensor
	for i, t := range xs {
		if t.Rank() == 0 {
			return nil, valueErrorf("zero-dimensional tensor (at position %d) cannot be concatenated", i)
		}
		if t.Rank() > 1 || t.Len() > 0 { // PyTorch ignores empty vectors
			parts = append(parts, t)
		}
	}
	if len(parts) == 0 {
		parts = xs[:1]
	}
	dim, err := wrapDim(dim, parts[0].Rank())
	if err != nil {
		return nil, err
	}
	return e.concat(ctx, xs, parts, dim)
}

// concat returns a new tensor with the concatenation of parts, at least one tensor, along dimension
// dim. Its dtype is the one to which the tensors of list are promoted, to which the parts are cast.
// list has the parts, or tensors of the same dtypes, and may have more tensors. The error is a
// *ValueError if the shapes do not match, a *DeviceMismatchError, a *LimitError, or an error of package
// tensor.
func (e *Engine) concat(ctx context.Context, list, parts []*tensor.Tensor, dim int) (*tensor.Tensor, error) {
	shape, err := concatShape(parts, dim)
	if err != nil {
		return nil, err
	}
	var o operands
	for _, t := range list {
		o.add(t)
	}
	d := o.dtype()
	k, err := e.kernelsOfAll(parts)
	if err != nil {
		return nil, err
	}
	if k != nil {
		return e.deviceConcat(ctx, k, parts, dim, d, shape)
	}
	out, err := e.empty(d, shape...)
	if err != nil {
		return nil, err
	}
	at := 0
	for _, t := range parts {
		size := t.Shape()[dim]
		target, err := out.Narrow(dim, at, size)
		if err != nil {
			return nil, err
		}
		if t, err = e.cast(t, d); err != nil {
			return nil, err
		}
		if err := target.CopyFrom(t); err != nil {
			return nil, err
		}
		at += size
	}
	return out, nil
}

// kernelsOfAll is kernelsOf for a list of tensors, which is not empty.
func (e *Engine) kernelsOfAll(xs []*tensor.Tensor) (k Kernels, err error) {
	for _, t := range xs {
		if k, err = e.kernelsOf(xs[0], t); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// deviceConcat is concat for tensors on the device of k, into a new tensor of dtype d and the given shape.
// Parts with elements must have this dtype.
func (e *Engine) deviceConcat(ctx context.Context, k Kernels, parts []*tensor.Tensor, dim int, d tensor.DType,
	shape []int) (*tensor.Tensor, error) {
	on := parts[0].Device()
	parts = slices.DeleteFunc(slices.Clone(parts), func(t *tensor.Tensor) bool { return t.Len() == 0 })
	if err := checkDeviceDType(d, parts...); err != nil {
		return nil, err
	}
	if err := e.checkSize(d, shape); err != nil {
		return nil, err
	}
	out, err := k.Alloc(ctx, on, d, shape...)
	if err != nil {
		return nil, err
	}
	at := 0
	for _, t := range parts {
		size := t.Shape()[dim]
		target, err := out.Narrow(dim, at, size)
		if err != nil {
			return nil, err
		}
		if err := k.Copy(ctx, target, t); err != nil {
			return nil, err
		}
		at += size
	}
	return out, nil
}

// concatShape returns the shape, a new slice, of the concatenation of parts, at least one tensor,
// along dimension dim. The error is a *ValueError if the ranks differ, if the sizes differ in
// another dimension than dim, or if the sum of the sizes in dim overflows.
func concatShape(parts []*tensor.Tensor, dim int) ([]int, error) {
	shape := slices.Clone(parts[0].Shape())
	total := 0
	for i, t := range parts {
		if t.Rank() != len(shape) {
			return nil, valueErrorf("Tensors must have same number of dimensions: got %d and %d", len(shape), t.Rank())
		}
		for j, size := range t.Shape() {
			if j != dim && size != shape[j] {
				return nil, valueErrorf("Sizes of tensors must match except in dimension %d. Expected size %d but got size %d for tensor number %d in the list.",
					dim, shape[j], size, i)
			}
		}
		if size := t.Shape()[dim]; size > math.MaxInt-total {
			return nil, valueErrorf("the size of the concatenated dimension overflows")
		}
		total += t.Shape()[dim]
	}
	shape[dim] = total
	return shape, nil
}

// Stack returns a new tensor with the concatenation of xs, which must have one shape, along a new
// dimension at position dim; a negative one counts from the end of the new shape. The error is a
// *ValueError for an empty list, different shapes or an invalid position, a *LimitError, or an error
// of package tensor.
func (e *Engine) Stack(ctx context.Context, xs []*tensor.Tensor, dim int) (*tensor.Tensor, error) {
	if len(xs) == 0 {
		return nil, valueErrorf("stack expects a non-empty TensorList")
	}
	first := xs[0]
	dim, err := wrapDim(dim, first.Rank()+1)
	if err != nil {
		return nil, err
	}
	parts := make([]*tensor.Tensor, len(xs))
	for i, t := range xs {
		if !slices.Equal(t.Shape(), first.Shape()) {
			return nil, valueErrorf("stack expects each tensor to be equal size, but got %s at entry 0 and %s at entry %d",
				sizes(first.Shape()), sizes(t.Shape()), i)
		}
		if parts[i], err = t.Unsqueeze(dim); err != nil {
			return nil, err
		}
	}
	return e.concat(ctx, xs, parts, dim)
}

// viewBytes is the approximate memory of a view.
const viewBytes = 256

// Split divides x along dimension dim into views of the given size, which share the memory of x; the
// last one may be smaller. An x of size 0 in that dimension is the only element itself. A negative
// dim counts from the end. The error is a *ValueError for a tensor of rank 0 or an invalid size or
// dimension, or a *LimitError for too many views.
func (e *Engine) Split(_ context.Context, x *tensor.Tensor, size, dim int) ([]*tensor.Tensor, error) {
	if x.Rank() == 0 {
		return nil, valueErrorf("split expects at least a 1-dimensional tensor")
	}
	dim, err := wrapDim(dim, x.Rank())
	if err != nil {
		return nil, err
	}
	total := x.Shape()[dim]
	switch {
	case size < 0:
		return nil, valueErrorf("split expects split_size be non-negative, but got split_size=%d", size)
	case size == 0 && total > 0:
		return nil, valueErrorf("split_size can only be 0 if dimension size is 0, but got dimension size of %d",
			total)
	case total == 0:
		return []*tensor.Tensor{x}, nil
	}
	if n, limit := (total-1)/size+1, e.limit(); n > limit/viewBytes {
		return nil, &LimitError{Bytes: min(n, math.MaxInt/viewBytes) * viewBytes, Limit: limit}
	}
	var out []*tensor.Tensor
	for at := 0; at < total; at += min(size, total-at) {
		part, err := x.Narrow(dim, at, min(size, total-at))
		if err != nil {
			return nil, err
		}
		out = append(out, part)
	}
	return out, nil
}
