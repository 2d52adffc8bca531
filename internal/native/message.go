package native

import (
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
	messageFixed = 24
	payloadEntry = 16
	tensorEntry  = 32
	formEntry    = 8 // the length of a compressed form
)

// Flags of payloads and tensors.
const (
	flagInline = 1 << 0
	flagNamed  = 1 << 1 // of tensors only: the target is named
)

// Message is a MESSAGE: the description of a message, and the bytes of its
// inline parts.
//
// One Message can be decoded into again and again, and allocates nothing once
// it has grown. What has been decoded points into the frame; [Message.Forget]
// lets go of that.
type Message struct {
	Deadline time.Duration // time left until it, 0 if there is none
	Metadata []byte
	Payloads []Payload
	Tensors  []Tensor

	kinds kindCache
}

// Payload is a payload of a message.
type Payload struct {
	Length   uint64 // in bytes, at most MaxInt64
	Inline   bool   // the bytes are in the frame, as they always are if there are none
	Codec    compress.Codec
	Form     uint64 // bytes of the compressed form, which travels instead; 0 without a Codec
	Metadata []byte
	Data     []byte // what travels, if Inline
}

// Carried is the number of bytes that travel.
func (p *Payload) Carried() uint64 { return carried(p.Length, p.Codec, p.Form) }

// Tensor is a tensor of a message.
type Tensor struct {
	Length   uint64 // in bytes, at most MaxInt64
	Inline   bool   // the bytes are in the frame, as they always are if there are none
	Codec    compress.Codec
	Form     uint64 // bytes of the compressed form, which travels instead; 0 without a Codec
	Metadata []byte
	Data     []byte        // what travels, if Inline
	Source   device.Device // where the sender has it
	Target   device.Device // where it is to go; if zero the receiver chooses
}

// Carried is the number of bytes that travel.
func (t *Tensor) Carried() uint64 { return carried(t.Length, t.Codec, t.Form) }

func carried(length uint64, codec compress.Codec, form uint64) uint64 {
	if codec != compress.None {
		return form
	}
	return length
}

// keptParts is for how many parts a Message keeps memory over Forget.
const keptParts = 64

// Forget empties m and lets go of the frame that it was decoded from, or of the
// memory that it was going to describe. Memory for parts is kept if it is
// little.
func (m *Message) Forget() {
	m.Deadline, m.Metadata = 0, nil
	m.Payloads = forget(m.Payloads)
	m.Tensors = forget(m.Tensors)
}

func forget[T any](parts []T) []T {
	if cap(parts) > keptParts {
		return nil
	}
	clear(parts[:cap(parts)])
	return parts[:0]
}

// Check returns an error if a peer with these limits would refuse m, or if it
// cannot be written down at all.
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

// check returns an error if the devices of the i-th tensor cannot be written
// down.
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

// faultAt is the error about a field of the i-th of several parts.
func faultAt(part string, i int, field, format string, args ...any) error {
	return fault(messageFrame, part+" "+strconv.Itoa(i)+" "+field, format, args...)
}
