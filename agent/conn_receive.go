package agent

import (
	"context"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// inMessage is a message that was received. Its head is parsed at once; receive reads its
// body and its tensors. It is reused.
type inMessage struct {
	head       wire.Head
	incoming   *pipe.Incoming
	inlinePart int // of the conn
	decoder    *codec.Decoder
	storages   []*tensor.Storage // of the tensors, from the allocator
	memory     pipe.Allocation   // the same memory, for the pipe
	streams    []device.Stream   // of the tensors, one for each device
	payload    []byte            // the body, if it is not part of the head's metadata
	dst        *destination      // nil if the application does not choose the memory of the tensors
	placed     *placement        // the chosen memory, nil before that
	view       Message
	ends       messageEnds     // of a reply; those of a request are in the Request
	received   bool            // receive was called
	err        error           // its result
	consumed   bool            // the message was read or discarded: incoming may be released
	readers    *sync.WaitGroup // of the conn, while another goroutine is to read the message
}

// inMessages is the pool of the inMessages of one agent.
type inMessages struct {
	pool    sync.Pool
	alloc   tensor.Allocator
	devices *devices
}

// get parses the head of a message that a pipe has received and returns the message as an inMessage of
// the pool. inlinePart is that of the conn. The inMessage owns incoming; the caller returns the
// inMessage with put or
// drop. The error matches ErrProtocol; incoming then remains the caller's.
func (p *inMessages) get(incoming *pipe.Incoming, inlinePart int) (*inMessage, error) {
	h, err := wire.ParseHead(incoming.Descriptor().Metadata)
	if err != nil {
		return nil, err
	}
	in := p.pool.Get().(*inMessage)
	in.head, in.incoming, in.inlinePart = h, incoming, inlinePart
	return in, nil
}

// put returns a message to the pool, and releases the pipe's message if it was read or discarded.
// The payload and the head of the message must not be used any more; the storages of its tensors
// may be used.
func (p *inMessages) put(in *inMessage) {
	in.decoder.Forget()
	if in.consumed {
		in.incoming.Release()
	}
	clear(in.storages)
	clear(in.memory.Tensors)
	clear(in.memory.Payloads)
	p.devices.pool.Put(in.streams...)
	clear(in.streams)
	in.streams = in.streams[:0]
	in.head, in.incoming, in.payload, in.view = wire.Head{}, nil, nil, Message{}
	in.dst, in.placed = nil, nil
	in.received, in.consumed, in.err = false, false, nil
	p.pool.Put(in)
}

// drop discards in, a message whose values will not be decoded, and returns it to the pool. in must
// not be used after that. The pipe skips the bytes of the message unless they were read.
func (p *inMessages) drop(in *inMessage) {
	in.discard()
	in.readDone()
	p.put(in)
}

// discard makes the pipe skip the message, unless it was read. It ignores errors of the
// pipe, which the read loop gets as well.
func (in *inMessage) discard() {
	in.consumed = in.consumed || in.incoming.Discard(context.Background()) == nil
}

// isInline reports whether the whole message is carried within the pipe's stream, no part is larger than
// inlinePart, and its tensors are for host memory. The leader reads such a message itself, since
// the next message comes after it anyway. An answer of the pipe with larger parts is read by the
// goroutine that waits for it, whose context ends the read.
func (in *inMessage) isInline() bool {
	if !in.incoming.Inline() {
		return false
	}
	d := in.incoming.Descriptor()
	for _, p := range d.Payloads {
		if p.Length > in.inlinePart {
			return false
		}
	}
	for _, t := range d.Tensors {
		if t.TargetDevice != device.CPU() || t.Length > in.inlinePart {
			return false
		}
	}
	return true
}

// deferRead records that another goroutine will read or drop the message. It adds 1 to readers, the
// counter for which the connection waits before it closes the pipe; reading or dropping the message
// subtracts it.
func (in *inMessage) deferRead(readers *sync.WaitGroup) {
	readers.Add(1)
	in.readers = readers
}

func (in *inMessage) readDone() {
	if in.readers != nil {
		in.readers.Done()
		in.readers = nil
	}
}

// receive reads the body of a message, and its tensors to memory of the allocator or of in.dst, so
// that values can be decoded. After an error the message has been discarded. A second call returns
// the error of the first. The error matches ErrProtocol for a message that no agent sends, and
// ErrPanic if an allocator or a PlaceFunc panicked or ended the goroutine. It is a *FitError if the
// chosen memory does not fit. Otherwise it is that of the allocator, the PlaceFunc, the device, the
// pipe or ctx.
func (p *inMessages) receive(ctx context.Context, in *inMessage) error {
	if in.received {
		return in.err
	}
	in.received, in.err = true, errGoexit // unless read returns
	defer in.readDone()
	in.err = catchPanic(func() error { return p.read(ctx, in) })
	return in.err
}

// read implements receive. A body that has come with the head is parsed, and memory for the tensors
// is chosen, before elements are received. A body that is a payload comes together with the
// elements, which are then copied to the memory that is chosen.
func (p *inMessages) read(ctx context.Context, in *inMessage) error {
	defer in.discard() // without memory, or if ctx ended early, the pipe still has the message
	d := in.incoming.Descriptor()
	if in.isBatch() {
		return in.readBatch(ctx, d)
	}
	if err := in.allocatePayload(d); err != nil {
		return err
	}
	if in.payload == nil {
		if err := in.parseBody(in.head.Body, d); err != nil {
			return err
		}
	}
	if err := p.allocate(in, d); err != nil {
		return err
	}
	if err := in.dst.write(func() error { return in.incoming.Read(ctx, in.memory) }); err != nil {
		return err
	}
	in.consumed = true
	if in.payload != nil {
		if err := in.parseBody(in.payload, d); err != nil {
			return err
		}
	}
	if in.placed != nil {
		if err := in.dst.write(in.copyElsewhere); err != nil {
			return err
		}
	}
	return in.decoder.Supply(in.storages)
}

// readBatch implements receive for a batch of values of a stream, which the receiver of the stream
// decodes. d describes it. The error matches ErrProtocol for a batch with payloads or tensors, or is
// that of the pipe.
func (in *inMessage) readBatch(ctx context.Context, d *pipe.Descriptor) error {
	if n := len(d.Payloads) + len(d.Tensors); n > 0 {
		return fmt.Errorf("%w: a batch with %d payloads and tensors", ErrProtocol, n)
	}
	if err := in.incoming.Read(ctx, pipe.Allocation{}); err != nil {
		return err
	}
	in.consumed = true
	return nil
}

// allocatePayload supplies in with memory for the payload that d describes, if the body of the
// message is a payload. The error, if the number of payloads is wrong, matches ErrProtocol.
func (in *inMessage) allocatePayload(d *pipe.Descriptor) error {
	want := 0
	if in.head.Flags&wire.FlagPayload != 0 {
		want = 1
	}
	if len(d.Payloads) != want {
		return fmt.Errorf("%w: %d payloads, want %d", ErrProtocol, len(d.Payloads), want)
	}
	in.memory.Payloads = in.memory.Payloads[:0]
	if want == 1 {
		in.payload = make([]byte, d.Payloads[0].Length)
		in.memory.Payloads = append(in.memory.Payloads, in.payload)
	}
	return nil
}

// parseBody makes the decoder decode the body of the message, compares the tensors that the body
// describes with those of d, and lets the destination, if there is one, choose memory for them. The
// decoder shares the memory of body. The error matches ErrProtocol for a body that no agent sends,
// or is that of place.
func (in *inMessage) parseBody(body []byte, d *pipe.Descriptor) error {
	if err := in.decoder.Reset(body); err != nil {
		return withKind(ErrProtocol, err)
	}
	err := in.checkTensors(len(d.Tensors), func(i int) int { return d.Tensors[i].Length })
	if err != nil || in.dst == nil {
		return err
	}
	return in.place(d)
}

// checkTensors compares the tensors that the body describes with those that the message has: n
// tensors, the i-th of size(i) bytes. It returns nil if the numbers and all sizes are equal, and
// otherwise an error that matches ErrProtocol.
func (in *inMessage) checkTensors(n int, size func(i int) int) error {
	parts := in.decoder.Parts()
	if len(parts) != n {
		return fmt.Errorf("%w: %d tensors, the body describes %d", ErrProtocol, n, len(parts))
	}
	for i, part := range parts {
		if part.Bytes != size(i) {
			return fmt.Errorf("%w: tensor of %d bytes, the body describes %d", ErrProtocol, size(i), part.Bytes)
		}
	}
	return nil
}

// allocate supplies in with memory for the tensors that d describes: a part that is received in
// place gets the memory of the chosen tensors; any other part gets memory of the allocator or the
// device, in a storage for the decoder. The error is that of the allocator, the device or a tensor.
func (p *inMessages) allocate(in *inMessage, d *pipe.Descriptor) error {
	in.storages, in.memory.Tensors = in.storages[:0], in.memory.Tensors[:0]
	for i := range d.Tensors {
		var s *tensor.Storage
		var buf device.Buffer
		var err error
		if in.placed != nil && in.placed.inPlace[i] {
			buf, err = in.placed.buffer(i, d.Tensors[i].Length, p.alloc)
		} else if s, err = p.devices.alloc(in, d.Tensors[i].TargetDevice, d.Tensors[i].Length, p.alloc); err == nil {
			buf, err = s.Buffer()
		}
		if err != nil {
			return err
		}
		in.storages = append(in.storages, s)
		in.memory.Tensors = append(in.memory.Tensors, buf)
	}
	return nil
}
