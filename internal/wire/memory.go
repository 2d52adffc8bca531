package wire

import "github.com/tensorpipe-go/tensorpipe/internal/nop"

// CMADescriptor announces a tensor on the channel cma: the receiver copies it
// out of the sender's memory, then answers with an empty frame on the
// channel's second connection.
type CMADescriptor struct {
	PID uint32 // the sender's process
	Ptr uint64 // the tensor's address in it
}

// XTHDescriptor announces a tensor on the channel xth, both of whose ends are
// in one process. The receiver answers as in cma.
type XTHDescriptor struct {
	Ptr uint64 // the tensor's address
}

// Append appends the encoded message to dst.
func (m CMADescriptor) Append(dst []byte) []byte {
	dst = nop.AppendUint(nop.AppendStructHeader(dst, 2), uint64(m.PID))
	return nop.AppendUint(dst, m.Ptr)
}

// Append appends the encoded message to dst.
func (m XTHDescriptor) Append(dst []byte) []byte {
	return nop.AppendUint(nop.AppendStructHeader(dst, 1), m.Ptr)
}

// DecodeCMADescriptor decodes a CMADescriptor from the whole of p.
func DecodeCMADescriptor(p []byte, limits Limits) (CMADescriptor, error) {
	r := newReader("CMADescriptor", p, limits)
	r.Struct(2)
	r.at("pid")
	m := CMADescriptor{PID: r.Uint32()}
	r.at("ptr")
	m.Ptr = r.Uint64()
	return result(&r, m)
}

// DecodeXTHDescriptor decodes an XTHDescriptor from the whole of p.
func DecodeXTHDescriptor(p []byte, limits Limits) (XTHDescriptor, error) {
	r := newReader("XTHDescriptor", p, limits)
	r.Struct(1)
	r.at("ptr")
	return result(&r, XTHDescriptor{Ptr: r.Uint64()})
}
