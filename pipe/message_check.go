package pipe

import (
	"cmp"
	"math"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Upper bounds for the encoded size of the parts of a descriptor, without metadata and device
// kinds. They also are the budget charge of a message without any bytes.
const (
	messageOverhead = 32
	payloadOverhead = 24
	tensorOverhead  = 48
)

// measure checks a message against the limits and the channels of the pipe and returns its size.
// Errors match ErrMessage. It does not check the message's deadline.
func (p *Pipe) measure(m *Message) (size messageSize, err error) {
	if m == nil {
		return size, messageError("no message")
	}
	l := &p.context.limits
	if len(m.Payloads) > l.MaxPayloads {
		return size, messageError("%w", limitError("number of payloads", uint64(len(m.Payloads)), uint64(l.MaxPayloads)))
	}
	if len(m.Tensors) > l.MaxTensors {
		return size, messageError("%w", limitError("number of tensors", uint64(len(m.Tensors)), uint64(l.MaxTensors)))
	}
	size.descriptor = messageOverhead + len(m.Metadata)
	for i := range m.Payloads {
		payload := &m.Payloads[i]
		size.add(payloadOverhead, payload.Metadata, len(payload.Data))
		if err := size.addCompressible(payload.Compression, len(payload.Data)); err != nil {
			return size, messageError("payload %d: %w", i, err)
		}
		if len(payload.Data) > l.PayloadBytes {
			return size, messageError("%w", limitError("payload", uint64(len(payload.Data)), uint64(l.PayloadBytes)))
		}
	}
	for i := range m.Tensors {
		t := &m.Tensors[i]
		if t.Buffer.Len() > l.TensorBytes {
			err = limitError("tensor", uint64(t.Buffer.Len()), uint64(l.TensorBytes))
		} else if t.TargetDevice.IsZero() {
			err = p.checkSource(t.Buffer.Device())
		} else {
			_, err = p.findChannel(t.Buffer.Device(), t.TargetDevice)
		}
		if err != nil {
			return size, messageError("tensor %d: %w", i, err)
		}
		size.add(tensorOverhead+len(t.Buffer.Device().Kind)+len(t.TargetDevice.Kind), t.Metadata, t.Buffer.Len())
		if err := size.addCompressible(t.Compression, t.Buffer.Len()); err != nil {
			return size, messageError("tensor %d: %w", i, err)
		}
	}
	return size, size.check(l)
}

// checkWireSizes returns an error that matches ErrMessage and ErrLimit if the peer cannot read the
// descriptor of m, whose size is at most descriptorSize, or if a part is larger than the transport
// or the part's channel can carry. Without this check the pipe would fail when m is sent. measure
// must have accepted m.
func (w *compatWriter) checkWireSizes(m *Message, descriptorSize int) error {
	if w.maxDescriptor > 0 && descriptorSize > w.maxDescriptor {
		var e compatEncoder
		if n := len(e.encodeDescriptor(m)); n > w.maxDescriptor {
			return messageError("%w", limitError("descriptor, which this peer reads at once,", uint64(n), uint64(w.maxDescriptor)))
		}
	}
	for i, p := range m.Payloads {
		if err := transport.CheckFrame(w.pipe.first, int64(len(p.Data))); err != nil {
			return messageError("payload %d: %w: %w", i, ErrLimit, err)
		}
	}
	for i := range m.Tensors {
		t := &m.Tensors[i]
		var err error
		if source := t.Buffer.Device(); !t.TargetDevice.IsZero() {
			err = w.pipe.channelsBetween(source, t.TargetDevice)[0].channel.fits(t.Buffer)
		} else {
			for pair, sized := range w.pipe.channelsByPair {
				if pair.local == source { // the receiver may choose this channel
					err = cmp.Or(err, sized[0].channel.fits(t.Buffer))
				}
			}
		}
		if err != nil {
			return messageError("tensor %d: %w: %w", i, ErrLimit, err)
		}
	}
	return nil
}

// tensorParts returns the number of tensors that are not empty.
func (m *Message) tensorParts() int {
	n := 0
	for _, t := range m.Tensors {
		if t.Buffer.Len() > 0 {
			n++
		}
	}
	return n
}

// messageSize has the sizes of a message in bytes. A sum that would overflow is math.MaxInt.
type messageSize struct {
	descriptor, data int     // an upper bound for the encoded descriptor; the payloads and tensors
	compressible     Traffic // parts for which compression is requested
}

// add adds the sizes of a part: data is the number of its bytes, and overhead bounds the size of
// its descriptor without metadata.
func (s *messageSize) add(overhead int, metadata []byte, data int) {
	s.descriptor = addSizes(s.descriptor, overhead+len(metadata))
	s.data = addSizes(s.data, data)
}

func (s *messageSize) check(l *Limits) error {
	if s.descriptor > l.DescriptorBytes {
		return messageError("%w", limitError("descriptor", uint64(s.descriptor), uint64(l.DescriptorBytes)))
	}
	if s.data > l.MessageBytes {
		return messageError("%w", limitError("message", uint64(s.data), uint64(l.MessageBytes)))
	}
	return nil
}

func (s *messageSize) total() int { return addSizes(s.descriptor, s.data) }

// addSizes returns a+b, at most math.MaxInt.
func addSizes(a, b int) int {
	if a > math.MaxInt-b {
		return math.MaxInt
	}
	return a + b
}

// copyTo copies src, host memory, to dst, memory of a device, in the order of dst's stream. The copy
// may still read src after copyTo has returned. If Options.Kinds lacks the kind of the device the error
// matches ErrAllocation; otherwise it is that of the kind.
func (c *Context) copyTo(dst, src device.Buffer) error {
	k, ok := find(c.opts.Kinds, func(k device.Kind) bool { return k.Name() == dst.Device().Kind })
	if !ok {
		return allocationError("Options.Kinds lacks the kind of device %s, which a small tensor needs", dst.Device())
	}
	return k.Copy(dst, src)
}

// check returns an error that matches ErrAllocation unless a fits the message: the number and sizes
// of the parts, the target devices that the sender has set, and for each tensor a channel to its
// device.
func (in *Incoming) check(a Allocation) error {
	d := &in.desc
	if len(a.Payloads) != len(d.Payloads) || len(a.Tensors) != len(d.Tensors) {
		return allocationError("memory for %d payloads and %d tensors, the message has %d and %d",
			len(a.Payloads), len(a.Tensors), len(d.Payloads), len(d.Tensors))
	}
	for k, p := range a.Payloads {
		if len(p) != d.Payloads[k].Length {
			return allocationError("payload %d: %d bytes for %d", k, len(p), d.Payloads[k].Length)
		}
	}
	for k, b := range a.Tensors {
		t := &d.Tensors[k]
		if b.Len() != t.Length {
			return allocationError("tensor %d: %d bytes for %d", k, b.Len(), t.Length)
		}
		if !t.TargetDevice.IsZero() && b.Device() != t.TargetDevice {
			return allocationError("tensor %d: it is on %s, the sender named %s", k, b.Device(), t.TargetDevice)
		}
		if _, err := in.pipe.findChannel(b.Device(), t.SourceDevice); err != nil {
			return allocationError("tensor %d: %w", k, err)
		}
	}
	return nil
}
