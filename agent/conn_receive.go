package agent

import (
	"context"
	"fmt"
	"slices"
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
	head     wire.Head
	incoming *pipe.Incoming
	decoder  *codec.Decoder
	storages []*tensor.Storage // of the tensors, from the allocator
	memory   pipe.Allocation   // the same memory, for the pipe
	payload  []byte            // the body, if it is not part of the head's metadata
	view     Message
	received bool            // receive was called
	err      error           // its result
	consumed bool            // the message was read or discarded: incoming may be released
	readers  *sync.WaitGroup // of the conn, while another goroutine is to read the message
}

// inMessages is the pool of the inMessages of one agent.
type inMessages struct {
	pool    sync.Pool
	alloc   tensor.Allocator
	devices *devices
}

// get parses the head of a message that the pipe has received and returns it as an inMessage of
// the pool, which the caller returns with put or drop. The error matches ErrProtocol; incoming
// then remains the caller's.
func (p *inMessages) get(incoming *pipe.Incoming) (*inMessage, error) {
	h, err := wire.ParseHead(incoming.Descriptor().Metadata)
	if err != nil {
		return nil, err
	}
	in := p.pool.Get().(*inMessage)
	in.head, in.incoming = h, incoming
	return in, nil
}

// put returns a message to the pool. Its payload and its head must not be used any more;
// the storages of its tensors may be.
func (p *inMessages) put(in *inMessage) {
	in.decoder.Forget()
	if in.consumed {
		in.incoming.Release()
	}
	clear(in.storages)
	clear(in.memory.Tensors)
	clear(in.memory.Payloads)
	in.head, in.incoming, in.payload, in.view = wire.Head{}, nil, nil, Message{}
	in.received, in.consumed, in.err = false, false, nil
	p.pool.Put(in)
}

// drop discards a message whose values will not be decoded: the pipe skips it, and it returns to
// the pool. It must not be used after that.
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

// isInline reports whether the whole message is carried within the pipe's stream and its tensors
// are for host memory. The leader reads such a message itself, since the next message comes after
// it anyway.
func (in *inMessage) isInline() bool {
	remote := func(t pipe.TensorDescriptor) bool { return t.TargetDevice != device.CPU() }
	return in.incoming.Inline() && !slices.ContainsFunc(in.incoming.Descriptor().Tensors, remote)
}

// deferRead notes that another goroutine will read or drop the message. readers is that of the
// conn, which waits for it before it closes the pipe.
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

// receive reads the body of a message, and its tensors to memory of the allocator, so that values
// can be decoded. A second call returns the error of the first. The error matches ErrProtocol for
// a message that no agent sends, ErrPanic if an allocator panicked or ended the goroutine, or is
// that of the allocator, the pipe or ctx.
func (p *inMessages) receive(ctx context.Context, in *inMessage) error {
	if in.received {
		return in.err
	}
	in.received, in.err = true, errGoexit // unless read returns
	defer in.readDone()
	in.err = catchPanic(func() error { return p.read(ctx, in) })
	return in.err
}

func (p *inMessages) read(ctx context.Context, in *inMessage) error {
	defer in.discard() // without memory, or if ctx ended early, the pipe still has the message
	if err := p.allocate(in, in.incoming.Descriptor()); err != nil {
		return err
	}
	if err := in.incoming.Read(ctx, in.memory); err != nil {
		return err
	}
	in.consumed = true
	body := in.head.Body
	if in.head.Flags&wire.FlagPayload != 0 {
		body = in.payload
	}
	if err := in.decoder.Reset(body); err != nil {
		return withKind(ErrProtocol, err)
	}
	if err := in.checkTensors(); err != nil {
		return err
	}
	return in.decoder.Supply(in.storages)
}

// allocate supplies in with memory for the payload and the tensors that d describes. The error
// matches ErrProtocol if the number of payloads is wrong, or is that of the allocator or the
// device.
func (p *inMessages) allocate(in *inMessage, d *pipe.Descriptor) error {
	in.storages, in.memory.Tensors, in.memory.Payloads = in.storages[:0], in.memory.Tensors[:0], in.memory.Payloads[:0]
	want := 0
	if in.head.Flags&wire.FlagPayload != 0 {
		want = 1
	}
	if len(d.Payloads) != want {
		return fmt.Errorf("%w: %d payloads, want %d", ErrProtocol, len(d.Payloads), want)
	}
	if want == 1 {
		in.payload = make([]byte, d.Payloads[0].Length)
		in.memory.Payloads = append(in.memory.Payloads, in.payload)
	}
	for i := range d.Tensors {
		s, err := p.devices.alloc(d.Tensors[i].TargetDevice, d.Tensors[i].Length, p.alloc)
		if err != nil {
			return err
		}
		buf, err := s.Buffer()
		if err != nil {
			return err
		}
		in.storages = append(in.storages, s)
		in.memory.Tensors = append(in.memory.Tensors, buf)
	}
	return nil
}

// checkTensors compares the tensors that the body describes with those of the message. The error,
// if their number or a size differs, matches ErrProtocol.
func (in *inMessage) checkTensors() error {
	parts := in.decoder.Parts()
	if len(parts) != len(in.storages) {
		return fmt.Errorf("%w: %d tensors, the body describes %d", ErrProtocol, len(in.storages), len(parts))
	}
	for i, part := range parts {
		if part.Bytes != in.storages[i].Len() {
			return fmt.Errorf("%w: tensor of %d bytes, the body describes %d", ErrProtocol, in.storages[i].Len(), part.Bytes)
		}
	}
	return nil
}
