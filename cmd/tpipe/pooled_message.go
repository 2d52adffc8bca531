package main

import (
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// pooledMessage is a message together with the allocated memory that it is read into and sent from.
type pooledMessage struct {
	message  *pipe.Message
	memory   pipe.Allocation
	storages []*tensor.Storage
	size     int // bytes of all
}

// newPooledMessage returns a message with the payloads and tensors that d describes, in memory that
// it allocates from a. The message shares d's metadata. The caller must call release. The error is
// that of a.
func newPooledMessage(a tensor.Allocator, d *pipe.Descriptor) (*pooledMessage, error) {
	p := &pooledMessage{size: d.Bytes()}
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

// bytes returns n bytes that it allocates from a. They are valid until p.release, which gives them
// back. The error is that of the allocation, or of the storage if its memory is not in the host.
func (p *pooledMessage) bytes(a tensor.Allocator, n int) ([]byte, error) {
	s, err := a.Alloc(n)
	if err != nil {
		return nil, err
	}
	p.storages = append(p.storages, s)
	return s.Bytes()
}

// release gives the memory of the message back to its allocator. No read or write may be using the
// message, and its slices must not be used afterwards: they do not keep the memory alive.
func (p *pooledMessage) release() {
	for _, s := range p.storages {
		s.Release()
	}
}
