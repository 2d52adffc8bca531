package tensor

import (
	"fmt"
	"slices"
)

// axis is one dimension of a view: its size, and its stride in elements.
type axis struct{ size, stride int }

// axes returns the size and stride of each dimension of t, in a new slice with capacity for one
// more.
func (t *Tensor) axes() []axis {
	out := make([]axis, len(t.shape), len(t.shape)+1)
	for i := range out {
		out[i] = axis{t.shape[i], t.strides[i]}
	}
	return out
}

// view returns a new tensor over the storage of t with the given dimensions and offset, all counted
// in elements. It copies axes. The values are not checked: they must describe only memory of
// elements of t.
func (t *Tensor) view(axes []axis, offset int) *Tensor {
	v := newTensor(t.storage, t.dtype, len(axes))
	v.offset = offset
	for i, a := range axes {
		v.shape[i], v.strides[i] = a.size, a.stride
	}
	return v
}

// checkDim returns nil if t has a dimension with the number dim, which counts from 0, and otherwise
// an *IndexError.
func (t *Tensor) checkDim(dim int) error {
	if dim < 0 || dim >= len(t.shape) {
		return &IndexError{What: "dimension", Index: dim, Len: len(t.shape)}
	}
	return nil
}

// Slice returns a view, which shares t's memory, of the elements start, start+step, ... below stop
// of dimension dim. The error is an *IndexError unless t has that dimension, 0 <= start <= stop <=
// its size, and step > 0.
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
	if a.size > 1 && t.Len() > 0 { // otherwise the stride is unused and could overflow
		a.stride *= step
	}
	return t.view(axes, offset), nil
}

// Narrow returns a view, which shares t's memory, of the elements from start to start+length-1 of
// dimension dim. The error is an *IndexError if t does not have that dimension or those elements.
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

// Select returns a view, which shares t's memory, of the elements of t at the given index of
// dimension dim. The view lacks that dimension. The error is an *IndexError if t does not have that
// dimension or index.
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

// Unsqueeze returns a view, which shares t's memory, with one more dimension of size 1 before
// dimension dim. If dim is the rank of t, the new dimension is the last. The error is an
// *IndexError for any other dim that t does not have, or a *ShapeError if t has MaxRank dimensions.
func (t *Tensor) Unsqueeze(dim int) (*Tensor, error) {
	if dim < 0 || dim > len(t.shape) {
		return nil, &IndexError{What: "dimension", Index: dim, Len: len(t.shape) + 1}
	}
	if len(t.shape) == MaxRank {
		return nil, &ShapeError{Shape: t.shape, Reason: "has no room for another dimension"}
	}
	return t.view(slices.Insert(t.axes(), dim, axis{size: 1, stride: 1}), t.offset), nil
}

// Transpose returns a view, which shares t's memory, with the dimensions a and b exchanged. The
// error is an *IndexError if t lacks one of them.
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

// Permute returns a view, which shares t's memory, with the dimensions in another order: dimension
// i of the view is dimension dims[i] of t. The error is a *ShapeError unless dims lists as many
// dimensions as t has, each once, or an *IndexError for a dimension that t does not have.
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

// Expand returns a view, which shares t's memory, in the given shape: it repeats dimensions of size
// 1 and adds dimensions in front. Repeated elements are the same memory: Set changes all of them,
// and operations that write the whole view, such as Fill and CopyFrom, fail with ErrOverlap. The
// error is a *ShapeError if shape is not valid, has fewer dimensions than t, or would change a
// dimension of another size than 1.
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
