package cudaipc

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// maxKernelRank is the number of dimensions that the kernel copy has parameters for: those of a
// tensor, and one for the halves of elements of 16 bytes.
const maxKernelRank = tensor.MaxRank + 1

// widest is the size in bytes of the largest elements that the kernel copy moves.
const widest = 8

// layout is that of a copy: a shape, and the strides of the destination and the source.
type layout struct {
	element int    // size in bytes
	dims    []axis // from the last dimension to the first
}

// axis is a dimension of a layout.
type axis struct {
	size     int
	dst, src int // strides in bytes
}

// newLayout returns the layout of a copy of elements of the given size in bytes. Strides are in
// elements. The layout has no dimension of size 1, and has joined dimensions that are evenly spaced in
// both tensors.
func newLayout(element int, shape, dst, src []int) *layout {
	l := &layout{element: min(element, widest)}
	if element > widest {
		l.add(axis{element / widest, widest, widest})
	}
	for i := len(shape) - 1; i >= 0; i-- {
		l.add(axis{shape[i], dst[i] * element, src[i] * element})
	}
	return l
}

// add adds a as the first dimension.
func (l *layout) add(a axis) {
	if a.size == 1 {
		return
	}
	if n := len(l.dims); n > 0 {
		if b := &l.dims[n-1]; a.dst == b.size*b.dst && a.src == b.size*b.src {
			b.size *= a.size
			return
		}
	}
	l.dims = append(l.dims, a)
}

// len returns the number of elements.
func (l *layout) len() int {
	n := 1
	for _, a := range l.dims {
		n *= a.size
	}
	return n
}

// contiguous reports whether the elements are adjacent, in the same order in both tensors.
func (l *layout) contiguous() bool {
	return len(l.dims) == 0 || slices.Equal(l.dims, []axis{{l.dims[0].size, l.element, l.element}})
}

// params returns the parameters of the kernel copy after the addresses.
func (l *layout) params() []uint64 {
	dims := l.dims
	if len(dims) == 0 {
		dims = []axis{{1, 0, 0}}
	}
	out := make([]uint64, 3+3*maxKernelRank)
	out[0], out[1], out[2] = uint64(l.len()), uint64(l.element), uint64(len(dims))
	for i, a := range dims {
		copy(out[3+3*i:], []uint64{uint64(a.size), uint64(a.dst), uint64(a.src)})
	}
	return out
}

// rowMajorStrides returns the strides of a contiguous tensor, in elements.
func rowMajorStrides(shape []int) []int {
	strides := make([]int, len(shape))
	n := 1
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = n
		n *= shape[i]
	}
	return strides
}

// evenStride returns the distance in elements between neighbours in row-major order, if that is the
// same for all.
func evenStride(shape, strides []int) (stride int, ok bool) {
	l := newLayout(1, shape, strides, strides)
	switch len(l.dims) {
	case 0:
		return 0, true
	case 1:
		return l.dims[0].dst, true
	}
	return 0, false
}
