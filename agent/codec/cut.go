package codec

import (
	"cmp"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// aligned is the multiple of bytes at which a part begins within its storage, so
// that views of any dtype begin at an element of theirs.
const aligned = 16

// cut decides which pieces of storages travel, once all views are known. The
// views of one storage stay together unless less than half of what lies between
// the first and the last is used: then those that share no memory part.
func (e *Encoder) cut() error {
	e.order = e.order[:0]
	for i := range e.pieces {
		e.order = append(e.order, i)
	}
	if len(e.order) > 1 {
		slices.SortFunc(e.order, func(a, b int) int {
			p, q := &e.pieces[a], &e.pieces[b]
			return cmp.Or(cmp.Compare(p.storage, q.storage), cmp.Compare(p.lo, q.lo), cmp.Compare(a, b))
		})
	}
	for rest := e.order; len(rest) > 0; {
		n := e.sameStorage(rest)
		if err := e.cutStorage(rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// sameStorage counts the views at the front that are of one storage. One without
// elements needs nothing of it and is for itself.
func (e *Encoder) sameStorage(order []int) int {
	n, first := 1, &e.pieces[order[0]]
	for n < len(order) && first.lo < first.hi && e.pieces[order[n]].storage == first.storage {
		n++
	}
	return n
}

// cutStorage makes the parts for the views of one storage.
func (e *Encoder) cutStorage(order []int) error {
	lo, hi, used := e.span(order)
	if used >= (hi-lo)/2 {
		return e.addPart(order, lo, hi)
	}
	for len(order) > 0 {
		n, end := 1, e.pieces[order[0]].hi
		for n < len(order) && e.pieces[order[n]].lo < end {
			end = max(end, e.pieces[order[n]].hi)
			n++
		}
		if err := e.addPart(order[:n], e.pieces[order[0]].lo, end); err != nil {
			return err
		}
		order = order[n:]
	}
	return nil
}

// span is the bytes from the first to behind the last, and how many of them lie
// within a view.
func (e *Encoder) span(order []int) (lo, hi, used int) {
	lo = e.pieces[order[0]].lo
	hi = lo
	for _, i := range order {
		p := &e.pieces[i]
		used += max(0, p.hi-max(p.lo, hi))
		hi = max(hi, p.hi)
	}
	return lo, hi, used
}

// addPart lets the bytes from lo to hi of a storage travel, for some views.
func (e *Encoder) addPart(order []int, lo, hi int) error {
	first := &e.pieces[order[0]]
	if len(order) == 1 && e.sparseView(first) {
		if err := first.gather(); err != nil {
			return err
		}
		lo, hi = 0, first.hi
	}
	from := lo &^ (aligned - 1)
	for _, i := range order {
		e.pieces[i].part, e.pieces[i].from = len(e.parts), from
	}
	e.parts = append(e.parts, pipe.Tensor{Buffer: first.buffer.Slice(from, hi-from)})
	e.owners = append(e.owners, first.tensor.Storage())
	return nil
}

// minSpread is the memory from which on it is worth while to send less of it than a
// view is spread over.
const minSpread = 8 << 10

// sparseView reports whether the elements of a view make up less than half of
// the memory that they are spread over, and can be collected here and now.
func (e *Encoder) sparseView(p *piece) bool {
	return p.hi-p.lo >= minSpread && p.tensor.ByteSize() < (p.hi-p.lo)/2 && p.tensor.ByteSize() > 0 &&
		!repeats(p.tensor.Shape(), p.tensor.Strides()) && p.buffer.IsHost() && p.buffer.Stream() == nil
}

// repeats reports whether a view uses elements more than once, as Expand makes
// it; what it is worth is more than its bytes.
func repeats(shape, strides []int) bool {
	for i, stride := range strides {
		if stride == 0 && shape[i] > 1 {
			return true
		}
	}
	return false
}

// gather copies the elements to memory of their own, without gaps.
func (p *piece) gather() (err error) {
	if p.tensor, err = p.tensor.Clone(); err != nil {
		return err
	}
	p.buffer, err = p.tensor.Storage().Buffer()
	p.lo, p.hi = 0, p.tensor.ByteSize()
	return err
}
