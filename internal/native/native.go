// Package native encodes and decodes the native dialect of a pipe, version 1 of the marker: the frames
// of the message stream and of the control stream, and the chunks of the bulk connection. All numbers
// are little-endian. docs/wire.md specifies them; [Dump] prints the examples there.
//
// A frame is a [Header], a body and, if the header has the flag, a checksum of both. To receive one, a
// reader
//
//   - reads HeaderSize bytes and decodes them with [DecodeMessageHeader] or
//     [DecodeControlHeader], which reject a body larger than the limits,
//   - reads Header.Remaining bytes, and passes them to Header.Body, which verifies
//     the checksum and returns the body,
//   - decodes the body with [Message.Decode] or [DecodeControl].
//
// The bulk connection carries raw bytes in chunks: a [ChunkHeader], the bytes, and a [ChunkTrailer]
// that states whether the bytes are valid.
//
// Decoding does not trust the peer: it compares counts and lengths with the received bytes and with
// [Limits] before it allocates, and reserved bits and bytes must be zero, so that later versions can
// use them. Encoding appends to a buffer of the caller. Neither allocates on the path of messages.
package native

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// MaxParts bounds the payloads of a message, and its tensors: the id of a transfer has 16 bits for the
// index of the part.
const MaxParts = 1 << 16

// MaxInline is the greatest number of bytes of parts that a message carries inline.
const MaxInline = 2 << 20

// maxKind is the maximum length of a device kind: the wire has one byte for it.
const maxKind = 1<<8 - 1

// Limits bound the memory that a peer can make this process use. 0 stands for the default of a field.
type Limits struct {
	// Descriptor is the maximum size in bytes of the body of a MESSAGE without its inline bytes, by
	// default 4 MiB. In addition to the body, into which it points, a decoded Message takes at most 5
	// times as much memory.
	Descriptor int

	// Inline is the maximum total size in bytes of the inline parts of a message, by default MaxInline.
	Inline int

	// Payloads and Tensors are the maximum counts per message, by default and at most MaxParts.
	Payloads int
	Tensors  int

	// Kind is the maximum length in bytes of a device kind, by default 64 and at most 255.
	Kind int
}

// WithDefaults returns a copy of l in which each field that is 0 has its default. Payloads, Tensors
// and Kind are lowered to their maximum if they exceed it.
func (l Limits) WithDefaults() Limits {
	return Limits{
		Descriptor: cmp.Or(l.Descriptor, 4<<20),
		Inline:     cmp.Or(l.Inline, MaxInline),
		Payloads:   min(cmp.Or(l.Payloads, MaxParts), MaxParts),
		Tensors:    min(cmp.Or(l.Tensors, MaxParts), MaxParts),
		Kind:       min(cmp.Or(l.Kind, 64), maxKind),
	}
}

// message returns the largest size in bytes that these limits allow for the body of a MESSAGE
// frame. l must have no zero fields.
func (l Limits) message() uint64 { return uint64(l.Descriptor) + uint64(l.Inline) }

// targets returns the largest size in bytes that these limits allow for the body of a TARGETS
// frame. l must have no zero fields.
func (l Limits) targets() uint64 {
	return targetsFixed + uint64(l.Tensors)*uint64(targetFixed+l.Kind)
}

// ErrChecksum matches errors about frames and chunks whose bytes were changed on the way. The
// connection cannot be used any more, because the start of the next frame is unreliable too.
var ErrChecksum = errors.New("checksum does not match")

// ErrLimit matches errors about frames that are well-formed but exceed [Limits], and about messages too
// large to send. If the peer is trusted, raise the limit.
var ErrLimit = errors.New("larger than the limit")

// Error reports which field of which frame could not be decoded or encoded. If it matches neither
// [ErrLimit] nor [ErrChecksum] the peer broke the protocol. In all cases the connection cannot be used
// any more.
type Error struct {
	Frame string // the kind of frame, as in "MESSAGE"
	Field string // the field, as in docs/wire.md
	Err   error  // the cause
}

func (e *Error) Error() string {
	return "native: " + e.Frame + ", " + e.Field + ": " + e.Err.Error()
}

// Unwrap returns e.Err, the cause, for errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.Err }

func fault(frame, field, format string, args ...any) error {
	return &Error{Frame: frame, Field: field, Err: fmt.Errorf(format, args...)}
}

// exceeded returns an [*Error] that matches ErrLimit: in this field of this frame there is the
// number got, which is above limit.
func exceeded(frame, field string, got, limit uint64) error {
	return fault(frame, field, "%w: %d, at most %d", ErrLimit, got, limit)
}

// SumSize is the size of a frame's checksum in bytes.
const SumSize = 4

// castagnoli is the polynomial for which processors have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Sum returns the CRC32C of some earlier bytes and p together; sum is the CRC32C of the earlier
// bytes. The CRC32C of no bytes is 0, so a caller can sum several pieces of memory one after the
// other, starting with 0.
func Sum(sum uint32, p []byte) uint32 { return crc32.Update(sum, castagnoli, p) }

// AppendChecksum computes the checksum of the frame dst[start:], its header and body, appends it to dst
// and returns the extended slice. The header must have been encoded with CRC set.
func AppendChecksum(dst []byte, start int) []byte {
	return binary.LittleEndian.AppendUint32(dst, Sum(0, dst[start:]))
}

// compareSums returns nil if the received checksum equals counted, the checksum that this end has
// computed. Otherwise it returns an [*Error] that matches ErrChecksum and has frame as its Frame.
func compareSums(frame string, received, counted uint32) error {
	if received != counted {
		return fault(frame, "crc", "%w: received %08x, computed %08x", ErrChecksum, received, counted)
	}
	return nil
}
