package codec

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// extent describes which bytes of its storage a tensor uses, and in which part of the message they
// are sent.
type extent struct {
	tensor  *tensor.Tensor
	buffer  device.Buffer // of the whole storage
	storage int           // number of the storage
	lo, hi  int           // byte range from the first element to the end of the last
	part    int           // number of the part with this range
	from    int           // start of the part in bytes of the storage
}

// extent returns the range of bytes that t uses in its storage. buf is the memory of the whole
// storage. The fields part and from are not set yet. If e does not know the storage yet, extent
// gives it a number and keeps it.
func (e *Encoder) extent(t *tensor.Tensor, buf device.Buffer) extent {
	s, ok := e.storages.find(t.Storage())
	if !ok {
		s = e.storages.add(t.Storage())
	}
	p := extent{tensor: t, buffer: buf, storage: s}
	if t.Len() == 0 {
		return p
	}
	last := t.Offset()
	for i, dim := range t.Shape() {
		last += (dim - 1) * t.Strides()[i]
	}
	size := t.DType().Size()
	p.lo, p.hi = t.Offset()*size, (last+1)*size
	return p
}

var sparseType = reflect.TypeFor[*tensor.Sparse]()

func encodeSparse(e *Encoder, from unsafe.Pointer) error {
	p := *(*unsafe.Pointer)(from)
	return e.object(sparseType, p, func(e *Encoder, p unsafe.Pointer) error {
		s := (*tensor.Sparse)(p)
		if err := e.WriteTensor(s.Indices()); err != nil {
			return err
		}
		if err := e.WriteTensor(s.Values()); err != nil {
			return err
		}
		e.WriteUint(uint64(len(s.Shape())))
		for _, dim := range s.Shape() {
			e.WriteUint(uint64(dim))
		}
		return nil
	})
}

func (p *plan) decodeSparse(d *Decoder, s *schema, to unsafe.Pointer) error {
	return d.object(p, s, to, func(d *Decoder, _ *schema, to unsafe.Pointer) error {
		v, err := d.sparse()
		*(**tensor.Sparse)(to) = v
		return err
	})
}

// sparse decodes a sparse tensor, whose indices and values are views of storages given to Supply.
// It reads indices in host memory, which must have been received. The error matches ErrCorrupt, ErrLimit
// or ErrStorage, or wraps tensor.ErrReleased.
func (d *Decoder) sparse() (*tensor.Sparse, error) {
	indices, err := d.ReadTensor()
	if err != nil {
		return nil, err
	}
	values, err := d.ReadTensor()
	if err != nil {
		return nil, err
	}
	rank, err := d.count(1)
	if err != nil {
		return nil, err
	}
	if indices == nil || values == nil || rank > tensor.MaxRank {
		return nil, corruptf("a sparse tensor of %d dimensions, of %v and %v", rank, indices, values)
	}
	shape := d.shape[:rank]
	for i := range shape {
		if shape[i], err = d.size(); err != nil {
			return nil, err
		}
	}
	// Memory of the result, and of the check of the indices, one number for each. Indices whose own
	// memory is at least that are not charged.
	memory := 256
	if indices.Rank() == 2 && indices.Shape()[1] > indices.Len() {
		memory = plus(memory, times(8, indices.Shape()[1]))
	}
	if err := d.charge(memory); err != nil {
		return nil, err
	}
	v, err := tensor.NewSparse(indices, values, shape...)
	if err != nil {
		return nil, tensorFault(err)
	}
	return v, nil
}

// tensorFault returns an *Error that wraps err, an error of package tensor about a received tensor.
// It also matches ErrCorrupt, unless err is a *tensor.DeviceError or tensor.ErrReleased, which
// concern the memory of the receiver.
func tensorFault(err error) error {
	if _, elsewhere := err.(*tensor.DeviceError); elsewhere || err == tensor.ErrReleased {
		return &Error{Err: err}
	}
	return &Error{Err: fmt.Errorf("%w: %w", ErrCorrupt, err)}
}

