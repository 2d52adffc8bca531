package wire

import (
	"github.com/tensorpipe-go/tensorpipe/internal/nop"
)

// CMADescriptor announces a tensor on the channel cma. The receiver copies it from the sender's memory,
// then replies with an empty frame on the channel's second connection.
type CMADescriptor struct {
	PID uint32 // process id of the sender
	Ptr uint64 // the tensor's address in it
}

// XTHDescriptor announces a tensor on the channel xth, both of whose ends are in one process. The
// receiver copies the tensor, then replies with an empty frame on the channel's second connection.
type XTHDescriptor struct {
	Ptr uint64 // the tensor's address
}

// CUDAIPCDescriptor announces a part of a tensor on the channel cuda_ipc. The receiver copies it from
// a slot of the sender's outbox, then replies with an empty frame on the channel's second connection.
type CUDAIPCDescriptor struct {
	Device int32          // index of the sender's GPU
	Slot   uint64         // of the outbox of this GPU
	Outbox *CUDAIPCOutbox // in the first descriptor of a channel from this GPU
}

// CUDAIPCOutbox is memory of a GPU through which a process sends.
type CUDAIPCOutbox struct {
	Process string     // of the sender, with its namespace
	Memory  [64]byte   // handle of the memory
	Events  [][64]byte // handle of the event of each slot
}

// maxOutboxSlots bounds the slots of an outbox; TensorPipe has 4.
const maxOutboxSlots = 64

// Append appends the encoding of m to dst and returns the extended slice.
func (m CUDAIPCDescriptor) Append(dst []byte) []byte {
	dst = nop.AppendInt(nop.AppendStructHeader(dst, 3), int64(m.Device))
	dst = nop.AppendUint(dst, m.Slot)
	if m.Outbox == nil {
		return nop.AppendEmpty(dst)
	}
	dst = nop.AppendString(nop.AppendStructHeader(dst, 3), m.Outbox.Process)
	dst = nop.AppendString(dst, string(m.Outbox.Memory[:]))
	dst = nop.AppendArrayHeader(dst, len(m.Outbox.Events))
	for _, h := range m.Outbox.Events {
		dst = nop.AppendString(dst, string(h[:]))
	}
	return dst
}

// DecodeCUDAIPCDescriptor decodes a CUDAIPCDescriptor, which must be the whole of p. If p is invalid
// or exceeds limits, the error is an [*Error] and the result is zero. The result does not alias p.
func DecodeCUDAIPCDescriptor(p []byte, limits Limits) (CUDAIPCDescriptor, error) {
	r := newReader("CUDAIPCDescriptor", p, limits)
	r.Struct(3)
	r.at("device")
	m := CUDAIPCDescriptor{Device: r.Int32()}
	r.at("slot")
	m.Slot = r.Uint64()
	r.at("outbox")
	if !r.Empty() {
		r.Struct(3)
		o := &CUDAIPCOutbox{Process: r.text(), Memory: r.handle()}
		o.Events = make([][64]byte, r.list(2, maxOutboxSlots))
		for i := range o.Events {
			o.Events[i] = r.handle()
		}
		m.Outbox = o
	}
	return result(&r, m)
}

// handle reads and returns a handle of the CUDA driver, a string of 64 bytes.
func (r *reader) handle() (h [64]byte) {
	if p := r.Bytes(); copy(h[:], p) != len(h) || len(p) != len(h) {
		r.Failf("a handle of %d bytes, want %d", len(p), len(h))
	}
	return h
}

// Append appends the encoding of m to dst and returns the extended slice.
func (m CMADescriptor) Append(dst []byte) []byte {
	dst = nop.AppendUint(nop.AppendStructHeader(dst, 2), uint64(m.PID))
	return nop.AppendUint(dst, m.Ptr)
}

// Append appends the encoding of m to dst and returns the extended slice.
func (m XTHDescriptor) Append(dst []byte) []byte {
	return nop.AppendUint(nop.AppendStructHeader(dst, 1), m.Ptr)
}

