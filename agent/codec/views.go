package codec

import (
	"math"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Part describes memory that travels with a message: that of one tensor, or of
// several that share it.
type Part struct {
	Bytes  int
	Device device.Device // where the sender has it
}

// appendTensors writes the tables of parts and views.
func (e *Encoder) appendTensors() error {
	if err := e.cut(); err != nil {
		return err
	}
	e.Uint(uint64(len(e.parts)))
	for i := range e.parts {
		e.Uint(uint64(e.parts[i].Buffer.Len()))
		e.device(e.parts[i].Buffer.Device())
	}
	e.Uint(uint64(len(e.pieces)))
	for i := range e.pieces {
		e.view(&e.pieces[i])
	}
	return nil
}

// device writes a kind and an index; no kind is cpu:0.
func (e *Encoder) device(d device.Device) {
	if d == device.CPU() {
		e.String("")
		return
	}
	e.String(d.Kind)
	e.Uint(uint64(d.Index))
}

// view writes how a tensor lies in its part. Strides are written where they are
// not those of a contiguous tensor.
func (e *Encoder) view(p *piece) {
	t := p.tensor
	strided := !t.IsContiguous()
	e.buf = append(e.buf, byte(t.DType()))
	rank := uint64(t.Rank()) << 1
	if strided {
		rank |= 1
	}
	e.Uint(rank)
	e.Uint(uint64(p.part))
	e.Uint(uint64((p.lo - p.from) / t.DType().Size()))
	for _, dim := range t.Shape() {
		e.Uint(uint64(dim))
	}
	if strided {
		for _, stride := range t.Strides() {
			e.Uint(uint64(stride))
		}
	}
}

const (
	minPart = 2 // the fewest bytes of a row of parts
	minView = 4 // and of one of views
)

func (d *Decoder) readParts(c *cursor) error {
	n, err := c.count(minPart)
	if err != nil {
		return err
	}
	if err := d.spend(n * int(unsafe.Sizeof(Part{}))); err != nil {
		return err
	}
	for range n {
		p := Part{Device: device.CPU()}
		if p.Bytes, err = c.size(); err != nil {
			return err
		}
		if p.Device, err = d.readDevice(c); err != nil {
			return err
		}
		d.parts = append(d.parts, p)
	}
	return nil
}

func (d *Decoder) readDevice(c *cursor) (device.Device, error) {
	kind, err := c.text()
	if err != nil || len(kind) == 0 {
		return device.CPU(), err
	}
	index, err := c.uvarint()
	if err == nil && index > math.MaxInt32 {
		err = corrupt("device %q of index %d", kind, index)
	}
	if err == nil {
		err = d.spend(len(kind))
	}
	return device.Device{Kind: string(kind), Index: int(index)}, err
}

// viewEntry is a tensor that came, made when it is asked for.
type viewEntry struct {
	pos    int // of its row
	tensor *tensor.Tensor
}

// readViews finds the rows of the table.
func (d *Decoder) readViews(c *cursor) error {
	n, err := c.count(minView)
	if err != nil {
		return err
	}
	if err := d.spend(n * int(unsafe.Sizeof(viewEntry{}))); err != nil {
		return err
	}
	for range n {
		d.views = append(d.views, viewEntry{pos: c.pos})
		if _, err := c.take(1); err != nil { // the dtype
			return err
		}
		numbers, err := c.uvarint()
		if err != nil {
			return err
		}
		if numbers>>1 > tensor.MaxRank {
			return corrupt("a tensor of %d dimensions", numbers>>1)
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

// Parts lists the memory that travels with the message, in the order of the
// tensors of its pipe.Message. The list is good until Reset. It is what the peer
// claims: whoever allocates by it compares it with the descriptor of the pipe
// first, which bounds what really comes.
func (d *Decoder) Parts() []Part { return d.parts }

// Supply gives the memory of the parts, a storage of exactly its size for each,
// on whatever device. The tensors of the message will view it. The slice must
// not change until the values are decoded; but for sparse tensors the contents
// may still be on their way. The error matches ErrStorage; the message is not
// lost then.
func (d *Decoder) Supply(storages []*tensor.Storage) error {
	if d.err != nil {
		return d.err
	}
	if len(storages) != len(d.parts) {
		return fault(ErrStorage, "%d storages for %d parts", len(storages), len(d.parts))
	}
	for i, s := range storages {
		if s == nil || s.Len() != d.parts[i].Bytes {
			return fault(ErrStorage, "storage %d is not one of %d bytes", i, d.parts[i].Bytes)
		}
	}
	d.storages = storages
	return nil
}

// view makes the n-th tensor when it is asked for, and is the same after that.
func (d *Decoder) view(n uint64) (*tensor.Tensor, error) {
	if n >= uint64(len(d.views)) {
		return nil, corrupt("tensor %d of %d", n, len(d.views))
	}
	v := &d.views[n]
	if v.tensor != nil {
		return v.tensor, nil
	}
	if err := d.spend(int(unsafe.Sizeof(tensor.Tensor{}))); err != nil {
		return nil, err
	}
	t, err := d.makeView(cursor{data: d.viewData, pos: v.pos})
	v.tensor = t
	return t, err
}

// makeView makes the tensor of one row.
func (d *Decoder) makeView(c cursor) (*tensor.Tensor, error) {
	dtype, _ := c.byte()
	form, _ := c.uvarint() // readViews went over all of them
	part, _ := c.uvarint()
	offset, err := c.size()
	if err != nil {
		return nil, err
	}
	if part >= uint64(len(d.parts)) {
		return nil, corrupt("part %d of %d", part, len(d.parts))
	}
	if d.storages == nil {
		return nil, fault(ErrStorage, "there is none, call Supply")
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
		strides = d.contiguous(shape)
	}
	t, err := tensor.Strided(d.storages[part], tensor.DType(dtype), shape, strides, offset)
	if err != nil {
		return nil, tensorFault(err)
	}
	return t, d.spendExpanded(t)
}

// contiguous is the strides of a contiguous tensor, in the memory behind its
// shape. A shape that is too large for them is found to be so later.
func (d *Decoder) contiguous(shape []int) []int {
	strides := d.shape[len(shape) : 2*len(shape)]
	step := 1
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = step
		step *= max(shape[i], 1)
		if step <= 0 {
			step = 1
		}
	}
	return strides
}

// spendExpanded takes what a tensor seems larger than its memory.
func (d *Decoder) spendExpanded(t *tensor.Tensor) error {
	more := max(0, t.ByteSize()-t.Storage().Len())
	if more > d.expanded {
		return fault(ErrLimit, "tensors that seem larger than their memory by more than %d bytes", d.limits.ExpandedBytes)
	}
	d.expanded -= more
	return nil
}
