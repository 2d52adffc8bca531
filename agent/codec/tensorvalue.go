package codec

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// piece is what a tensor needs of its storage.
type piece struct {
	tensor  *tensor.Tensor
	buffer  device.Buffer // all of the storage
	storage int           // its number
	lo, hi  int           // the bytes from the first element to behind the last
	part    int           // the part they travel in
	from    int           // where that begins, in bytes of the storage
}

func encodeTensor(e *Encoder, from unsafe.Pointer) error { return e.Tensor(*(**tensor.Tensor)(from)) }

// piece finds the memory that a tensor uses.
func (e *Encoder) piece(t *tensor.Tensor, buf device.Buffer) piece {
	s, ok := e.storages.find(t.Storage())
	if !ok {
		s = e.storages.add(t.Storage())
	}
	p := piece{tensor: t, buffer: buf, storage: s}
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

func decodeTensor(d *Decoder, to unsafe.Pointer) (err error) {
	*(**tensor.Tensor)(to), err = d.Tensor()
	return err
}

var sparseType = reflect.TypeFor[*tensor.Sparse]()

func encodeSparse(e *Encoder, from unsafe.Pointer) error {
	p := *(*unsafe.Pointer)(from)
	return e.object(sparseType, p, func(e *Encoder, p unsafe.Pointer) error {
		s := (*tensor.Sparse)(p)
		if err := e.Tensor(s.Indices()); err != nil {
			return err
		}
		if err := e.Tensor(s.Values()); err != nil {
			return err
		}
		e.Uint(uint64(len(s.Shape())))
		for _, dim := range s.Shape() {
			e.Uint(uint64(dim))
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

// sparse reads a sparse tensor. The indices are looked at: they must have come,
// and be in memory of the host.
func (d *Decoder) sparse() (*tensor.Sparse, error) {
	indices, err := d.Tensor()
	if err != nil {
		return nil, err
	}
	values, err := d.Tensor()
	if err != nil {
		return nil, err
	}
	rank, err := d.count(1)
	if err != nil {
		return nil, err
	}
	if indices == nil || values == nil || rank > tensor.MaxRank {
		return nil, corrupt("a sparse tensor of %d dimensions, of %v and %v", rank, indices, values)
	}
	shape := d.shape[:rank]
	for i := range shape {
		if shape[i], err = d.size(); err != nil {
			return nil, err
		}
	}
	if err := d.spendPlaces(indices); err != nil {
		return nil, err
	}
	v, err := tensor.NewSparse(indices, values, shape...)
	if err != nil {
		return nil, tensorFault(err)
	}
	return v, nil
}

// spendPlaces takes the memory in which the places of a sparse tensor are
// checked: a number for each. Where the indices came with memory of their own it
// is no more than that.
func (d *Decoder) spendPlaces(indices *tensor.Tensor) error {
	const object = 256
	if indices.Rank() != 2 || indices.Shape()[1] <= indices.Len() {
		return d.spend(object)
	}
	return d.spend(plus(object, times(8, indices.Shape()[1])))
}

// tensorFault is what an error of package tensor about something that came
// means: the message contradicts itself, unless it is about the memory here.
func tensorFault(err error) error {
	if _, elsewhere := err.(*tensor.DeviceError); elsewhere || err == tensor.ErrReleased {
		return &Error{Err: err}
	}
	return &Error{Err: fmt.Errorf("%w: %w", ErrCorrupt, err)}
}

func (d *Decoder) skipSparse() error {
	for range 2 {
		if _, err := d.uvarint(); err != nil {
			return err
		}
	}
	rank, err := d.count(1)
	for ; err == nil && rank > 0; rank-- {
		_, err = d.uvarint()
	}
	return err
}
