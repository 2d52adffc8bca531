package native

import (
	"encoding/binary"
	"math"
	"strconv"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/compress"
)

// KindMessage is the only kind of frame on the message stream.
const KindMessage byte = 0x01

const messageFrame = "MESSAGE" // in errors

// Sizes in bytes of the fixed parts of a MESSAGE.
const (
	messageFixed    = 24
	payloadEntry    = 16
	tensorEntry     = 32
	compressedEntry = 8 // the length of a compressed form
)

// Flags of payloads and tensors.
const (
	flagInline = 1 << 0
	flagNamed  = 1 << 1 // of tensors only: the target is named
	flagJoined = 1 << 2 // likewise: in the transfer of the tensor before
	flagEager  = 1 << 3 // likewise: the transfer does not wait for READY

	flagEagerPayload = 1 << 1 // the same of payloads
)

// Message is a MESSAGE: the description of a message, and the bytes of its inline parts.
//
// Decoding into the same Message repeatedly allocates nothing once its slices have grown. Metadata and
// Data of a decoded Message point into the frame, whose memory must not be reused before
// [Message.Reset].
type Message struct {
	Timeout  time.Duration // time left until the deadline, 0 if there is none
	Metadata []byte
	Payloads []Payload
	Tensors  []Tensor

	kinds kindCache
}

// Payload is a payload of a message: its description and, if it is inline, its bytes.
type Payload struct {
	Length           uint64 // in bytes, at most MaxInt64
	Inline           bool   // the bytes are in the frame; always set if Length is 0
	Eager            bool   // the transfer does not wait for the receiver's READY
	Codec            compress.Codec
	CompressedLength uint64 // bytes of the compressed form, which is sent instead; 0 without a Codec
	Metadata         []byte
	Data             []byte // the inline bytes, compressed if there is a Codec
}

// WireLength returns the number of bytes of the payload that are sent: CompressedLength if Codec is
// not None, and otherwise Length.
func (p *Payload) WireLength() uint64 { return wireLength(p.Length, p.Codec, p.CompressedLength) }

// Tensor is a tensor of a message: its description and, if it is inline, its bytes.
//
// A tensor that is Joined has no transfer of its own: its bytes are sent in the transfer of the last
// tensor before it that is neither Inline nor Joined, after those of that tensor. Both have the same
// devices, a Target, and no Codec.
type Tensor struct {
	Length           uint64 // in bytes, at most MaxInt64
	Inline           bool   // the bytes are in the frame; always set if Length is 0
	Joined           bool
	Eager            bool // the transfer does not wait for the receiver's READY
	Codec            compress.Codec
	CompressedLength uint64 // bytes of the compressed form, which is sent instead; 0 without a Codec
	Metadata         []byte
	Data             []byte        // the inline bytes, compressed if there is a Codec
	Source           device.Device // the sender's device
	Target           device.Device // the receiver's device; if zero the receiver chooses it
}

// WireLength returns the number of bytes of the tensor that are sent: CompressedLength if Codec is
// not None, and otherwise Length.
func (t *Tensor) WireLength() uint64 { return wireLength(t.Length, t.Codec, t.CompressedLength) }

func wireLength(length uint64, codec compress.Codec, compressedLength uint64) uint64 {
	if codec != compress.None {
		return compressedLength
	}
	return length
}

// MaxJoined bounds the tensors that are joined to one, so that a channel can list all pieces of memory
// of the transfer in one frame.
const MaxJoined = 1000

// JoinedTo returns the number of tensors that are joined to the k-th one of tensors.
func JoinedTo(tensors []Tensor, k int) (n int) {
	for _, t := range tensors[k+1:] {
		switch {
		case t.Joined:
			n++
		case !t.Inline:
			return n
		}
	}
	return n
}

// maxRetainedParts bounds the number of parts for which Reset retains memory.
const maxRetainedParts = 128

// Reset empties m and drops all references to metadata, to the frame and to the memory of parts. It
// keeps the slices Payloads and Tensors for the next message if they are small.
func (m *Message) Reset() {
	m.Timeout, m.Metadata = 0, nil
	m.Payloads = reset(m.Payloads)
	m.Tensors = reset(m.Tensors)
}

func reset[T any](parts []T) []T {
	if cap(parts) > maxRetainedParts {
		return nil
	}
	clear(parts[:cap(parts)])
	return parts[:0]
}

