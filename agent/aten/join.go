package aten

import (
	"math"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// cat joins tensors along a dimension that they have.
func cat(c *call) (*tensor.Tensor, error) {
	list := c.tensors(0)
	if len(list) == 0 {
		return nil, fault("torch.cat(): expected a non-empty list of Tensors")
	}
	var parts []*tensor.Tensor
	for i, t := range list {
		if t.Rank() == 0 {
			return nil, fault("zero-dimensional tensor (at position %d) cannot be concatenated", i)
		}
		if t.Rank() > 1 || t.Len() > 0 { // PyTorch passes over the others
			parts = append(parts, t)
		}
	}
	if len(parts) == 0 {
		parts = list[:1]
	}
	dim, err := c.dim(1, parts[0].Rank())
	if err != nil {
		return nil, err
	}
	return c.join(list, parts, dim)
}

// join copies parts behind each other, in the dtype of all of list.
func (c *call) join(list, parts []*tensor.Tensor, dim int) (*tensor.Tensor, error) {
	shape, err := joined(parts, dim)
	if err != nil {
		return nil, err
	}
	var o operands
	for _, t := range list {
		o.add(t)
	}
	d := o.dtype()
	out, err := c.zeros(d, shape...)
	if err != nil {
		return nil, err
	}
	at := 0
	for _, t := range parts {
		size := t.Shape()[dim]
		place, err := out.Narrow(dim, at, size)
		if err != nil {
			return nil, err
		}
		if t, err = c.cast(t, d); err != nil {
			return nil, err
		}
		if err := place.CopyFrom(t); err != nil {
			return nil, err
		}
		at += size
	}
	return out, nil
}

// joined is the shape of parts behind each other.
func joined(parts []*tensor.Tensor, dim int) ([]int, error) {
	shape := slices.Clone(parts[0].Shape())
	total := 0
	for i, t := range parts {
		if t.Rank() != len(shape) {
			return nil, fault("Tensors must have same number of dimensions: got %d and %d", len(shape), t.Rank())
		}
		for j, size := range t.Shape() {
			if j != dim && size != shape[j] {
				return nil, fault("Sizes of tensors must match except in dimension %d. Expected size %d but got size %d for tensor number %d in the list.", dim, shape[j], size, i)
			}
		}
		if size := t.Shape()[dim]; size > math.MaxInt-total {
			return nil, fault("the joined dimension has more elements than an int can count")
		}
		total += t.Shape()[dim]
	}
	shape[dim] = total
	return shape, nil
}

// stack joins tensors of one shape along a new dimension.
func stack(c *call) (*tensor.Tensor, error) {
	list := c.tensors(0)
	if len(list) == 0 {
		return nil, fault("stack expects a non-empty TensorList")
	}
	first := list[0]
	dim, err := wrapDim(c.int(1), first.Rank()+1)
	if err != nil {
		return nil, err
	}
	parts := make([]*tensor.Tensor, len(list))
	for i, t := range list {
		if !slices.Equal(t.Shape(), first.Shape()) {
			return nil, fault("stack expects each tensor to be equal size, but got %s at entry 0 and %s at entry %d", sizes(first.Shape()), sizes(t.Shape()), i)
		}
		if parts[i], err = t.Unsqueeze(dim); err != nil {
			return nil, err
		}
	}
	return c.join(list, parts, dim)
}

// aPiece is about what a view takes, in bytes.
const aPiece = 256

// split cuts a tensor into views of a size, the last of which may be smaller.
func split(c *call) (Value, error) {
	x, size := c.tensor(0), c.int(1)
	if x.Rank() == 0 {
		return nil, fault("split expects at least a 1-dimensional tensor")
	}
	dim, err := c.dim(2, x.Rank())
	if err != nil {
		return nil, err
	}
	total := x.Shape()[dim]
	switch {
	case size < 0:
		return nil, fault("split expects split_size be non-negative, but got split_size=%d", size)
	case size == 0 && total > 0:
		return nil, fault("split_size can only be 0 if dimension size is 0, but got dimension size of %d", total)
	case total == 0:
		return []*tensor.Tensor{x}, nil
	}
	if n, limit := (total-1)/size+1, c.limits.tensorBytes(); n > limit/aPiece {
		return nil, &LimitError{Bytes: min(n, math.MaxInt/aPiece) * aPiece, Limit: limit}
	}
	var out []*tensor.Tensor
	for at := 0; at < total; at += min(size, total-at) {
		piece, err := x.Narrow(dim, at, min(size, total-at))
		if err != nil {
			return nil, err
		}
		out = append(out, piece)
	}
	return out, nil
}
