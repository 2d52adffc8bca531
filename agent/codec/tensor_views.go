package codec

import (
	"math"
	"slices"
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

// appendTensors divides the memory of the encoded tensors into parts, and appends the table of
// parts and the table of views to the message. The error is one of package tensor.
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

// device appends d to the message: its kind and its index, or just an empty kind for the host
// (cpu:0).
func (e *Encoder) device(d device.Device) {
	if d == device.CPU() {
		e.WriteString("")
		return
	}
	e.WriteString(d.Kind)
	e.WriteUint(uint64(d.Index))
}

// view appends a row of the table of views to the message: dtype, shape, part and offset of
// p.tensor, and its strides if it is not contiguous. planParts must have set the part of p.
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

// viewEntry is a row of the table of views of a received message. Its tensor is nil until Place
// sets it or it is used for the first time.
type viewEntry struct {
	pos    int // position of its row in the table
	tensor *tensor.Tensor
}

// readViews reads the table of views at c and appends an entry with the position of each row to
// d.views. It checks only that each row is complete and has at most tensor.MaxRank dimensions;
// makeView checks the values when the tensor is used. d keeps the memory of c until Forget. The
// error matches ErrCorrupt or ErrLimit.
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

// Parts returns the size and the device of each piece of memory that is sent with the message, in
// the order of the tensors of its pipe.Message. The slice belongs to the Decoder, must not be
// modified, and is valid until Reset or Forget. The sizes are claims of the peer: compare them with
// the descriptor of the pipe message before allocating.
func (d *Decoder) Parts() []Part { return d.parts }

// View describes one tensor of a message: a view of the memory of one part.
type View struct {
	DType   tensor.DType
	Shape   []int
	Strides []int // in elements
	Part    int   // index of the part in Parts
	Offset  int   // of the first element in the part, in elements
}

// IsContiguous reports whether the elements follow one another in row-major order without gaps. It
// does not check the strides of dimensions of size 1. It is true for tensors without elements.
func (v *View) IsContiguous() bool {
	if slices.Contains(v.Shape, 0) {
		return true
	}
	step := 1
	for i := len(v.Shape) - 1; i >= 0; i-- {
		if v.Shape[i] > 1 && v.Strides[i] != step {
			return false
		}
		step *= v.Shape[i]
	}
	return true
}

// Views returns a description of each tensor of the message, in the order in which the sender
// encoded the tensors for the first time: the fields of a struct in their order, the elements of a
// slice by their index. It can be called after Reset, before the memory of the tensors has arrived.
// The slices are new memory. The views are claims of the peer: a shape may be invalid, and a view
// may be larger than its part. The error is that of an earlier call of Reset or Decode; or it
// matches ErrCorrupt if a number or the index of a part is too large, or ErrLimit if the
// descriptions exceed the memory that the message may use.
func (d *Decoder) Views() ([]View, error) {
	if d.err != nil {
		return nil, d.err
	}
	all := make([]View, len(d.views))
	for i := range d.views {
		v, err := d.readView(cursor{data: d.viewData, pos: d.views[i].pos})
		if err == nil {
			err = d.charge(int(unsafe.Sizeof(v)) + 16*len(v.Shape))
		}
		if err != nil {
			return nil, err
		}
		numbers := append(append(make([]int, 0, 2*len(v.Shape)), v.Shape...), v.Strides...)
		v.Shape, v.Strides = numbers[:len(v.Shape):len(v.Shape)], numbers[len(v.Shape):]
		all[i] = v
	}
	return all, nil
}

// Place sets the tensors to which the tensors of the message are decoded: number i of Views to
// tensors[i] itself, which must have the same dtype and shape. A tensor that is nil is decoded to a
// view of a storage given to Supply. Place does not receive or copy elements. The Decoder keeps the
// tensors until Reset or Forget, but not the slice. Place must be called before Supply and Decode.
// The error is that of an earlier call of Reset or Decode; or it matches ErrStorage if the number
// of tensors, a dtype or a shape differs, or ErrCorrupt as that of Views does. The tensors of the
// message are then not placed.
func (d *Decoder) Place(tensors []*tensor.Tensor) error {
	if d.err != nil {
		return d.err
	}
	if len(tensors) != len(d.views) {
		return errorf(ErrStorage, "%d tensors for %d", len(tensors), len(d.views))
	}
	for i, t := range tensors {
		v, err := d.readView(cursor{data: d.viewData, pos: d.views[i].pos})
		if err != nil {
			return err
		}
		if t != nil && (t.DType() != v.DType || !slices.Equal(t.Shape(), v.Shape)) {
			return errorf(ErrStorage, "tensor %d is not a %v of shape %v", i, v.DType, v.Shape)
		}
	}
	for i, t := range tensors {
		d.views[i].tensor = t
	}
	d.placed = true
	return nil
}

// Supply sets the memory of the parts: for each part a storage of exactly its size, on any device.
// A storage may be nil if Place has set the tensors of its part. The decoded tensors are views of
// these storages. The Decoder keeps the slice until Reset or Forget; it must not change until the
// values are decoded. The contents of the storages may still be in transit, except for sparse
// tensors. The error is that of an earlier call of Reset or Decode; or it matches ErrStorage if the
// number or a size of the storages is wrong, and Supply may then be called again.
func (d *Decoder) Supply(storages []*tensor.Storage) error {
	if d.err != nil {
		return d.err
	}
	if len(storages) != len(d.parts) {
		return errorf(ErrStorage, "%d storages for %d parts", len(storages), len(d.parts))
	}
	for i, s := range storages {
		if s == nil && d.placed {
			continue
		}
		if s == nil || s.Len() != d.parts[i].Bytes {
			return errorf(ErrStorage, "storage %d is not one of %d bytes", i, d.parts[i].Bytes)
		}
	}
	d.storages = storages
	return nil
}

// view returns tensor number n of the message: the one that Place has set, or else a view of a
// storage given to Supply, which the first call creates and later calls return again. The error
// matches ErrCorrupt, ErrLimit or ErrStorage; the tensor is then nil.
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
	if err != nil {
		return nil, err
	}
	v.tensor = t
	return t, nil
}