// Check returns nil if the counts and sizes of m are within limits and its devices can be encoded.
// Otherwise it returns an [*Error]. It does not check the codecs, the lengths of the parts against
// Data, or the Timeout.
func (m *Message) Check(limits Limits) error {
	limits = limits.WithDefaults()
	if n := len(m.Payloads); n > limits.Payloads {
		return exceeded(messageFrame, "payloads", uint64(n), uint64(limits.Payloads))
	}
	if n := len(m.Tensors); n > limits.Tensors {
		return exceeded(messageFrame, "tensors", uint64(n), uint64(limits.Tensors))
	}
	for i := range m.Tensors {
		if err := m.Tensors[i].check(i, limits.Kind); err != nil {
			return err
		}
	}
	descriptor, inline := m.sizes()
	if descriptor > uint64(limits.Descriptor) {
		return exceeded(messageFrame, "descriptor", descriptor, uint64(limits.Descriptor))
	}
	if inline > uint64(limits.Inline) {
		return exceeded(messageFrame, "inline bytes", inline, uint64(limits.Inline))
	}
	return nil
}

// check returns nil if the source and the target device of t can be encoded, with kinds of at most
// kind bytes. Otherwise it returns an [*Error] about the i-th tensor.
func (t *Tensor) check(i, kind int) error {
	if t.Source.Kind == "" {
		return faultAt("tensor", i, "source kind", "empty")
	}
	if t.Target.Kind == "" && !t.Target.IsZero() {
		return faultAt("tensor", i, "target kind", "empty, yet there is an index")
	}
	for _, d := range []device.Device{t.Source, t.Target} {
		if len(d.Kind) > kind {
			return faultAt("tensor", i, "device kind", "%w: %d bytes, at most %d", ErrLimit, len(d.Kind), kind)
		}
		if d.Index < 0 || d.Index > math.MaxInt32 {
			return faultAt("tensor", i, "device index", "%d, want 0..%d", d.Index, math.MaxInt32)
		}
	}
	return nil
}

// faultAt returns an [*Error] about a field of the i-th payload or tensor. part is "payload" or
// "tensor".
func faultAt(part string, i int, field, format string, args ...any) error {
	return fault(messageFrame, part+" "+strconv.Itoa(i)+" "+field, format, args...)
}

// DescriptorSize returns the size of a MESSAGE's descriptor, the part of the body before the inline
// bytes. prefix is the start of the body. The result is 0 if prefix does not contain the whole
// descriptor, or if any part of the message is not inline or is compressed. DescriptorSize does not
// validate prefix.
func DescriptorSize(prefix []byte) int {
	if len(prefix) < messageFixed {
		return 0
	}
	uint32At := func(at int) uint64 { return uint64(binary.LittleEndian.Uint32(prefix[at:])) }
	payloads, tensors := uint32At(12), uint32At(16)
	entries := messageFixed + payloads*payloadEntry + tensors*tensorEntry
	if uint64(len(prefix)) < entries {
		return 0
	}
	size := entries + uint32At(8)
	at := prefix[messageFixed:]
	for range payloads {
		if at[12]&flagInline == 0 || compress.Codec(at[13]) != compress.None {
			return 0
		}
		size += uint64(binary.LittleEndian.Uint32(at[8:]))
		at = at[payloadEntry:]
	}
	for range tensors {
		if at[12]&flagInline == 0 || compress.Codec(at[15]) != compress.None {
			return 0
		}
		size += uint64(binary.LittleEndian.Uint32(at[8:])) + uint64(at[13]) + uint64(at[14])
		at = at[tensorEntry:]
	}
	if size > uint64(len(prefix)) {
		return 0
	}
	return int(size)
}

// DecodeDescriptor decodes head, the descriptor of a MESSAGE, into m. The descriptor is the part of
// the body before the inline bytes, and length is the size of the whole body. The metadata of m
// aliases head. Data is not set; [Message.SetData] does that. If head is invalid or exceeds limits,
// the error is an [*Error] and m is unchanged.
func (m *Message) DecodeDescriptor(head []byte, length uint32, limits Limits) error {
	return m.decode(&scanner{body: head, length: uint64(length), limits: limits.WithDefaults()})
}
