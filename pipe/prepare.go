package pipe

import (
	"math"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Upper bounds for what the parts of a descriptor take on the wire, beside
// metadata and device kinds; they also are what a message without any bytes
// costs of a budget.
const (
	messageOverhead = 32
	payloadOverhead = 24
	tensorOverhead  = 48
)

// prepare checks a message against the limits and the channels of the pipe.
func (o *outbox) prepare(m *Message) (*outgoing, error) {
	size, err := o.pipe.measure(m)
	if err == nil {
		err = o.checkWhole(m, size.descriptor)
	}
	if err == nil {
		err = o.checkFit(m)
	}
	if err == nil {
		err = m.checkDeadline()
	}
	if err != nil {
		return nil, err
	}
	o.pipe.plain.addMany(size.asked)
	op := &outgoing{out: o, msg: m, parts: 1 + m.tensorParts(), data: size.data, cost: size.total()}
	op.of, op.done = op, make(chan struct{})
	for i := range m.Tensors {
		if m.Tensors[i].TargetDevice.IsZero() {
			op.missing++
		}
	}
	return op, nil
}

// measure checks a message against the limits and the channels of the pipe and
// says how large it is.
func (p *Pipe) measure(m *Message) (size sizer, err error) {
	if m == nil {
		return size, messageError("no message")
	}
	l := &p.context.limits
	if len(m.Payloads) > l.Payloads {
		return size, messageError("%w", limitError("number of payloads", uint64(len(m.Payloads)), uint64(l.Payloads)))
	}
	if len(m.Tensors) > l.Tensors {
		return size, messageError("%w", limitError("number of tensors", uint64(len(m.Tensors)), uint64(l.Tensors)))
	}
	size.descriptor = messageOverhead + len(m.Metadata)
	for i := range m.Payloads {
		payload := &m.Payloads[i]
		size.add(payloadOverhead, payload.Metadata, len(payload.Data))
		if err := size.ask(payload.Compression, len(payload.Data)); err != nil {
			return size, messageError("payload %d: %w", i, err)
		}
		if len(payload.Data) > l.PayloadBytes {
			return size, messageError("%w", limitError("payload", uint64(len(payload.Data)), uint64(l.PayloadBytes)))
		}
	}
	for i := range m.Tensors {
		t := &m.Tensors[i]
		if err := p.checkTensor(t); err != nil {
			return size, messageError("tensor %d: %w", i, err)
		}
		size.add(tensorOverhead+len(t.Buffer.Device().Kind)+len(t.TargetDevice.Kind), t.Metadata, t.Buffer.Len())
		if err := size.ask(t.Compression, t.Buffer.Len()); err != nil {
			return size, messageError("tensor %d: %w", i, err)
		}
	}
	return size, size.check(l)
}

// checkWhole refuses a message whose description, of at most this size, is more
// than the peer takes in one piece, which it would not survive.
func (o *outbox) checkWhole(m *Message, atMost int) error {
	if o.whole == 0 || atMost <= o.whole {
		return nil
	}
	var e encoder
	if n := len(e.describe(m)); n > o.whole {
		return messageError("%w", limitError("descriptor, which this peer reads in one piece,", uint64(n), uint64(o.whole)))
	}
	return nil
}

// checkFit refuses a message with parts that have no place in the wire form, which is
// found out too late when they are sent: the pipe would not survive it.
func (o *outbox) checkFit(m *Message) error {
	for i, p := range m.Payloads {
		if err := transport.CheckFrame(o.pipe.first, int64(len(p.Data))); err != nil {
			return messageError("payload %d: %w: %w", i, ErrLimit, err)
		}
	}
	for i := range m.Tensors {
		if err := o.pipe.checkTensorFits(&m.Tensors[i]); err != nil {
			return messageError("tensor %d: %w: %w", i, ErrLimit, err)
		}
	}
	return nil
}

// checkTensorFits asks the channel of a tensor, or, where the receiver chooses the
// target, each that the tensor may come to.
func (p *compat) checkTensorFits(t *Tensor) error {
	source := t.Buffer.Device()
	if !t.TargetDevice.IsZero() {
		return p.between(source, t.TargetDevice)[0].lane.fits(t.Buffer)
	}
	for pair, ways := range p.lanes {
		if pair.local != source {
			continue
		}
		if err := ways[0].lane.fits(t.Buffer); err != nil {
			return err
		}
	}
	return nil
}

// checkTensor finds out before anything is sent whether a tensor can travel.
func (p *Pipe) checkTensor(t *Tensor) error {
	source := t.Buffer.Device()
	if limit := p.context.limits.TensorBytes; t.Buffer.Len() > limit {
		return limitError("tensor", uint64(t.Buffer.Len()), uint64(limit))
	}
	if t.TargetDevice.IsZero() {
		return p.checkSource(source)
	}
	_, err := p.lane(source, t.TargetDevice)
	return err
}

// nameTargets combines the targets that the sender named with those that the
// receiver chose.
func (p *compat) nameTargets(tensors []Tensor, chosen []device.Device) ([]device.Device, error) {
	named := make([]device.Device, len(tensors))
	for i, t := range tensors {
		named[i] = t.TargetDevice
		if t.TargetDevice.IsZero() {
			named[i], chosen = chosen[0], chosen[1:]
		}
		if _, err := p.lane(t.Buffer.Device(), named[i]); err != nil {
			return nil, err
		}
	}
	return named, nil
}

// tensorParts is the number of tensors that have bytes to send.
func (m *Message) tensorParts() int {
	n := 0
	for _, t := range m.Tensors {
		if t.Buffer.Len() > 0 {
			n++
		}
	}
	return n
}

// sizer adds up what a message takes. Sums stay at the largest int rather than
// wrap around.
type sizer struct {
	descriptor, data int
	asked            Traffic // parts that are to be compressed
}

func (s *sizer) add(overhead int, metadata []byte, data int) {
	s.descriptor = addSizes(s.descriptor, overhead+len(metadata))
	s.data = addSizes(s.data, data)
}

func (s *sizer) check(l *Limits) error {
	if s.descriptor > l.DescriptorBytes {
		return messageError("%w", limitError("descriptor", uint64(s.descriptor), uint64(l.DescriptorBytes)))
	}
	if s.data > l.MessageBytes {
		return messageError("%w", limitError("message", uint64(s.data), uint64(l.MessageBytes)))
	}
	return nil
}

func (s *sizer) total() int { return addSizes(s.descriptor, s.data) }

func addSizes(a, b int) int {
	if a > math.MaxInt-b {
		return math.MaxInt
	}
	return a + b
}

// encoder turns messages into frames of the descriptor connection. It keeps
// its memory from message to message.
type encoder struct {
	desc   wire.Descriptor
	buf    []byte
	parts  [][]byte
	frames []transport.Frame
}

// encode returns the descriptor's frame and one frame per payload. They are
// valid until clear.
func (e *encoder) encode(op *outgoing) []transport.Frame {
	m := op.msg
	e.parts = append(e.parts[:0], e.describe(m))
	for _, p := range m.Payloads {
		e.parts = append(e.parts, p.Data)
	}
	e.frames = e.frames[:0]
	for i := range e.parts {
		e.frames = append(e.frames, e.parts[i:i+1])
	}
	return e.frames
}

// describe returns the descriptor's frame, valid until the next.
func (e *encoder) describe(m *Message) []byte {
	e.desc.Metadata = m.Metadata
	e.desc.Payloads, e.desc.Tensors = e.desc.Payloads[:0], e.desc.Tensors[:0]
	for _, p := range m.Payloads {
		e.desc.Payloads = append(e.desc.Payloads, wire.PayloadDescriptor{Length: uint64(len(p.Data)), Metadata: p.Metadata})
	}
	for _, t := range m.Tensors {
		e.desc.Tensors = append(e.desc.Tensors, wire.TensorDescriptor{
			Length:       uint64(t.Buffer.Len()),
			SourceDevice: t.Buffer.Device(),
			TargetDevice: t.TargetDevice,
			Metadata:     t.Metadata,
		})
	}
	e.buf = e.desc.Append(e.buf[:0])
	return e.buf
}

// clear lets go of the message's memory.
func (e *encoder) clear() {
	e.desc.Forget()
	clear(e.parts)
	clear(e.frames)
}
