package tensor

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// MaxRank is the maximum number of dimensions of a tensor.
const MaxRank = 64

// mul returns the product of a and b, which must not be negative. ok is false if the product does
// not fit into an int.
func mul(a, b int) (product int, ok bool) {
	high, low := bits.Mul64(uint64(a), uint64(b))
	return int(low), high == 0 && low <= math.MaxInt
}

// NumElements returns the number of elements of a tensor of the given shape: the product of its
// dimensions, and 1 for a scalar, which has no dimensions. The error is a *ShapeError if a
// dimension is negative, if there are more than MaxRank dimensions, or if the product of the
// dimensions that are not 0 does not fit into an int. The error keeps shape, and nothing else does.
func NumElements(shape []int) (int, error) {
	if len(shape) > MaxRank {
		return 0, &ShapeError{Shape: shape[:MaxRank], Reason: fmt.Sprintf("begins a shape of %d dimensions; the limit is %d", len(shape), MaxRank)}
	}
	n, empty := 1, false
	for _, dim := range shape {
		if dim < 0 {
			return 0, &ShapeError{Shape: shape, Reason: "has a negative dimension"}
		}
		if dim == 0 {
			empty = true
			continue
		}
		var ok bool
		if n, ok = mul(n, dim); !ok {
			return 0, &ShapeError{Shape: shape, Reason: "has more elements than an int can count"}
		}
	}
	if empty {
		return 0, nil
	}
	return n, nil
}

// ByteSize returns the number of bytes of a contiguous tensor of the given dtype and shape. The
// error is a *DTypeError if dtype is not valid, and a *ShapeError if shape is not valid, as in
// NumElements, or if the size does not fit into an int.
func ByteSize(dtype DType, shape []int) (int, error) {
	if !dtype.Valid() {
		return 0, &DTypeError{Name: dtype.String(), Reason: "is not an element type"}
	}
	n, err := NumElements(shape)
	if err != nil {
		return 0, err
	}
	size, ok := mul(n, dtype.Size())
	if !ok {
		return 0, &ShapeError{Shape: shape, Reason: "has more bytes of " + dtype.String() + " than an int can count"}
	}
	return size, nil
}

// rowMajor returns the strides, in elements, of a contiguous tensor of the given shape, which must be
// valid.
func rowMajor(shape []int) []int {
	strides := make([]int, len(shape))
	fillRowMajor(strides, shape)
	return strides
}

// fillRowMajor sets the elements of strides, which has the length of shape, to the strides in
// elements of a contiguous tensor of that shape.
func fillRowMajor(strides, shape []int) {
	step := 1
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = step
		step *= max(shape[i], 1)
	}
}

// checkStrided returns nil if shape, strides and offset describe a tensor whose elements are all
// among the first limit elements of its storage. strides, offset and limit are counted in elements.
// The error is an *IndexError if an element is outside or offset is not from 0 to limit, and a
// *ShapeError if shape is not valid or the strides are negative, too large or of the wrong number.
func checkStrided(shape, strides []int, offset, limit int) error {
	n, err := NumElements(shape)
	if err != nil {
		return err
	}
	if len(strides) != len(shape) {
		return &ShapeError{Shape: shape, Reason: fmt.Sprintf("comes with %d strides", len(strides))}
	}
	last := offset
	for i, dim := range shape {
		if strides[i] < 0 {
			return &ShapeError{Shape: shape, Reason: fmt.Sprintf("comes with the negative stride %d", strides[i])}
		}
		reach, ok := mul(max(dim-1, 0), strides[i])
		if n > 0 && (!ok || last > math.MaxInt-reach) {
			return &ShapeError{Shape: shape, Reason: fmt.Sprintf("with strides %v reaches beyond any memory", strides)}
		}
		last += reach
	}
	if n == 0 {
		last = offset - 1
	}
	if offset < 0 || last >= limit {
		return &IndexError{What: "storage", Index: last, Len: limit}
	}
	return nil
}

// View returns a tensor of the given shape with the elements of t in row-major order. It shares t's
// memory. The error is a *ShapeError if shape is not valid or has another number of elements than
// t, and ErrNotContiguous if no strides can express the view; Reshape copies in that case.
func (t *Tensor) View(shape ...int) (*Tensor, error) {
	n, err := NumElements(shape)
	if err != nil {
		return nil, err
	}
	if n != t.Len() {
		return nil, &ShapeError{Shape: shape, Reason: fmt.Sprintf("does not fit the %d elements of %v", t.Len(), t)}
	}
	axes, ok := t.restride(shape)
	if !ok {
		return nil, ErrNotContiguous
	}
	return t.view(axes, t.offset), nil
}

// Reshape returns a tensor of the given shape with the elements of t in row-major order. It shares
// t's memory if strides can express that, as View does, and otherwise has a copy on the Go heap.
// The error is a *ShapeError if shape is not valid or has another number of elements than t;
// otherwise it is that of Clone, for the copy.
func (t *Tensor) Reshape(shape ...int) (*Tensor, error) {
	v, err := t.View(shape...)
	if !errors.Is(err, ErrNotContiguous) {
		return v, err
	}
	c, err := t.Clone()
	if err != nil {
		return nil, err
	}
	return c.View(shape...)
}

// restride returns the size and stride of each dimension of a view of t in the given shape, which
// must have as many elements as t. ok is false if no strides can express the view. It merges the
// dimensions of t into runs of evenly spaced elements, and divides each run according to shape.
func (t *Tensor) restride(shape []int) (axes []axis, ok bool) {
	axes = make([]axis, len(shape))
	if t.Len() == 0 {
		for i, stride := range rowMajor(shape) {
			axes[i] = axis{shape[i], stride}
		}
		return axes, true
	}
	runs := t.runs()
	next, left, stride := len(runs)-1, 1, 1
	for i := len(shape) - 1; i >= 0; i-- {
		if left == 1 && shape[i] > 1 {
			left, stride = runs[next].size, runs[next].stride
			next--
		}
		if left%shape[i] != 0 {
			return nil, false
		}
		axes[i] = axis{shape[i], stride}
		left /= shape[i]
		stride *= shape[i]
	}
	return axes, true
}

// runs returns the sizes and strides of t's dimensions, outermost first, in a new slice. Dimensions
// of size 1 are left out. Two neighbouring dimensions are merged into one if their elements are
// evenly spaced in memory.
func (t *Tensor) runs() []axis {
	var runs []axis
	for i, size := range t.shape {
		if size == 1 {
			continue
		}
		a := axis{size, t.strides[i]}
		if last := len(runs) - 1; last >= 0 && runs[last].stride == a.size*a.stride {
			a.size *= runs[last].size
			runs[last] = a
			continue
		}
		runs = append(runs, a)
	}
	return runs
}