// planParts divides the storages of the encoded tensors into the parts that are sent. It appends
// the parts to e.parts and e.partStorages, and sets the part of each extent. It must be called
// once, after all tensors have been encoded. The views of a storage share one part if they use at
// least half of the bytes between the first and the last; otherwise views that do not overlap get
// separate parts. The error is one of package tensor.
func (e *Encoder) planParts() error {
	e.order = e.order[:0]
	for i := range e.extents {
		e.order = append(e.order, i)
	}
	if len(e.order) > 1 {
		slices.SortFunc(e.order, func(a, b int) int {
			p, q := &e.extents[a], &e.extents[b]
			return cmp.Or(cmp.Compare(p.storage, q.storage), cmp.Compare(p.lo, q.lo), cmp.Compare(a, b))
		})
	}
	for remaining := e.order; len(remaining) > 0; {
		// The views at the front with the same storage. A view without elements is handled on its
		// own, because it uses no bytes.
		n, first := 1, &e.extents[remaining[0]]
		for n < len(remaining) && first.lo < first.hi && e.extents[remaining[n]].storage == first.storage {
			n++
		}
		if err := e.planStorageParts(remaining[:n]); err != nil {
			return err
		}
		remaining = remaining[n:]
	}
	return nil
}

// planStorageParts appends the parts for the views of one storage to e.parts, and sets the part of
// each view's extent. order has the indices of these extents in e.extents, sorted by the first
// byte; it is not empty. The error is one of package tensor.
func (e *Encoder) planStorageParts(order []int) error {
	lo, used := e.extents[order[0]].lo, 0 // used is the bytes that at least one view uses
	hi := lo
	for _, i := range order {
		p := &e.extents[i]
		used += max(0, p.hi-max(p.lo, hi))
		hi = max(hi, p.hi)
	}
	if used >= (hi-lo)/2 {
		return e.addPart(order, lo, hi)
	}
	for len(order) > 0 {
		n, end := 1, e.extents[order[0]].hi
		for n < len(order) && e.extents[order[n]].lo < end {
			end = max(end, e.extents[order[n]].hi)
			n++
		}
		if err := e.addPart(order[:n], e.extents[order[0]].lo, end); err != nil {
			return err
		}
		order = order[n:]
	}
	return nil
}

// addPart appends one part to e.parts, which has the bytes from lo to hi of a storage, and sets it
// as the part of the extents e.extents[i] for each i in order. If the views have several dtypes, the
// part begins at a multiple of the largest element size, at or before lo, so that each view begins at
// a whole element. For a single view that shouldGather selects, the part is a contiguous copy of the
// view instead. The error is one of package tensor.
func (e *Encoder) addPart(order []int, lo, hi int) error {
	first := &e.extents[order[0]]
	if len(order) == 1 && e.shouldGather(first) {
		if err := first.gather(); err != nil {
			return err
		}
		lo, hi = 0, first.hi
	}
	align := 1
	for _, i := range order {
		align = max(align, e.extents[i].tensor.DType().Size()) // a power of 2
	}
	from := lo &^ (align - 1)
	for _, i := range order {
		e.extents[i].part, e.extents[i].from = len(e.parts), from
	}
	e.parts = append(e.parts, pipe.Tensor{Buffer: first.buffer.Slice(from, hi-from)})
	e.partStorages = append(e.partStorages, first.tensor.Storage())
	return nil
}

// minGatherStorage is the smallest storage, in bytes, of which a view is gathered, as in PyTorch. Views
// of smaller ones keep their strides.
const minGatherStorage = 8 << 10

// shouldGather reports whether to send a contiguous copy of the view p.tensor instead of the range
// of bytes that it spans. It returns true if there are other bytes in the range, the storage has at
// least 8 KiB, of which the elements take less than half, the memory is on the host and needs no wait
// for a stream, and no dimension repeats its elements, as Expand makes it.
func (e *Encoder) shouldGather(p *extent) bool {
	n := p.tensor.ByteSize()
	if n >= p.hi-p.lo || p.buffer.Len() < minGatherStorage || n >= p.buffer.Len()/2 || !p.buffer.IsHost() || p.buffer.Stream() != nil {
		return false
	}
	for i, stride := range p.tensor.Strides() {
		if stride == 0 && p.tensor.Shape()[i] > 1 {
			return false
		}
	}
	return true
}

// gather replaces p.tensor by a contiguous copy on the Go heap, and the buffer and range of p by
// those of the copy. p.storage does not change. The error is one of package tensor; p must then not
// be used.
func (p *extent) gather() (err error) {
	if p.tensor, err = p.tensor.Clone(); err != nil {
		return err
	}
	p.buffer, err = p.tensor.Storage().Buffer()
	p.lo, p.hi = 0, p.tensor.ByteSize()
	return err
}