// readView decodes the row of the table of views at c. The shape and the strides of the result are
// parts of d.shape, which the next call overwrites. The error, if a number does not fit in an int
// or there is no such part, matches ErrCorrupt.
func (d *Decoder) readView(c cursor) (View, error) {
	dtype, _ := c.byte()
	form, _ := c.uvarint() // readViews checked these
	part, _ := c.uvarint()
	offset, err := c.size()
	if err != nil {
		return View{}, err
	}
	if part >= uint64(len(d.parts)) {
		return View{}, corruptf("part %d of %d", part, len(d.parts))
	}
	rank := int(form >> 1)
	numbers := d.shape[:rank<<(form&1)]
	for i := range numbers {
		if numbers[i], err = c.size(); err != nil {
			return View{}, err
		}
	}
	shape, strides := d.shape[:rank], d.shape[rank:2*rank]
	if form&1 == 0 {
		// If a stride overflows it is wrong, and tensor.Strided rejects the shape.
		for i, step := rank-1, 1; i >= 0; i-- {
			strides[i] = step
			step = max(step*max(shape[i], 1), 1)
		}
	}
	return View{tensor.DType(dtype), shape, strides, int(part), offset}, nil
}

// makeView returns a new tensor as the row of the table of views at c describes it: a view of the
// storage that was supplied for its part. The error matches ErrCorrupt, also if the tensor is not
// within its part; ErrStorage if Supply was not called, or supplied no storage for the part; or
// ErrLimit if the tensors of the message exceed their memory by too much. The tensor is then nil.
func (d *Decoder) makeView(c cursor) (*tensor.Tensor, error) {
	v, err := d.readView(c)
	if err != nil {
		return nil, err
	}
	if d.storages == nil || d.storages[v.Part] == nil {
		return nil, errorf(ErrStorage, "Supply was not called")
	}
	t, err := tensor.Strided(d.storages[v.Part], v.DType, v.Shape, v.Strides, v.Offset)
	if err != nil {
		return nil, tensorFault(err)
	}
	// The bytes by which the tensor exceeds its memory.
	excess := max(0, t.ByteSize()-t.Storage().Len())
	if excess > d.expanded {
		return nil, errorf(ErrLimit, "tensors exceed their memory by more than %d bytes", d.limits.ExpandedBytes)
	}
	d.expanded -= excess
	return t, nil
}
