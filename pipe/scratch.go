package pipe

import (
	"fmt"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// describe takes over a descriptor of the peer, once it has been checked
// against the limits and the channels of the pipe. Metadata keeps pointing
// into the frame it came in.
func (in *arrival) describe(d *wire.Descriptor) error {
	limits := &in.inbox.pipe.context.limits
	in.desc.Metadata = d.Metadata
	if n := len(d.Payloads); n > 0 {
		in.desc.Payloads = make([]PayloadDescriptor, n)
		in.body = make(chan struct{})
	}
	for k, p := range d.Payloads {
		if p.Length > uint64(limits.PayloadBytes) {
			return protocolError("%w", limitError("payload", p.Length, uint64(limits.PayloadBytes)))
		}
		in.desc.Payloads[k] = PayloadDescriptor{Length: int(p.Length), Metadata: p.Metadata}
	}
	if n := len(d.Tensors); n > 0 {
		in.desc.Tensors = make([]TensorDescriptor, n)
	}
	for k, t := range d.Tensors {
		if t.Length > uint64(limits.TensorBytes) {
			return protocolError("%w", limitError("tensor", t.Length, uint64(limits.TensorBytes)))
		}
		in.desc.Tensors[k] = TensorDescriptor{
			Length:       int(t.Length),
			SourceDevice: t.SourceDevice,
			TargetDevice: t.TargetDevice,
			Metadata:     t.Metadata,
		}
		if err := in.inbox.pipe.checkArrival(&in.desc.Tensors[k]); err != nil {
			return protocolError("tensor %d: %w", k, err)
		}
	}
	if n := in.desc.Bytes(); n > limits.MessageBytes {
		return protocolError("%w", limitError("message", uint64(n), uint64(limits.MessageBytes)))
	}
	return nil
}

func (in *arrival) payloadBytes() int {
	n := 0
	for _, p := range in.desc.Payloads {
		n = addSizes(n, p.Length)
	}
	return n
}

// scratchSize is the memory that discarding takes: a payload, or all host
// tensors that a channel brings for one message.
const scratchSize = 512 << 10

// scratch makes an allocation for a message that nobody wants. The peer may
// have announced more than this machine has, so the memory of host tensors is
// one small piece for each channel, used over and over: channels receive one
// tensor after the other, or need no memory for that.
func (in *arrival) scratch() (Allocation, error) {
	a := Allocation{Tensors: make([]device.Buffer, len(in.desc.Tensors))}
	pieces := map[*lane][]byte{}
	for k, t := range in.desc.Tensors {
		d := in.inbox.discardDevice(t)
		if d == device.CPU() {
			l := in.inbox.pipe.laneFor(d, t.SourceDevice, t.Length)
			if _, able := l.channel.(channel.Discarder); able {
				a.Tensors[k] = device.Bytes(nil)
				continue
			}
			pieces[l] = slices.Grow(pieces[l], min(t.Length, scratchSize))
			a.Tensors[k] = scratchBuffer(pieces[l], t.Length)
			continue
		}
		b, err := in.inbox.pipe.context.alloc(d, t.Length)
		if err != nil {
			return a, allocationError("discard tensor %d: %w", k, err)
		}
		a.Tensors[k] = b
	}
	return a, nil
}

// take receives the next tensor of n bytes of the compatible dialect into b. Where that
// has no memory, see scratch, they are thrown away.
func (l *lane) take(b device.Buffer, n int, done func(error)) {
	id := l.nextRecv
	l.nextRecv++
	if d, able := l.channel.(channel.Discarder); able && b.Len() == 0 {
		d.Discard(id, n, done)
		return
	}
	l.channel.Recv(id, b, done)
}

// scratchBuffer makes a buffer of n bytes from the capacity of piece.
func scratchBuffer(piece []byte, n int) device.Buffer {
	if n <= cap(piece) {
		return device.Bytes(piece[:n])
	}
	segments := make([][]byte, 0, n/cap(piece)+1)
	for ; n > 0; n -= len(piece) {
		piece = piece[:min(n, cap(piece))]
		segments = append(segments, piece)
	}
	return device.Host(segments...)
}

// alloc asks the registered kind for memory on d.
func (c *Context) alloc(d device.Device, n int) (device.Buffer, error) {
	for _, k := range c.opts.Kinds {
		if k.Name() == d.Kind {
			return k.Alloc(d, n, nil)
		}
	}
	return device.Buffer{}, fmt.Errorf("no kind for device %s among the options", d)
}

// discardBody reads the announced frame of size bytes and forgets it.
func discardBody(conn transport.Conn, size int) error {
	piece := make([]byte, min(size, scratchSize))
	for size > 0 {
		piece = piece[:min(size, len(piece))]
		if err := conn.ReadBody(piece); err != nil {
			return err
		}
		size -= len(piece)
	}
	return nil
}
