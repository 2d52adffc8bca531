package wire

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/nop"
)

// Descriptor announces a message on an established pipe. Its payloads follow
// on the same connection, one frame each, empty ones too; its tensors travel
// on the channels chosen for their devices, empty ones not at all.
type Descriptor struct {
	Metadata []byte // the application's, opaque
	Payloads []PayloadDescriptor
	Tensors  []TensorDescriptor
}

// PayloadDescriptor announces a payload: bytes in host memory.
type PayloadDescriptor struct {
	Length   uint64 // in bytes, as the peer claims
	Metadata []byte
}

// TensorDescriptor announces a tensor.
type TensorDescriptor struct {
	Length       uint64        // in bytes, as the peer claims
	SourceDevice device.Device // where it is at the sender
	TargetDevice device.Device // where it goes; zero: the receiver chooses
	Metadata     []byte
}

const (
	minPayload = 5             // b9 02, 00, bd 00
	minTensor  = minDevice + 6 // b9 04, 00, device, be, bd 00
)

// Append appends the encoded message to dst.
func (m *Descriptor) Append(dst []byte) []byte {
	dst = nop.AppendBytes(nop.AppendStructHeader(dst, 3), m.Metadata)
	dst = nop.AppendArrayHeader(dst, len(m.Payloads))
	for i := range m.Payloads {
		dst = m.Payloads[i].append(dst)
	}
	dst = nop.AppendArrayHeader(dst, len(m.Tensors))
	for i := range m.Tensors {
		dst = m.Tensors[i].append(dst)
	}
	return dst
}

func (m *PayloadDescriptor) append(dst []byte) []byte {
	dst = nop.AppendUint(nop.AppendStructHeader(dst, 2), m.Length)
	return nop.AppendBytes(dst, m.Metadata)
}

func (m *TensorDescriptor) append(dst []byte) []byte {
	dst = nop.AppendUint(nop.AppendStructHeader(dst, 4), m.Length)
	dst = appendDevice(dst, m.SourceDevice)
	if m.TargetDevice.IsZero() {
		dst = nop.AppendEmpty(dst)
	} else {
		dst = appendDevice(dst, m.TargetDevice)
	}
	return nop.AppendBytes(dst, m.Metadata)
}

// DecodeDescriptor decodes a Descriptor from the whole of p into into. It
// reuses the slices of into, so that decoding allocates nothing once they are
// large enough and the device kinds are "cpu", "cuda" or those of last time.
// All Metadata alias p. After an error the contents of into mean nothing, yet
// it can be decoded into again.
func DecodeDescriptor(p []byte, limits Limits, into *Descriptor) error {
	r := newReader("Descriptor", p, limits)
	r.Struct(3)
	r.at("metadata")
	into.Metadata = r.Bytes()
	r.at("payloads")
	into.Payloads = resize(into.Payloads, r.list(minPayload, r.limits.Payloads))
	for i := range into.Payloads {
		r.payload(&into.Payloads[i])
	}
	r.at("tensors")
	into.Tensors = resize(into.Tensors, r.list(minTensor, r.limits.Tensors))
	for i := range into.Tensors {
		r.tensor(&into.Tensors[i])
	}
	return r.end()
}

func (r *reader) payload(m *PayloadDescriptor) {
	r.Struct(2)
	m.Length = r.Uint64()
	m.Metadata = r.Bytes()
}

func (r *reader) tensor(m *TensorDescriptor) {
	r.Struct(4)
	m.Length = r.Uint64()
	m.SourceDevice = r.device(m.SourceDevice)
	if r.Empty() {
		m.TargetDevice = device.Device{}
	} else {
		m.TargetDevice = r.device(m.TargetDevice)
	}
	m.Metadata = r.Bytes()
}

// resize returns s with length n. Elements that s had keep their values, for
// the sake of their device kinds; those that it loses are zeroed, so that they
// hold on to nothing.
func resize[E any](s []E, n int) []E {
	if n < len(s) {
		clear(s[n:])
	}
	return slices.Grow(s[:0], n)[:n]
}

// Forget lets go of the metadata, and so of the frame that it was decoded from.
// What is needed to decode into m again stays.
func (m *Descriptor) Forget() {
	m.Metadata = nil
	for i := range m.Payloads {
		m.Payloads[i].Metadata = nil
	}
	for i := range m.Tensors {
		m.Tensors[i].Metadata = nil
	}
}
