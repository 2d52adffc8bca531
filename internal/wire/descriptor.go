package wire

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/nop"
)

// Descriptor announces a message on an open pipe. Its payloads follow on the same connection, one frame
// each, including empty ones; its tensors are sent on the channels chosen for their devices, except
// empty ones.
type Descriptor struct {
	Metadata []byte // of the application
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
	SourceDevice device.Device // the sender's device
	TargetDevice device.Device // the receiver's device; zero if the receiver chooses it
	Metadata     []byte
}

const (
	minPayload = 5             // b9 02, 00, bd 00
	minTensor  = minDevice + 6 // b9 04, 00, device, be, bd 00
)

// Append appends the encoding of m to dst and returns the extended slice. The devices must pass
// [Limits.CheckDevice].
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

// DecodeDescriptor decodes a Descriptor, which must be the whole of p, into *into, whose slices it
// reuses. All Metadata alias p. If the slices are large enough, it allocates only for new device
// kinds: kinds other than "cpu", "cuda" and the kind that the same tensor of *into had before. If p
// is invalid or exceeds limits, the error is an [*Error]; the contents of *into are then undefined,
// but it can be decoded into again.
func DecodeDescriptor(p []byte, limits Limits, into *Descriptor) error {
	r := newReader("Descriptor", p, limits)
	r.Struct(3)
	r.at("metadata")
	into.Metadata = r.Bytes()
	r.at("payloads")
	into.Payloads = resize(into.Payloads, r.list(minPayload, r.limits.Payloads))
	for i := range into.Payloads {
		p := &into.Payloads[i]
		r.Struct(2)
		p.Length = r.Uint64()
		p.Metadata = r.Bytes()
	}
	r.at("tensors")
	into.Tensors = resize(into.Tensors, r.list(minTensor, r.limits.Tensors))
	for i := range into.Tensors {
		r.tensor(&into.Tensors[i])
	}
	return r.end()
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

// resize returns s with length n, in the same memory if its capacity is large enough. Elements that
// s had keep their values, so that their device kinds can be reused. If n is less than len(s), the
// elements beyond n are zeroed.
func resize[E any](s []E, n int) []E {
	if n < len(s) {
		clear(s[n:])
	}
	return slices.Grow(s[:0], n)[:n]
}

// DropMetadata sets all metadata of m, of its payloads and of its tensors to nil, so that m no
// longer refers to the frame from which it was decoded. It keeps the slices Payloads and Tensors,
// which a later decoding into m reuses.
func (m *Descriptor) DropMetadata() {
	m.Metadata = nil
	for i := range m.Payloads {
		m.Payloads[i].Metadata = nil
	}
	for i := range m.Tensors {
		m.Tensors[i].Metadata = nil
	}
}

// DescriptorReply is the receiver's reply to a [Descriptor] with open target devices: the device of
// each such tensor, in their order. Each such message has one reply, in the order of the messages.
type DescriptorReply struct {
	TargetDevices []device.Device
}

// Append appends the encoding of m to dst and returns the extended slice. The devices must pass
// [Limits.CheckDevice].
func (m *DescriptorReply) Append(dst []byte) []byte {
	dst = nop.AppendArrayHeader(nop.AppendStructHeader(dst, 1), len(m.TargetDevices))
	for _, d := range m.TargetDevices {
		dst = appendDevice(dst, d)
	}
	return dst
}

// DecodeDescriptorReply decodes a DescriptorReply, which must be the whole of p, into *into, whose
// slice it reuses. The result does not alias p. If p is invalid or exceeds limits, the error is an
// [*Error]; the contents of *into are then undefined, but it can be decoded into again.
func DecodeDescriptorReply(p []byte, limits Limits, into *DescriptorReply) error {
	r := newReader("DescriptorReply", p, limits)
	r.Struct(1)
	r.at("targetDevices")
	into.TargetDevices = resize(into.TargetDevices, r.list(minDevice, r.limits.Tensors))
	for i := range into.TargetDevices {
		into.TargetDevices[i] = r.device(into.TargetDevices[i])
	}
	return r.end()
}
