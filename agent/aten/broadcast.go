package aten

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// broadcast is the shape that two shapes are stretched to: aligned at the end,
// dimensions of size 1 take the size of the other. It may be one of them. The error
// is a *SizeError.
func broadcast(a, b []int) ([]int, error) {
	if slices.Equal(a, b) {
		return a, nil
	}
	long, short := a, b
	if len(a) < len(b) {
		long, short = b, a
	}
	shape := slices.Clone(long)
	added := len(long) - len(short)
	for i, size := range short {
		switch at := added + i; {
		case shape[at] == 1:
			shape[at] = size
		case size != 1 && size != shape[at]:
			return nil, &SizeError{A: a[at-len(long)+len(a)], B: b[at-len(long)+len(b)], Dim: at}
		}
	}
	return shape, nil
}

// lane is one dimension of a loop over two contiguous operands, with the steps
// in each; a step of 0 repeats it.
type lane struct{ size, x, y int }

// lanes is the loop over shape, the innermost dimension first, merged where
// that can be. There is at least one.
func lanes(shape, xs, ys []int) []lane {
	out := make([]lane, 0, len(shape)+1)
	xStep, yStep := 1, 1
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] == 1 {
			continue
		}
		l := lane{size: shape[i]}
		l.x, xStep = stride(xs, i-len(shape)+len(xs), xStep)
		l.y, yStep = stride(ys, i-len(shape)+len(ys), yStep)
		if n := len(out) - 1; n >= 0 && out[n].x*out[n].size == l.x && out[n].y*out[n].size == l.y {
			out[n].size *= l.size
			continue
		}
		out = append(out, l)
	}
	if len(out) == 0 {
		out = append(out, lane{1, 1, 1})
	}
	return out
}

// stride is the step of an operand in dimension i of its own, and that of the
// dimension in front of it.
func stride(shape []int, i, step int) (own, next int) {
	if i < 0 || shape[i] == 1 {
		return 0, step
	}
	return step, step * shape[i]
}

// walk visits the places of two operands, in the order of the loop.
type walk struct {
	lanes []lane
	index [tensor.MaxRank]int
	x, y  int
}

// next goes to the next place; it is false behind the last one.
func (w *walk) next() bool {
	for i, l := range w.lanes {
		if w.index[i]++; w.index[i] < l.size {
			w.x += l.x
			w.y += l.y
			return true
		}
		w.index[i] = 0
		w.x -= (l.size - 1) * l.x
		w.y -= (l.size - 1) * l.y
	}
	return false
}

// chunk is how many copies are made at a time of an element that is repeated, so
// that functions of rows always get slices.
const chunk = 512

// row computes as many elements as out has. That it gets the operation, rather
// than being a function of it, saves an allocation for each call.
type row[T, R any] func(op opcode, out []R, x, y []T)

// zip computes all elements of out, which has that shape, from two tensors that
// are broadcast to it.
func zip[T, R any](op opcode, shape []int, out []R, x, y []T, xs, ys []int, f row[T, R]) {
	if len(out) == 0 {
		return
	}
	if slices.Equal(xs, ys) {
		f(op, out, x, y)
		return
	}
	all := lanes(shape, xs, ys)
	w := walk{lanes: all[1:]}
	inner := all[0]
	var xFill, yFill filler[T]
	for {
		step := inner.size
		if inner.x == 0 || inner.y == 0 {
			step = min(step, chunk)
		}
		for at := 0; at < inner.size; at += step {
			n := min(step, inner.size-at)
			f(op, out[at:at+n], xFill.take(x, w.x, inner.x, at, n), yFill.take(y, w.y, inner.y, at, n))
		}
		out = out[inner.size:]
		if !w.next() {
			return
		}
	}
}

// filler repeats an element.
type filler[T any] struct{ room []T }

// take is n elements of a row that begins at start, from the at-th on.
func (f *filler[T]) take(data []T, start, step, at, n int) []T {
	if step != 0 {
		return data[start+at:][:n]
	}
	if f.room == nil {
		f.room = make([]T, chunk)
	}
	room := f.room[:n]
	if at == 0 { // else it is filled, and the rest is not longer
		for i := range room {
			room[i] = data[start]
		}
	}
	return room
}

// combineTensors computes a tensor from two of the same dtype.
func combineTensors[T, R tensor.Element](c *call, op opcode, x, y *tensor.Tensor, f row[T, R]) (*tensor.Tensor, error) {
	shape, err := broadcast(x.Shape(), y.Shape())
	if err != nil {
		return nil, err
	}
	out, to, err := fresh[R](c, shape...)
	if err != nil {
		return nil, err
	}
	a, err := elements[T](c, x)
	if err != nil {
		return nil, err
	}
	b, err := elements[T](c, y)
	if err != nil {
		return nil, err
	}
	zip(op, shape, to, a, b, x.Shape(), y.Shape(), f)
	return out, nil
}