// DecodeCMADescriptor decodes a CMADescriptor, which must be the whole of p. If p is invalid or
// exceeds limits, the error is an [*Error] and the result is zero.
func DecodeCMADescriptor(p []byte, limits Limits) (CMADescriptor, error) {
	r := newReader("CMADescriptor", p, limits)
	r.Struct(2)
	r.at("pid")
	m := CMADescriptor{PID: r.Uint32()}
	r.at("ptr")
	m.Ptr = r.Uint64()
	return result(&r, m)
}

// DecodeXTHDescriptor decodes an XTHDescriptor, which must be the whole of p. If p is invalid or
// exceeds limits, the error is an [*Error] and the result is zero.
func DecodeXTHDescriptor(p []byte, limits Limits) (XTHDescriptor, error) {
	r := newReader("XTHDescriptor", p, limits)
	r.Struct(1)
	r.at("ptr")
	return result(&r, XTHDescriptor{Ptr: r.Uint64()})
}

// MPTHello is a message that opens the lanes of the channel mpt. The server sends an
// [MPTServerHello] on the channel's control connection. The client then dials a new connection for
// each lane and sends an [MPTClientHello] as its first message.
type MPTHello interface {
	// Append appends the encoded message to dst and returns the extended slice.
	Append(dst []byte) []byte

	mptHello()
}

// The alternatives of an MPTHello.
const (
	mptServerHello = 0
	mptClientHello = 1
)

// MPTServerHello lists the lanes that the server expects, in order.
type MPTServerHello struct {
	Lanes []MPTLane
}

// MPTLane is one lane of mpt, as the server announces it.
type MPTLane struct {
	Address        string // at which the server listens for it
	RegistrationID uint64 // for the lane's MPTClientHello
}

// MPTClientHello is the first message on a lane. It identifies the lane to the server.
type MPTClientHello struct {
	RegistrationID uint64 // from the MPTServerHello
}

const minLane = 5 // b9 02, bd 00, 00

func (MPTServerHello) mptHello() {}
func (MPTClientHello) mptHello() {}

// Append appends the encoding of m to dst and returns the extended slice.
func (m MPTServerHello) Append(dst []byte) []byte {
	dst = nop.AppendStructHeader(nop.AppendVariantHeader(dst, mptServerHello), 1)
	dst = nop.AppendArrayHeader(dst, len(m.Lanes))
	for _, lane := range m.Lanes {
		dst = nop.AppendString(nop.AppendStructHeader(dst, 2), lane.Address)
		dst = nop.AppendUint(dst, lane.RegistrationID)
	}
	return dst
}

// Append appends the encoding of m to dst and returns the extended slice.
func (m MPTClientHello) Append(dst []byte) []byte {
	dst = nop.AppendStructHeader(nop.AppendVariantHeader(dst, mptClientHello), 1)
	return nop.AppendUint(dst, m.RegistrationID)
}

// DecodeMPTHello decodes an MPTHello, which must be the whole of p. The result is an MPTServerHello
// or an MPTClientHello and does not alias p. If p is invalid or exceeds limits, the error is an
// [*Error] and the result is nil.
func DecodeMPTHello(p []byte, limits Limits) (MPTHello, error) {
	r := newReader("MPTHello", p, limits)
	return result(&r, r.mptHello())
}

func (r *reader) mptHello() MPTHello {
	switch index := r.Variant(); index {
	case mptServerHello:
		r.at("ServerHello")
		r.Struct(1)
		lanes := resize[MPTLane](nil, r.list(minLane, r.limits.Entries))
		for i := range lanes {
			r.Struct(2)
			lanes[i] = MPTLane{Address: r.text(), RegistrationID: r.Uint64()}
		}
		return MPTServerHello{Lanes: lanes}
	case mptClientHello:
		r.at("ClientHello")
		r.Struct(1)
		return MPTClientHello{RegistrationID: r.Uint64()}
	default:
		r.Failf("unknown alternative %d", index)
		return nil
	}
}
