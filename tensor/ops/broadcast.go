package ops

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// broadcast returns the shape to which the shapes a and b are broadcast: they are aligned at their
// last dimensions, a missing dimension counts as size 1, and size 1 takes the size in the other
// shape. The result may be a or b itself and must not be modified. If two sizes differ and neither
// is 1, the error is a *SizeError.
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

// loopDim is one dimension of a loop over two contiguous operands x and y: its size, and the step
// in elements of each operand. A step of 0 repeats an element.
type loopDim struct{ size, x, y int }

// loopDims returns the dimensions, innermost first, of a nested loop over the elements of a tensor
// of the given shape, in row-major order. xs and ys are the shapes of the two contiguous operands,
// which are broadcast to shape. Dimensions of size 1 are left out, and adjacent dimensions are
// merged where both operands allow it. The result has at least one dimension.
func loopDims(shape, xs, ys []int) []loopDim {
	out := make([]loopDim, 0, len(shape)+1)
	xStep, yStep := 1, 1
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] == 1 {
			continue
		}
		l := loopDim{size: shape[i]}
		l.x, xStep = stride(xs, i-len(shape)+len(xs), xStep)
		l.y, yStep = stride(ys, i-len(shape)+len(ys), yStep)
		if n := len(out) - 1; n >= 0 && out[n].x*out[n].size == l.x && out[n].y*out[n].size == l.y {
			out[n].size *= l.size
			continue
		}
		out = append(out, l)
	}
	if len(out) == 0 {
		out = append(out, loopDim{1, 1, 1})
	}
	return out
}

// stride returns, as current, the distance in elements between neighbours in dimension i of a
// contiguous operand of that shape. current is 0 if the dimension has size 1, or if i is negative:
// then the operand does not have the dimension. step is the number of elements in the dimensions
// after i, and next is that number for the call with i-1.
func stride(shape []int, i, step int) (current, next int) {
	if i < 0 || shape[i] == 1 {
		return 0, step
	}
	return step, step * shape[i]
}

// walk visits the positions x and y in two operands, in the order of the loop loopDims.
type walk struct {
	loopDims []loopDim
	index    [tensor.MaxRank]int
	x, y     int
}

// next moves w.x and w.y to the next position of the loop and returns true. After the last position
// it moves back to the first and returns false.
func (w *walk) next() bool {
	for i, l := range w.loopDims {
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
