package tensor

import (
	"errors"
	"fmt"
)

// View views the elements of t, in row-major order, in another shape. The
// error is a *ShapeError if the numbers of elements differ, or
// ErrNotContiguous if no strides can express the view; Reshape copies then.
func (t *Tensor) View(shape ...int) (*Tensor, error) {
	n, err := NumElements(shape)
	if err != nil {
		return nil, err
	}
	if n != t.Len() {
		return nil, &ShapeError{Shape: shape, Reason: fmt.Sprintf("does not fit the %d elements of %v", t.Len(), t)}
	}
	axes, ok := t.refold(shape)
	if !ok {
		return nil, ErrNotContiguous
	}
	return t.view(axes, t.offset), nil
}

// Reshape is View where that is possible and a view of a copy, on the Go heap,
// where it is not.
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

// refold finds strides for another shape of as many elements; ok is false if
// there are none. The dimensions of t are merged into runs, in which a step of
// one dimension is the whole of the next, and each run is cut anew.
func (t *Tensor) refold(shape []int) (axes []axis, ok bool) {
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

// runs merges the dimensions of t that are one in memory and drops those of
// size 1.
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
