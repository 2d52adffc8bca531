package codec

import (
	"math"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Part describes memory that is sent with a message, of one tensor or of several that share it: its
// size in bytes, and the sender's device.
type Part struct {
	Bytes  int
	Device device.Device // of the sender's memory
}

// appendTensors plans the parts and encodes the tables of parts and views. The error is one of package
// tensor.
func (e *Encoder) appendTensors() error {
	if err := e.planParts(); err != nil {
		return err
	}
	e.WriteUint(uint64(len(e.parts)))
	for i := range e.parts {
		e.WriteUint(uint64(e.parts[i].Buffer.Len()))
		e.device(e.parts[i].Buffer.Device())
	}
	e.WriteUint(uint64(len(e.extents)))
	for i := range e.extents {
		e.view(&e.extents[i])
	}
	return nil
}

// device encodes a device as its kind and index; cpu:0 is an empty kind without an index.
func (e *Encoder) device(d device.Device) {
	if d == device.CPU() {
		e.WriteString("")
		return
	}
	e.WriteString(d.Kind)
	e.WriteUint(uint64(d.Index))
}

// view encodes dtype, shape, part and offset of the tensor of p, and its strides if it is not
// contiguous. The part of p must have been set.
func (e *Encoder) view(p *extent) {
	t := p.tensor
	strided := !t.IsContiguous()
	e.buf = append(e.buf, byte(t.DType()))
	rank := uint64(t.Rank()) << 1
	if strided {
		rank |= 1
	}
	e.WriteUint(rank)
	e.WriteUint(uint64(p.part))
	e.WriteUint(uint64((p.lo - p.from) / t.DType().Size()))
	for _, dim := range t.Shape() {
		e.WriteUint(uint64(dim))
	}
	if strided {
		for _, stride := range t.Strides() {
			e.WriteUint(uint64(stride))
		}
	}
}

const (
	minPart = 2 // minimum size of a row of parts in bytes
	minView = 4 // and of a row of views
)

func (d *Decoder) readParts(c *cursor) error {
	n, err := c.count(minPart)
	if err != nil {
		return err
	}
	if err := d.charge(n * int(unsafe.Sizeof(Part{}))); err != nil {
		return err
	}
	for range n {
		p := Part{Device: device.CPU()}
		if p.Bytes, err = c.size(); err != nil {
			return err
		}
		kind, err := c.text()
		if err != nil {
			return err
		}
		if len(kind) > 0 {
			index, err := c.uvarint()
			if err != nil {
				return err
			}
			if index > math.MaxInt32 {
				return corruptf("device %q of index %d", kind, index)
			}
			if err := d.charge(len(kind)); err != nil {
				return err
			}
			p.Device = device.Device{Kind: string(kind), Index: int(index)}
		}
		d.parts = append(d.parts, p)
	}
	return nil
}

// viewEntry is a row of the table of views of a received message. Its tensor is nil until it is used for
// the first time.
type viewEntry struct {
	pos    int // position of its row in the table
	tensor *tensor.Tensor
}

// readViews checks the syntax of the table of views and records the position of each row; the values in
// it are checked when the tensor is created. The error matches ErrCorrupt or ErrLimit.
func (d *Decoder) readViews(c *cursor) error {
	n, err := c.count(minView)
	if err != nil {
		return err
	}
	if err := d.charge(n * int(unsafe.Sizeof(viewEntry{}))); err != nil {
		return err
	}
	for range n {
		d.views = append(d.views, viewEntry{pos: c.pos})
		if _, err := c.next(1); err != nil { // the dtype
			return err
		}
		numbers, err := c.uvarint()
		if err != nil {
			return err
		}
		if numbers>>1 > tensor.MaxRank {
			return corruptf("a tensor of %d dimensions", numbers>>1)
		}
		for range 2 + numbers>>1<<(numbers&1) {
			if _, err := c.uvarint(); err != nil {
				return err
			}
		}
	}
	d.viewData = c.data
	return nil
}

// Parts returns the memory that is sent with the message, in the order of the tensors of
// its pipe.Message. The slice is valid until Reset. The sizes are claims of the peer:
// compare them with the descriptor of the pipe message before allocating.
func (d *Decoder) Parts() []Part { return d.parts }

// Supply sets the memory of the parts: for each part a storage of exactly its size, on any device. The
// decoded tensors are views of these storages. The slice must not change until the values are decoded.
// The contents may still be in transit, except for sparse tensors. The error matches ErrStorage, and
// Supply may then be called again; or it is that of an earlier call.
func (d *Decoder) Supply(storages []*tensor.Storage) error {
	if d.err != nil {
		return d.err
	}
	if len(storages) != len(d.parts) {
		return errorf(ErrStorage, "%d storages for %d parts", len(storages), len(d.parts))
	}
	for i, s := range storages {
		if s == nil || s.Len() != d.parts[i].Bytes {
			return errorf(ErrStorage, "storage %d is not one of %d bytes", i, d.parts[i].Bytes)
		}
	}
	d.storages = storages
	return nil
}

// view returns tensor number n of the message. The first call creates it as a view of a supplied
// storage; later calls return the same tensor. The error matches ErrCorrupt, ErrLimit or ErrStorage.
func (d *Decoder) view(n uint64) (*tensor.Tensor, error) {
	if n >= uint64(len(d.views)) {
		return nil, corruptf("tensor %d of %d", n, len(d.views))
	}
	v := &d.views[n]
	if v.tensor != nil {
		return v.tensor, nil
	}
	if err := d.charge(int(unsafe.Sizeof(tensor.Tensor{}))); err != nil {
		return nil, err
	}
	t, err := d.makeView(cursor{data: d.viewData, pos: v.pos})
	v.tensor = t
	return t, err
}

// makeView creates the tensor that the row of the table of views at c describes. The error matches
// ErrCorrupt, also if the tensor is not within its part, ErrStorage or ErrLimit.
func (d *Decoder) makeView(c cursor) (*tensor.Tensor, error) {
	dtype, _ := c.byte()
	form, _ := c.uvarint() // readViews checked these
	part, _ := c.uvarint()
	offset, err := c.size()
	if err != nil {
		return nil, err
	}
	if part >= uint64(len(d.parts)) {
		return nil, corruptf("part %d of %d", part, len(d.parts))
	}
	if d.storages == nil {
		return nil, errorf(ErrStorage, "Supply was not called")
	}
	rank := int(form >> 1)
	numbers := d.shape[:rank<<(form&1)]
	for i := range numbers {
		if numbers[i], err = c.size(); err != nil {
			return nil, err
		}
	}
	shape, strides := numbers[:rank], numbers[rank:]
	if form&1 == 0 {
		// If a stride overflows it is wrong, and tensor.Strided rejects the shape.
		strides = d.shape[rank : 2*rank]
		for i, step := rank-1, 1; i >= 0; i-- {
			strides[i] = step
			step = max(step*max(shape[i], 1), 1)
		}
	}
	t, err := tensor.Strided(d.storages[part], tensor.DType(dtype), shape, strides, offset)
	if err != nil {
		return nil, tensorFault(err)
	}
	// The bytes by which the tensor exceeds its memory.
	excess := max(0, t.ByteSize()-t.Storage().Len())
	if excess > d.expanded {
		return t, errorf(ErrLimit, "tensors exceed their memory by more than %d bytes", d.limits.ExpandedBytes)
	}
	d.expanded -= excess
	return t, nil
}
