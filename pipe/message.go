package pipe

import (
	"context"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/hugepage"
)

// Message is what one Write sends: opaque metadata, small payloads in host
// memory and tensors on any device. Every part may be absent or empty.
type Message struct {
	Metadata []byte
	Payloads []Payload
	Tensors  []Tensor

	// Deadline is when the message is of no use any more; the zero Time is
	// never. Write then fails with context.DeadlineExceeded instead of sending
	// it. In the native dialect the receiver is told, and a message of which
	// parts are still on their way at that time is given up.
	Deadline time.Time

	// More says that other messages are about to be written to the pipe: this one may
	// leave a moment later, together with them. It does not wait for them. In the
	// compatible dialect, and through shared memory, it means nothing.
	More bool
}

func (m *Message) checkDeadline() error {
	if !m.Deadline.IsZero() && !time.Now().Before(m.Deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// timeLeft is the time to the deadline, 0 if there is none.
func (m *Message) timeLeft() time.Duration {
	if m.Deadline.IsZero() {
		return 0
	}
	return max(1, time.Until(m.Deadline))
}

// Payload is host memory that travels with the message itself.
type Payload struct {
	Data     []byte
	Metadata []byte

	// Compression is how to compress Data on its way, where that can be had.
	Compression Compression
}

// Tensor is a buffer that travels over the channel chosen for its device and
// the target device.
type Tensor struct {
	// Buffer holds the bytes to send; its stream says when they are valid.
	Buffer device.Buffer

	// TargetDevice is where the receiver must put the tensor. The zero Device
	// lets the receiver choose, which in the compatible dialect costs a round
	// trip.
	TargetDevice device.Device

	Metadata []byte

	// Compression is how to compress the tensor on its way, where that can be
	// had: it must be in host memory without a stream, and unable to go anywhere
	// but to cpu:0.
	Compression Compression
}

// Descriptor describes an incoming message before its bytes have arrived, so
// that the receiver can choose memory for them.
type Descriptor struct {
	Metadata []byte
	Payloads []PayloadDescriptor
	Tensors  []TensorDescriptor

	// Deadline is that of the message, by this end's clock and as if it had
	// taken no time to come; zero without one, and in the compatible dialect.
	Deadline time.Time
}

func (d *Descriptor) setTimeLeft(left time.Duration) {
	if left > 0 {
		d.Deadline = time.Now().Add(left)
	}
}

// emptied is a descriptor of nothing in the memory of d.
func (d *Descriptor) emptied() Descriptor {
	clear(d.Payloads)
	clear(d.Tensors)
	return Descriptor{Payloads: d.Payloads[:0], Tensors: d.Tensors[:0]}
}

// Bytes is the size of all payloads and tensors together.
func (d *Descriptor) Bytes() int {
	n := 0
	for _, p := range d.Payloads {
		n = addSizes(n, p.Length)
	}
	for _, t := range d.Tensors {
		n = addSizes(n, t.Length)
	}
	return n
}

// Message makes the message that says what d does, with the contents of a: an
// echo or a relay sends what it has read. Metadata and memory are shared with d
// and a, target devices are kept.
func (d *Descriptor) Message(a Allocation) *Message {
	m := &Message{
		Metadata: d.Metadata,
		Payloads: make([]Payload, len(d.Payloads)),
		Tensors:  make([]Tensor, len(d.Tensors)),
	}
	for i, p := range d.Payloads {
		m.Payloads[i] = Payload{Data: a.Payloads[i], Metadata: p.Metadata}
	}
	for i, t := range d.Tensors {
		m.Tensors[i] = Tensor{Buffer: a.Tensors[i], TargetDevice: t.TargetDevice, Metadata: t.Metadata}
	}
	return m
}

// PayloadDescriptor describes one payload. Length is in bytes.
type PayloadDescriptor struct {
	Length   int
	Metadata []byte
}

// TensorDescriptor describes one tensor. Length is in bytes.
type TensorDescriptor struct {
	Length       int
	SourceDevice device.Device
	TargetDevice device.Device // zero: the receiver chooses
	Metadata     []byte
}

// Allocation is the memory into which a message is read: one slice per payload
// and one buffer per tensor, of exactly the lengths in the descriptor and,
// where the sender named a target device, on that device.
type Allocation struct {
	Payloads [][]byte
	Tensors  []device.Buffer
}

// NewAllocation allocates host memory for everything that d describes, as much
// as the peer claims and Limits.MessageBytes allows. It fits only messages whose
// tensors may all go to cpu:0.
func NewAllocation(d *Descriptor) Allocation {
	a := Allocation{
		Payloads: make([][]byte, len(d.Payloads)),
		Tensors:  make([]device.Buffer, len(d.Tensors)),
	}
	for i, p := range d.Payloads {
		a.Payloads[i] = make([]byte, p.Length)
	}
	for i, t := range d.Tensors {
		a.Tensors[i] = device.Bytes(hugepage.Make(t.Length))
	}
	return a
}
