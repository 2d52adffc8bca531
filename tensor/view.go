package tensor

import (
	"fmt"
	"slices"
)

// axis describes one dimension of a view to be.
type axis struct{ size, stride int }

// axes lists the dimensions of t with room for one more.
func (t *Tensor) axes() []axis {
	out := make([]axis, len(t.shape), len(t.shape)+1)
	for i := range out {
		out[i] = axis{t.shape[i], t.strides[i]}
	}
	return out
}

// view makes a tensor of other axes over the same storage; they describe
// elements of t only.
func (t *Tensor) view(axes []axis, offset int) *Tensor {
	v := blank(t.storage, t.dtype, len(axes))
	v.offset = offset
	for i, a := range axes {
		v.shape[i], v.strides[i] = a.size, a.stride
	}
	return v
}

// checkDim fails unless t has that dimension.
func (t *Tensor) checkDim(dim int) error {
	if dim < 0 || dim >= len(t.shape) {
		return &IndexError{What: "dimension", Index: dim, Len: len(t.shape)}
	}
	return nil
}

// Slice views the elements start, start+step, ... below stop of one dimension.
// The error is an *IndexError unless 0 <= start <= stop <= size and step > 0.
func (t *Tensor) Slice(dim, start, stop, step int) (*Tensor, error) {
	if err := t.checkDim(dim); err != nil {
		return nil, err
	}
	axes := t.axes()
	a := &axes[dim]
	switch {
	case stop < 0 || stop > a.size:
		return nil, &IndexError{What: "slice end", Index: stop, Len: a.size + 1}
	case start < 0 || start > stop:
		return nil, &IndexError{What: "slice start", Index: start, Len: stop + 1}
	case step <= 0:
		return nil, &IndexError{What: "slice step", Index: step, Len: a.size}
	}
	offset := t.offset
	if start < stop && t.Len() > 0 { // without elements it stays within the storage
		offset += start * a.stride
	}
	a.size = (stop - start) / step
	if (stop-start)%step != 0 {
		a.size++
	}
	if a.size > 1 && t.Len() > 0 { // else the stride is never used and could overflow
		a.stride *= step
	}
	return t.view(axes, offset), nil
}

// Narrow views length elements of one dimension, from start on.
func (t *Tensor) Narrow(dim, start, length int) (*Tensor, error) {
	if err := t.checkDim(dim); err != nil {
		return nil, err
	}
	size := t.shape[dim]
	if start < 0 || start > size {
		return nil, &IndexError{What: "slice start", Index: start, Len: size + 1}
	}
	if length < 0 || length > size-start {
		return nil, &IndexError{What: "slice length", Index: length, Len: size - start + 1}
	}
	return t.Slice(dim, start, start+length, 1)
}

// Select views the elements with that index in one dimension, which the view
// lacks.
func (t *Tensor) Select(dim, index int) (*Tensor, error) {
	if err := t.checkDim(dim); err != nil {
		return nil, err
	}
	if index < 0 || index >= t.shape[dim] {
		return nil, &IndexError{What: "element", Index: index, Len: t.shape[dim]}
	}
	offset := t.offset
	if t.Len() > 0 {
		offset += index * t.strides[dim]
	}
	return t.view(slices.Delete(t.axes(), dim, dim+1), offset), nil
}

// Unsqueeze views t with one more dimension, of size 1, in front of dimension
// dim; the rank of t puts it last.
func (t *Tensor) Unsqueeze(dim int) (*Tensor, error) {
	if dim < 0 || dim > len(t.shape) {
		return nil, &IndexError{What: "dimension", Index: dim, Len: len(t.shape) + 1}
	}
	if len(t.shape) == MaxRank {
		return nil, &ShapeError{Shape: t.shape, Reason: "has no room for another dimension"}
	}
	return t.view(slices.Insert(t.axes(), dim, axis{size: 1, stride: 1}), t.offset), nil
}

// Transpose views t with two dimensions exchanged.
func (t *Tensor) Transpose(a, b int) (*Tensor, error) {
	for _, dim := range []int{a, b} {
		if err := t.checkDim(dim); err != nil {
			return nil, err
		}
	}
	axes := t.axes()
	axes[a], axes[b] = axes[b], axes[a]
	return t.view(axes, t.offset), nil
}

// Permute views t with its dimensions in another order: dimension i of the
// view is dimension dims[i] of t. The error is a *ShapeError unless dims names
// every dimension once.
func (t *Tensor) Permute(dims ...int) (*Tensor, error) {
	if len(dims) != len(t.shape) {
		return nil, &ShapeError{Shape: t.shape, Reason: fmt.Sprintf("cannot be permuted by %v", dims)}
	}
	var seen [MaxRank]bool
	axes := make([]axis, len(dims))
	for i, dim := range dims {
		if err := t.checkDim(dim); err != nil {
			return nil, err
		}
		if seen[dim] {
			return nil, &ShapeError{Shape: t.shape, Reason: fmt.Sprintf("cannot be permuted by %v", dims)}
		}
		seen[dim] = true
		axes[i] = axis{t.shape[dim], t.strides[dim]}
	}
	return t.view(axes, t.offset), nil
}

// Expand views t repeated along dimensions of size 1, and along new dimensions
// in front, until it has that shape. The elements share memory: the view
// cannot be written to. The error is a *ShapeError if another dimension would
// have to change.
func (t *Tensor) Expand(shape ...int) (*Tensor, error) {
	if _, err := ByteSize(t.dtype, shape); err != nil {
		return nil, err
	}
	added := len(shape) - len(t.shape)
	axes := make([]axis, len(shape))
	for i, size := range shape {
		axes[i] = axis{size: size}
		if i < added {
			continue
		}
		switch old := i - added; {
		case t.shape[old] == size:
			axes[i].stride = t.strides[old]
		case t.shape[old] != 1:
			return nil, &ShapeError{Shape: shape, Reason: fmt.Sprintf("is no expansion of %v", t.shape)}
		}
	}
	if added < 0 {
		return nil, &ShapeError{Shape: shape, Reason: fmt.Sprintf("is no expansion of %v", t.shape)}
	}
	return t.view(axes, t.offset), nil
}
