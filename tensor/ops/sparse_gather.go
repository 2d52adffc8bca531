package ops

import (
	"runtime"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// valuesAt returns a new tensor of the shape of the values of s with the elements of x, which is
// broadcast to the shape of s, at the positions of s.
func (e *Engine) valuesAt(x *tensor.Tensor, s *tensor.Sparse) (*tensor.Tensor, error) {
	x, err := expandTo(x, s.Shape())
	if err != nil {
		return nil, err
	}
	at, err := e.offsets(s, x.Strides())
	if err != nil {
		return nil, err
	}
	sparse := s.Indices().Shape()[0]
	return e.gather(x, at, x.Shape()[sparse:], x.Strides()[sparse:])
}

// positions returns, for each value of s, its position in the sparse dimensions as one row-major
// index, in a new slice. The errors are those of offsets.
func (e *Engine) positions(s *tensor.Sparse) ([]int, error) {
	strides := make([]int, s.Indices().Shape()[0])
	step := 1
	for dim := len(strides) - 1; dim >= 0; dim-- {
		strides[dim] = step
		step *= s.Shape()[dim]
	}
	return e.offsets(s, strides)
}

// offsets returns, for each value of s, the distance of its position from the first one, given the
// strides of the sparse dimensions, in a new slice. The error is a *tensor.IndexError for an index
// outside the shape, which can be in memory that was modified after s was made, or another error of
// package tensor.
func (e *Engine) offsets(s *tensor.Sparse, strides []int) ([]int, error) {
	index, err := elements[int64](e, s.Indices())
	if err != nil {
		return nil, err
	}
	out := make([]int, s.Len())
	for dim := range s.Indices().Shape()[0] {
		size := s.Shape()[dim]
		for k, i := range index[dim*len(out):][:len(out)] {
			if i < 0 || i >= int64(size) {
				return nil, &tensor.IndexError{What: "sparse dimension", Index: int(i), Len: size}
			}
			out[k] += int(i) * strides[dim]
		}
	}
	runtime.KeepAlive(s)
	return out, nil
}

// gather returns a new tensor of the shape [len(at), shape...]: its k-th part has the elements of x
// that begin at[k] elements after the first one, with the given shape and strides.
func (e *Engine) gather(x *tensor.Tensor, at, shape, strides []int) (*tensor.Tensor, error) {
	out, err := e.empty(x.DType(), append([]int{len(at)}, shape...)...)
	if err != nil || out.Len() == 0 {
		return out, err
	}
	part, err := tensor.Strided(x.Storage(), x.DType(), shape, strides, x.Offset()+slices.Min(at))
	if err != nil {
		return nil, err
	}
	if !part.IsContiguous() {
		return out, gatherStrided(out, x, at, shape, strides)
	}
	from, err := x.Storage().Bytes()
	if err != nil {
		return nil, err
	}
	to, err := out.Storage().Bytes()
	if err != nil {
		return nil, err
	}
	item := x.DType().Size()
	from, to = from[x.Offset()*item:], to[out.Offset()*item:]
	size := part.ByteSize()
	for k, offset := range at {
		copy(to[k*size:][:size], from[offset*item:])
	}
	runtime.KeepAlive(x)
	runtime.KeepAlive(out)
	return out, nil
}

// gatherStrided sets the parts of out for gather, for any strides.
func gatherStrided(out, x *tensor.Tensor, at, shape, strides []int) error {
	for k, offset := range at {
		part, err := tensor.Strided(x.Storage(), x.DType(), shape, strides, x.Offset()+offset)
		if err != nil {
			return err
		}
		to, err := out.Select(0, k)
		if err != nil {
			return err
		}
		if err := to.CopyFrom(part); err != nil {
			return err
		}
	}
	return nil
}
