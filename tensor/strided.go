package tensor

import (
	"cmp"
	"slices"
	"unsafe"
)

// lane is one dimension of a copy, strides in elements.
type lane struct{ size, dst, src int }

// lanes is the dimensions of a copy, in the order of the loops over them.
type lanes struct {
	dims [MaxRank]lane
	n    int
}

// copyStrided copies the elements of src to dst, which has the same dtype and
// shape. to and from are the bytes of their storages and do not intersect.
func copyStrided(dst, src *Tensor, to, from []byte) {
	if dst.Len() == 0 {
		return
	}
	var l lanes
	l.describe(dst, src)
	to, from = dst.window(to), src.window(from)
	switch dst.dtype.Size() {
	case 1:
		copyLanes[[1]byte](&l, to, from)
	case 2:
		copyLanes[[2]byte](&l, to, from)
	case 4:
		copyLanes[[4]byte](&l, to, from)
	case 8:
		copyLanes[[8]byte](&l, to, from)
	default:
		copyLanes[[16]byte](&l, to, from)
	}
}

// describe merges dimensions that are one in both tensors and orders them so
// that dst is written front to back.
func (l *lanes) describe(dst, src *Tensor) {
	for i, size := range dst.shape {
		if size != 1 {
			l.dims[l.n] = lane{size, dst.strides[i], src.strides[i]}
			l.n++
		}
	}
	slices.SortStableFunc(l.dims[:l.n], func(a, b lane) int { return cmp.Compare(b.dst, a.dst) })
	l.merge()
}

// merge joins each dimension with the next where one step of it is the whole
// of the next.
func (l *lanes) merge() {
	n := 0
	for _, d := range l.dims[:l.n] {
		if n > 0 {
			last := &l.dims[n-1]
			if last.dst == d.size*d.dst && last.src == d.size*d.src {
				*last = lane{last.size * d.size, d.dst, d.src}
				continue
			}
		}
		l.dims[n] = d
		n++
	}
	l.n = n
}

// inner takes the last dimension out; without one it is a single element.
func (l *lanes) inner() lane {
	if l.n == 0 {
		return lane{size: 1, dst: 1, src: 1}
	}
	l.n--
	return l.dims[l.n]
}

// copyLanes loops over all dimensions. Arrays of bytes stand for elements
// because they need no alignment, yet move as one word.
func copyLanes[T [1]byte | [2]byte | [4]byte | [8]byte | [16]byte](l *lanes, to, from []byte) {
	dst, src := elements[T](to), elements[T](from)
	row := l.inner()
	move := copyPanel[T]
	column := lane{size: 1}
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

// step moves the places in dst and src on to the next index; d is negative
// behind the last one.
func (l *lanes) step(index *[MaxRank]int, d, s int) (int, int) {
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

// copyRun copies elements that are neighbours in both tensors.
func copyRun[T any](dst, src []T, _, row lane) { copy(dst[:row.size], src[:row.size]) }

// tile is the edge of the squares in which two dimensions are copied, so that
// the cache lines of both tensors are used up before they are lost.
const tile = 16

// copyPanel copies two dimensions tile by tile.
func copyPanel[T any](dst, src []T, column, row lane) {
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

// elements views bytes as elements without alignment, leaving out the rest.
func elements[T any](p []byte) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(p))), len(p)/int(unsafe.Sizeof(zero)))
}
