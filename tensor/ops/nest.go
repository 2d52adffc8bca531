package ops

import (
	"errors"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// input is an operand of a kernel, with any strides. Without dimensions it is one number.
type input[T any] struct {
	data    []T            // from the first element of the tensor to the last one in memory
	shape   []int          // of the tensor
	strides []int          // of the tensor, in elements
	owner   *tensor.Tensor // the caller keeps it alive while it uses data; nil for a number
}

// inputOf returns t as an operand of a loop over the elements of a tensor of the given shape, to
// which t is broadcast: the memory of t itself if neighbours in the innermost dimension of the loop
// are adjacent or the same element, and otherwise a contiguous copy. T must be the Go type of the
// dtype of t. The errors are those of clone.
func inputOf[T tensor.Element](e *Engine, t *tensor.Tensor, shape []int) (input[T], error) {
	if step := innerStep(t, shape); step == 0 || step == 1 {
		data, err := span[T](t)
		if !errors.Is(err, tensor.ErrUnaligned) {
			return input[T]{data, t.Shape(), t.Strides(), t}, err
		}
	}
	t, err := e.clone(t)
	if err != nil {
		return input[T]{}, err
	}
	data, err := tensor.Data[T](t)
	return input[T]{data, t.Shape(), t.Strides(), t}, err
}

// innerStep returns the distance in elements between neighbours of t in the innermost dimension of
// a loop over a tensor of the given shape, to which t is broadcast. Dimensions of size 1 do not
// count. It is 0 if the loop repeats an element of t or has no dimension.
func innerStep(t *tensor.Tensor, shape []int) int {
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] != 1 {
			return stepOf(t.Shape(), t.Strides(), i-len(shape))
		}
	}
	return 0
}

// stepOf returns the distance in elements between neighbours in a dimension of a loop to whose
// shape a tensor of the given shape and strides is broadcast. fromEnd is the number of the
// dimension, counted from the end: -1 is the last one. It is 0 if the tensor is repeated.
func stepOf(shape, strides []int, fromEnd int) int {
	if i := len(shape) + fromEnd; i >= 0 && shape[i] != 1 {
		return strides[i]
	}
	return 0
}

// span returns the memory of t, which must be on the host, from its first element to the last one
// in memory. Between elements of t it may contain others. The caller must not modify it unless it
// has checked t.ReadOnly, and must keep t alive. The errors are those of tensor.Data.
func span[T tensor.Element](t *tensor.Tensor) ([]T, error) {
	if t.IsContiguous() {
		return tensor.Data[T](t)
	}
	n := 1
	for i, size := range t.Shape() {
		n += (size - 1) * t.Strides()[i]
	}
	all, err := tensor.Strided(t.Storage(), t.DType(), []int{n}, []int{1}, t.Offset())
	if err != nil {
		return nil, err
	}
	return tensor.Data[T](all)
}

// nestDim is one dimension of a nest: its size, and the step in elements of the result and of both
// operands. A step of 0 repeats an element.
type nestDim struct{ size, out, x, y int }

// nest is a nested loop over the elements of a result and of two operands. The caller runs the
// innermost dimension itself, at the positions out, x and y, and calls next for the others.
type nest struct {
	inner     nestDim
	few       [6]nestDim // the other dimensions, innermost first, if there are at most 6
	more      []nestDim  // the other dimensions, if there are more
	count     int        // of the other dimensions
	index     [tensor.MaxRank]int
	out, x, y int
}

// strided is the shape and the strides of one operand of a nest.
type strided struct{ shape, strides []int }

func (in *input[T]) strided() strided { return strided{in.shape, in.strides} }

// start sets up the loop over a result of the given shape with the given strides, in row-major
// order, and two operands, which are broadcast to shape. The result must have elements. Dimensions
// of size 1 are left out, and adjacent dimensions are merged where all three allow it.
func (w *nest) start(shape, out []int, x, y strided) {
	last := &w.inner // the dimension that was added last
	w.inner = nestDim{size: 1, out: 1, x: 1, y: 1}
	empty := true
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] == 1 {
			continue
		}
		fromEnd := i - len(shape)
		d := nestDim{shape[i], out[i], stepOf(x.shape, x.strides, fromEnd), stepOf(y.shape, y.strides, fromEnd)}
		switch {
		case empty:
			w.inner, empty = d, false
		case d.out == last.out*last.size && d.x == last.x*last.size && d.y == last.y*last.size:
			last.size *= d.size
		default:
			last = w.push(d)
		}
	}
}

// push adds d as the outermost dimension and returns its place.
func (w *nest) push(d nestDim) *nestDim {
	w.count++
	if w.count <= len(w.few) {
		w.few[w.count-1] = d
		return &w.few[w.count-1]
	}
	if w.more == nil {
		w.more = append(make([]nestDim, 0, tensor.MaxRank), w.few[:]...)
	}
	w.more = append(w.more, d)
	return &w.more[w.count-1]
}

// outer returns the dimensions other than the innermost one, innermost first.
func (w *nest) outer() []nestDim {
	if w.more != nil {
		return w.more
	}
	return w.few[:w.count]
}

// next moves w to the next position and returns true. After the last position it returns false.
func (w *nest) next() bool {
	for i, d := range w.outer() {
		if w.index[i]++; w.index[i] < d.size {
			w.out += d.out
			w.x += d.x
			w.y += d.y
			return true
		}
		w.index[i] = 0
		w.out -= (d.size - 1) * d.out
		w.x -= (d.size - 1) * d.x
		w.y -= (d.size - 1) * d.y
	}
	return false
}

// row computes the elements of out from those of x and y. xStep and yStep are 1, or 0 for an
// operand of which all elements are the first one.
type row[T, R any] func(op operation[T], out []R, x, y []T, xStep, yStep int)

// zip computes all elements of out, the memory of a tensor of the given shape and strides, by f,
// which it calls for one row after the other. The steps of x and y within a row must be 0 or 1, and
// that of out 1.
func zip[T, R any](op operation[T], shape, strides []int, out []R, x, y *input[T], f row[T, R]) {
	if slices.Contains(shape, 0) {
		return
	}
	var w nest
	w.start(shape, strides, x.strided(), y.strided())
	for {
		n := w.inner.size
		f(op, out[w.out:][:n], x.data[w.x:], y.data[w.y:], w.inner.x, w.inner.y)
		if !w.next() {
			return
		}
	}
}
