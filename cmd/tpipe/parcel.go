package main

import (
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// parcel is a message together with the memory it is read into and sent from,
// which comes from a pool.
type parcel struct {
	message  *pipe.Message
	memory   pipe.Allocation
	storages []*tensor.Storage
	size     int // bytes of all
}

// newParcel makes room for what d describes, and the message that says the
// same as d does.
func newParcel(a tensor.Allocator, d *pipe.Descriptor) (*parcel, error) {
	p := &parcel{size: d.Bytes()}
	for _, payload := range d.Payloads {
		data, err := p.bytes(a, payload.Length)
		if err != nil {
			return nil, err
		}
		p.memory.Payloads = append(p.memory.Payloads, data)
	}
	for _, t := range d.Tensors {
		data, err := p.bytes(a, t.Length)
		if err != nil {
			return nil, err
		}
		p.memory.Tensors = append(p.memory.Tensors, device.Bytes(data))
	}
	p.message = d.Message(p.memory)
	return p, nil
}

func (p *parcel) bytes(a tensor.Allocator, n int) ([]byte, error) {
	s, err := a.Alloc(n)
	if err != nil {
		return nil, err
	}
	p.storages = append(p.storages, s)
	return s.Bytes()
}

// release gives the memory back. It must be called once nobody uses the parcel
// any more, and not before: the slices alone do not keep the memory.
func (p *parcel) release() {
	for _, s := range p.storages {
		s.Release()
	}
}
