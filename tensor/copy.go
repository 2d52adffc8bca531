package tensor

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"
)

// CopyFrom copies the elements of src, which has the same dtype and shape, and
// may share memory with t. Use Expand to copy a smaller tensor repeatedly. The
// error is a *DTypeError, a *ShapeError, ErrReadOnly, ErrOverlap where the
// elements of t share memory, ErrReleased or a *DeviceError.
func (t *Tensor) CopyFrom(src *Tensor) error {
	if t.dtype != src.dtype {
		return &DTypeError{Name: src.dtype.String(), Reason: "cannot be copied to " + t.dtype.String()}
	}
	if !slices.Equal(t.shape, src.shape) {
		return &ShapeError{Shape: src.shape, Reason: fmt.Sprintf("cannot be copied to %v", t.shape)}
	}
	to, err := t.writable()
	if err != nil {
		return err
	}
	if t.selfOverlaps() {
		return ErrOverlap
	}
	from, err := src.readable()
	if err != nil {
		return err
	}
	if intersect(t.window(to), src.window(from)) {
		if src, err = src.Clone(); err != nil {
			return err
		}
		from = src.storage.host
	}
	copyStrided(t, src, to, from)
	runtime.KeepAlive(t)
	runtime.KeepAlive(src)
	return nil
}

// Clone copies t to a contiguous tensor on the Go heap.
func (t *Tensor) Clone() (*Tensor, error) { return t.CloneIn(Heap{}) }

// CloneIn copies t to a contiguous tensor in memory from a.
func (t *Tensor) CloneIn(a Allocator) (*Tensor, error) {
	from, err := t.readable()
	if err != nil {
		return nil, err
	}
	c, err := Alloc(a, t.dtype, t.shape...)
	if err != nil {
		return nil, err
	}
	to, err := c.writable()
	if err != nil {
		return nil, err
	}
	copyStrided(c, t, to, from)
	runtime.KeepAlive(t)
	return c, nil
}

// Contiguous returns t if it is contiguous and else a copy on the Go heap.
func (t *Tensor) Contiguous() (*Tensor, error) {
	if t.IsContiguous() {
		return t, nil
	}
	return t.Clone()
}

// selfOverlaps reports whether two elements of t may share memory. It takes
// the dimensions from the smallest stride up: each step must reach beyond all
// that the dimensions below it span.
func (t *Tensor) selfOverlaps() bool {
	if t.Len() < 2 {
		return false
	}
	var room [MaxRank]axis
	axes := room[:0]
	for i, size := range t.shape {
		if size > 1 {
			axes = append(axes, axis{size, t.strides[i]})
		}
	}
	slices.SortFunc(axes, func(a, b axis) int { return a.stride - b.stride })
	span := 0
	for _, a := range axes {
		if a.stride <= span {
			return true
		}
		span += (a.size - 1) * a.stride
	}
	return false
}

// window cuts the bytes of the storage from the first element of t to behind
// the last one.
func (t *Tensor) window(p []byte) []byte {
	if t.Len() == 0 {
		return nil
	}
	last := t.offset
	for i, dim := range t.shape {
		last += (dim - 1) * t.strides[i]
	}
	size := t.dtype.Size()
	return p[t.offset*size : (last+1)*size]
}

// intersect reports whether two slices share memory.
func intersect(a, b []byte) bool {
	first, second := uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return first < second+uintptr(len(b)) && second < first+uintptr(len(a))
}
