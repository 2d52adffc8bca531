package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// arrival is a message that came in. Its head is known, its body is read by receive.
// It is used again and again.
type arrival struct {
	head     head
	incoming *pipe.Incoming
	decoder  *codec.Decoder
	storages []*tensor.Storage
	memory   pipe.Allocation
	payload  []byte
	about    Message
	received bool
	spent    bool            // the message has been read or let go, and may be given back
	reading  *sync.WaitGroup // see readElsewhere
	err      error           // of receiving it
}

// arrivals hands out arrivals of one agent.
type arrivals struct {
	pool    sync.Pool
	alloc   tensor.Allocator
	devices *devices
}

func (p *arrivals) init(r *codec.Registry, limits codec.Limits, alloc tensor.Allocator, d *devices) {
	p.alloc, p.devices = alloc, d
	p.pool.New = func() any { return &arrival{decoder: codec.NewDecoder(r, limits)} }
}

func (p *arrivals) get(in *pipe.Incoming) (*arrival, error) {
	h, err := parseHead(in.Descriptor().Metadata)
	if err != nil {
		return nil, err
	}
	a := p.pool.Get().(*arrival)
	a.head, a.incoming = h, in
	return a, nil
}

// put takes back an arrival of which nothing is used any more, and the message.
func (p *arrivals) put(a *arrival) {
	a.decoder.Forget()
	if a.spent {
		a.incoming.Release()
	}
	clear(a.storages)
	clear(a.memory.Tensors)
	clear(a.memory.Payloads)
	a.head, a.incoming, a.payload, a.about = head{}, nil, nil, Message{}
	a.received, a.spent, a.err = false, false, nil
	p.pool.Put(a)
}

// drop lets a message go by that nobody wants.
func (p *arrivals) drop(a *arrival) {
	a.letGo()
	a.readDone()
	p.put(a)
}

// letGo lets the message go by, unless it has been read. That the pipe breaks meanwhile
// is told by its reader.
func (a *arrival) letGo() {
	a.spent = a.spent || a.incoming.Discard(context.Background()) == nil
}

// immediate reports whether the message is read best where it was found: what comes
// behind it has to wait for its bytes anyway.
func (a *arrival) immediate() bool {
	remote := func(t pipe.TensorDescriptor) bool { return t.TargetDevice != device.CPU() }
	return a.incoming.Inline() && !slices.ContainsFunc(a.incoming.Descriptor().Tensors, remote)
}

// receive reads the message, tensors into memory of the allocator, and lets values
// be decoded. The error matches ErrProtocol for what no agent sends, and ErrPanic where
// an allocator panicked, or ended the goroutine.
func (p *arrivals) receive(ctx context.Context, a *arrival) error {
	if a.received {
		return a.err
	}
	a.received, a.err = true, errGoexit // unless read returns
	defer a.readDone()
	a.err = guarded(func() error { return p.read(ctx, a) })
	return a.err
}

// readElsewhere notes that the message will be read, or dropped, by another goroutine,
// for which its pipe has to stay.
func (a *arrival) readElsewhere(reading *sync.WaitGroup) {
	reading.Add(1)
	a.reading = reading
}

func (a *arrival) readDone() {
	if a.reading != nil {
		a.reading.Done()
		a.reading = nil
	}
}

func (p *arrivals) read(ctx context.Context, a *arrival) error {
	// Without memory, or where ctx had ended before, nobody has taken the message yet.
	defer a.letGo()
	if err := p.allocate(a, a.incoming.Descriptor()); err != nil {
		return err
	}
	if err := a.incoming.Read(ctx, a.memory); err != nil {
		return err
	}
	a.spent = true
	body := a.head.body
	if a.head.flags&flagPayload != 0 {
		body = a.payload
	}
	if err := a.decoder.Reset(body); err != nil {
		return marked(ErrProtocol, err)
	}
	if err := a.match(); err != nil {
		return err
	}
	return a.decoder.Supply(a.storages)
}

// allocate makes memory for what d describes.
func (p *arrivals) allocate(a *arrival, d *pipe.Descriptor) error {
	a.storages, a.memory.Tensors, a.memory.Payloads = a.storages[:0], a.memory.Tensors[:0], a.memory.Payloads[:0]
	want := 0
	if a.head.flags&flagPayload != 0 {
		want = 1
	}
	if len(d.Payloads) != want {
		return fmt.Errorf("%w: %d payloads, want %d", ErrProtocol, len(d.Payloads), want)
	}
	if want == 1 {
		a.payload = make([]byte, d.Payloads[0].Length)
		a.memory.Payloads = append(a.memory.Payloads, a.payload)
	}
	for i := range d.Tensors {
		if err := p.allocateTensor(a, &d.Tensors[i]); err != nil {
			return err
		}
	}
	return nil
}

func (p *arrivals) allocateTensor(a *arrival, d *pipe.TensorDescriptor) error {
	s, err := p.devices.alloc(d.TargetDevice, d.Length, p.alloc)
	if err != nil {
		return err
	}
	buf, err := s.Buffer()
	if err != nil {
		return err
	}
	a.storages = append(a.storages, s)
	a.memory.Tensors = append(a.memory.Tensors, buf)
	return nil
}

// match holds what the body says of its tensors against those that came.
func (a *arrival) match() error {
	parts := a.decoder.Parts()
	if len(parts) != len(a.storages) {
		return fmt.Errorf("%w: %d tensors, the body tells of %d", ErrProtocol, len(a.storages), len(parts))
	}
	for i, part := range parts {
		if part.Bytes != a.storages[i].Len() {
			return fmt.Errorf("%w: tensor of %d bytes, the body tells of %d", ErrProtocol, a.storages[i].Len(), part.Bytes)
		}
	}
	return nil
}
