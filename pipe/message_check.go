package pipe

import (
	"cmp"
	"context"
	"math"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/compress"
	"github.com/tensorpipe-go/tensorpipe/internal/staging"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Upper bounds for the encoded size of the parts of a descriptor, without metadata and device
// kinds. They also are the budget charge of a message without any bytes.
const (
	messageOverhead = 32
	payloadOverhead = 24
	tensorOverhead  = 48
)

// measure checks m against the limits and the channels of the pipe and returns its size. If m is
// nil or does not pass the check, the error matches ErrMessage and size has no meaning. measure
// checks neither the message's deadline nor the bounds that only one dialect has, such as those of
// checkWireSizes.
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
// descriptor of m, whose size is at most descriptorSize, if the transport cannot carry a payload,
// or if a channel that may have to carry a tensor cannot send the tensor. measure must have
// accepted m.
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

// add adds the sizes of one part of a message to s. data is the length of the part, and counts in
// s.data. Its metadata counts in s.descriptor, and so does overhead, an upper bound for the other
// bytes that describe the part.
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

// addSizes returns a+b, or math.MaxInt if the sum is larger. a and b must not be negative.
func addSizes(a, b int) int {
	if a > math.MaxInt-b {
		return math.MaxInt
	}
	return a + b
}

// copyTo copies src, which is host memory, to dst, which is memory of a device, in the order of
// dst's stream. The copy may still read src after copyTo has returned. The error is that of kindOf,
// or of the kind's Copy.
func (c *Context) copyTo(dst, src device.Buffer) error {
	k, err := c.kindOf(dst)
	if err != nil {
		return err
	}
	return k.Copy(dst, src)
}

// kindOf returns the kind of the device on which b is. If Options.Kinds lacks it, the error matches
// ErrAllocation.
func (c *Context) kindOf(b device.Buffer) (device.Kind, error) {
	k, ok := find(c.opts.Kinds, func(k device.Kind) bool { return k.Name() == b.Device().Kind })
	if !ok {
		return nil, allocationError("Options.Kinds lacks the kind of device %s, which a small tensor needs", b.Device())
	}
	return k, nil
}

// stage returns the receipt of the message's tensors into a, some of which are host memory with a
// stream. The error is that of await, which is called as [staging.Budget.Begin] states, or of a
// stream.
func (in *Incoming) stage(a Allocation, await func(device.Event) error) (*staging.Receive, error) {
	c := in.pipe.context
	return c.staging.Begin(a.Tensors, c.opts.Kinds, await)
}

// awaitEvent blocks until the work before ready is done, and returns its error. It ends earlier with
// ctx, whose cause it returns, and with stop or the pipe, with the error of the pipe if that has ended.
func (p *Pipe) awaitEvent(ctx context.Context, ready device.Event, stop <-chan struct{}) error {
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-stop:
		case <-p.down:
		case <-limited.Done():
		}
		cancel()
	}()
	err := ready.Synchronize(limited)
	switch {
	case err == nil || limited.Err() == nil:
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return cmp.Or(p.Err(), err)
}

// checkMemory returns nil if the inline and the compressed tensors of the message can be copied to
// the buffers that a has for them. Otherwise the error matches ErrAllocation: the host cannot
// address the memory for a compressed tensor, or Options.Kinds lacks the kind of a device.
func (in *nativeIncoming) checkMemory(a Allocation) error {
	for k := range in.parts.Tensors {
		part, b := &in.parts.Tensors[k], a.Tensors[k]
		if b.IsHost() || part.Length == 0 {
			continue
		}
		if part.Codec != compress.None {
			return allocationError("tensor %d: it is compressed, and the host cannot address the memory", k)
		}
		if part.Inline {
			if _, err := in.Incoming.pipe.context.kindOf(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// check returns nil if a fits the message: it has memory of the right size for each part, each
// tensor with a target device has a buffer on that device, and there is a channel from the source
// of each tensor to the device of its buffer. Otherwise the error matches ErrAllocation.
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
