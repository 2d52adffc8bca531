package tensor

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"unsafe"
)

// CopyFrom copies the elements of src to t. Both tensors may share memory: if necessary CopyFrom
// first copies src to new memory. To repeat a smaller tensor, Expand it before. The error is a
// *DTypeError or *ShapeError unless both have the same dtype and shape, ErrReadOnly if t's storage
// is read-only, ErrOverlap if elements of t may share memory with each other, ErrReleased after
// Release, or a *DeviceError if the host cannot address the memory. After an error t is unchanged.
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
	from, err := src.storage.Bytes()
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

// Clone returns a contiguous copy of t in new memory on the Go heap. The error is ErrReleased after
// Release, a *DeviceError if the host cannot address the memory, or a *SizeError for an expanded
// tensor that is too large to copy.
func (t *Tensor) Clone() (*Tensor, error) { return t.CloneIn(Heap{}) }

// CloneIn returns a contiguous copy of t in memory that it allocates from a. The error is
// ErrReleased after Release of t, a *DeviceError if the host cannot address the memory of t or that
// of the copy, or the error of a.
func (t *Tensor) CloneIn(a Allocator) (*Tensor, error) {
	from, err := t.storage.Bytes()
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

// Contiguous returns t itself if it is contiguous, and otherwise a contiguous copy in new memory on
// the Go heap. Only the copy can fail, with one of the errors that Clone returns.
func (t *Tensor) Contiguous() (*Tensor, error) {
	if t.IsContiguous() {
		return t, nil
	}
	return t.Clone()
}

// selfOverlaps reports whether two elements of t may share memory. It never returns false if two
// do, but it may return true although none do. It examines the dimensions in the order of their
// strides: each stride must exceed the span of the dimensions with smaller strides.
func (t *Tensor) selfOverlaps() bool {
	if t.Len() < 2 {
		return false
	}
	var array [MaxRank]axis
	axes := array[:0]
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

// window returns the part of p from the first to the last element of t, without a copy. p holds the
// bytes of t's whole storage. The result is nil if t has no elements.
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

// intersect reports whether a and b have at least one byte of memory in common. Either may be nil,
// but not empty otherwise.
func intersect(a, b []byte) bool {
	first, second := uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return first < second+uintptr(len(b)) && second < first+uintptr(len(a))
}

// loop is one dimension of a copy: the number of elements, and the strides in elements of the
// destination and of the source.
type loop struct{ size, dst, src int }

// loopNest is the dimensions of a copy, outermost first: the first n of dims.
type loopNest struct {
	dims [MaxRank]loop
	n    int
}

// copyStrided copies the elements of src to dst, which must have the same dtype and shape. The
// slices to and from hold the bytes of the whole storages of dst and src. The bytes from the first
// to the last element of dst must not overlap those of src.
func copyStrided(dst, src *Tensor, to, from []byte) {
	if dst.Len() == 0 {
		return
	}
	var l loopNest
	l.describe(dst, src)
	to, from = dst.window(to), src.window(from)
	switch dst.dtype.Size() {
	case 1:
		copyNested[[1]byte](&l, to, from)
	case 2:
		copyNested[[2]byte](&l, to, from)
	case 4:
		copyNested[[4]byte](&l, to, from)
	case 8:
		copyNested[[8]byte](&l, to, from)
	default:
		copyNested[[16]byte](&l, to, from)
	}
}

// describe fills in l, which must be empty, with the dimensions of a copy from src to dst; both
// must have the same shape. It leaves out dimensions of size 1, orders the others so that dst is
// written sequentially, and merges dimensions that are contiguous in both tensors.
func (l *loopNest) describe(dst, src *Tensor) {
	for i, size := range dst.shape {
		if size != 1 {
			l.dims[l.n] = loop{size, dst.strides[i], src.strides[i]}
			l.n++
		}
	}
	slices.SortStableFunc(l.dims[:l.n], func(a, b loop) int { return cmp.Compare(b.dst, a.dst) })
	n := 0
	for _, d := range l.dims[:l.n] {
		if n > 0 {
			// One step of the outer dimension may span the whole of the inner one.
			last := &l.dims[n-1]
			if last.dst == d.size*d.dst && last.src == d.size*d.src {
				*last = loop{last.size * d.size, d.dst, d.src}
				continue
			}
		}
		l.dims[n] = d
		n++
	}
	l.n = n
}

// inner removes the innermost dimension from l and returns it. If l has no dimension left, inner
// returns one with a single element.
func (l *loopNest) inner() loop {
	if l.n == 0 {
		return loop{size: 1, dst: 1, src: 1}
	}
	l.n--
	return l.dims[l.n]
}

// copyNested copies all elements that l describes, and uses l up. The slice from begins at the
// first element of the source, and the slice to at the first element of the destination. T is a
// byte array of the size of an element; a value of such a type needs no alignment and is copied as
// one word.
func copyNested[T [1]byte | [2]byte | [4]byte | [8]byte | [16]byte](l *loopNest, to, from []byte) {
	dst, src := elements[T](to), elements[T](from)
	row := l.inner()
	move := copyPanel[T]
	column := loop{size: 1}
	if row.dst == 1 && row.src == 1 {
		move = copyRun[T]
	} else {
		column = l.inner()
	}
	var index [MaxRank]int
	d, s := 0, 0
	for {
		move(dst[d:], src[s:], column, row)
		if d, s = l.step(&index, d, s); d < 0 {
			return
		}
	}
}

// step advances index to the next index of l's dimensions, the last dimension first. d and s are
// the positions, in elements, in the destination and the source that belong to the old index; step
// returns those of the new one. After the last index it returns -1 twice.
func (l *loopNest) step(index *[MaxRank]int, d, s int) (int, int) {
	for i := l.n - 1; i >= 0; i-- {
		dim := l.dims[i]
		if index[i]++; index[i] < dim.size {
			return d + dim.dst, s + dim.src
		}
		index[i] = 0
		d -= (dim.size - 1) * dim.dst
		s -= (dim.size - 1) * dim.src
	}
	return -1, -1
}

// copyRun copies the first row.size elements of src to the beginning of dst. The elements must be
// adjacent in both. The third parameter is unused: copyRun has the signature of copyPanel.
func copyRun[T any](dst, src []T, _, row loop) { copy(dst[:row.size], src[:row.size]) }

// tile is the edge of the squares in which two dimensions are copied, so that the cache lines of both
// tensors are fully used before they are evicted.
const tile = 16

// copyPanel copies the elements of two nested dimensions from src to dst, which both begin at the
// first of these elements. column describes the outer dimension and row the inner one: the number
// of elements, and the distances between neighbours in dst and in src. copyPanel proceeds in square
// tiles, so that reads and writes both stay in the processor's cache.
func copyPanel[T any](dst, src []T, column, row loop) {
	for c := 0; c < column.size; c += tile {
		height := min(tile, column.size-c)
		for r := 0; r < row.size; r += tile {
			width := min(tile, row.size-r)
			for i := c; i < c+height; i++ {
				d, s := i*column.dst+r*row.dst, i*column.src+r*row.src
				for range width {
					dst[d] = src[s]
					d += row.dst
					s += row.src
				}
			}
		}
	}
}

// elements returns the memory of p as a slice of T, without a copy. An incomplete element at the
// end of p is left out. T must be a type that needs no alignment.
func elements[T any](p []byte) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(p))), len(p)/int(unsafe.Sizeof(zero)))
}
