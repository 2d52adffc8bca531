package pipe

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/budget"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// poll finds nothing: connections of this dialect are read by goroutines.
func (p *compat) poll(context.Context) *Incoming { return nil }

func (p *compat) next(ctx context.Context) (*Incoming, error) {
	select {
	case in, ok := <-p.in.ready:
		if !ok {
			return nil, p.errorFor("next", "", p.in.endError())
		}
		return &in.Incoming, nil
	case <-p.closing:
		return nil, p.errorFor("next", "", ErrClosed)
	case <-ctx.Done():
		return nil, p.errorFor("next", "", context.Cause(ctx))
	}
}

// inbox is the reading half of a pipe. Its run loop always has a read posted
// on the descriptor connection, unless the application is behind by more than
// the read-ahead limits; that is how an idle pipe notices that its peer is
// gone.
type inbox struct {
	pipe  *compat
	ready chan *arrival  // what Next returns; closed at the end
	held  *budget.Budget // bytes taken in ahead of the application
	desc  wire.Descriptor
	deaf  bool // no more tensors will come; belongs to the message whose turn it is

	mu     sync.Mutex
	unread fifo.Queue[*arrival] // messages whose Read or Discard has not started
	at     progress
	end    error // why there are no more messages

	traffic traffic
}

// progress is how far the run loop has come.
type progress struct {
	received  uint64 // messages
	listening bool   // it waits for the peer, not for the application
	ended     bool   // the peer has closed the connection
}

func (i *inbox) init(p *compat) {
	i.pipe = p
	i.ready = make(chan *arrival, p.context.limits.ReadAheadMessages)
	i.held = budget.New(p.context.limits.ReadAheadBytes)
}

// run reads descriptors and payloads until the connection ends.
func (i *inbox) run() {
	last, err := i.receiveAll()
	i.finish(err)
	close(i.ready)
	if i.progress().ended {
		i.pipe.loops.Go(func() { i.endRecvs(last) })
		i.pipe.answerClose()
	}
}

// endRecvs tells the channels that all tensors there ever will be wait for their
// bytes. A peer that died before it could announce one that it had sent has ended them too.
func (i *inbox) endRecvs(last <-chan struct{}) {
	select {
	case <-last:
	case <-i.pipe.down:
		return
	}
	for _, l := range i.pipe.channels {
		if e, ok := l.channel.(channel.Ender); ok {
			e.EndRecv()
		}
	}
}

// receiveAll takes in messages until the connection ends. When memory has been given for
// the last one, that channel is closed.
func (i *inbox) receiveAll() (last <-chan struct{}, _ error) {
	turn := make(chan struct{})
	close(turn)
	for {
		in, err := i.receive(turn)
		if err == nil {
			err = i.offer(in)
		}
		if err == nil {
			err = i.receivePayloads(in)
		}
		if err != nil {
			return turn, err
		}
		turn = in.started
	}
}

// A descriptor of many empty parts takes many times its bytes when it is decoded, but not
// more than mostParts beside them.
const (
	descriptorGrowth = 20
	mostParts        = (payloadHeld + tensorHeld) << 16
)

// receive reads the next descriptor.
func (i *inbox) receive(turn chan struct{}) (*arrival, error) {
	p := i.pipe
	i.listen(true)
	size, err := p.desc.NextFrame()
	i.listen(false)
	if err != nil {
		return nil, err
	}
	if limit := p.context.limits.DescriptorBytes; size > int64(limit) {
		return nil, protocolError("%w", limitError("descriptor", uint64(size), uint64(limit)))
	}
	in := &arrival{inbox: i, turn: turn, started: make(chan struct{}), memory: p.newCharge()}
	frame, err := readBody(p.desc, nil, int(size), &in.memory)
	if err != nil {
		return nil, err
	}
	if err := in.memory.grow(len(frame) + min(descriptorGrowth*len(frame), mostParts)); err != nil {
		return nil, err
	}
	if err := wire.DecodeDescriptor(frame, p.context.limits.wire(), &i.desc); err != nil {
		return nil, protocolError("descriptor: %w", err)
	}
	in.Incoming.pipe, in.of = p.Pipe, in
	err = in.describe(&i.desc)
	i.desc.Forget()
	if max(cap(i.desc.Payloads), cap(i.desc.Tensors)) > keptParts {
		i.desc = wire.Descriptor{}
	}
	if err != nil {
		return nil, err
	}
	in.held = len(frame) + 64*len(in.desc.Payloads) + 128*len(in.desc.Tensors)
	in.memory.shrink(len(frame) + payloadHeld*len(in.desc.Payloads) + tensorHeld*len(in.desc.Tensors))
	return in, nil
}

// offer puts a message where Next finds it, once the application has caught
// up far enough.
func (i *inbox) offer(in *arrival) error {
	p := i.pipe
	if !i.held.Acquire(context.Background(), p.down, in.held) {
		return p.Err()
	}
	if n := in.payloadBytes(); len(in.desc.Payloads) > 0 && n <= i.held.Size() && i.held.TryAcquire(n) {
		in.held += n
		in.ahead = make([][]byte, len(in.desc.Payloads))
		if err := in.memory.grow(in.memory.bytes + n); err != nil {
			return err
		}
	}
	i.mu.Lock()
	i.unread.Push(in)
	in.number = i.at.received
	i.at.received++
	i.mu.Unlock()
	if len(i.ready) == 0 && p.handOver(&in.Incoming) {
		return nil
	}
	select {
	case i.ready <- in:
		return nil
	case <-p.down:
		in.endBody(p.Err())
		return p.Err()
	}
}

// receivePayloads reads the payloads of a message: ahead of the application
// where they are small, else into the memory that it gives.
func (i *inbox) receivePayloads(in *arrival) error {
	if len(in.desc.Payloads) == 0 {
		return nil
	}
	err := midMessage(i.readPayloads(in))
	if err != nil {
		err = i.pipe.errorFor("read", i.pipe.desc.name, classify(err))
	}
	in.endBody(err)
	return err
}

func (i *inbox) readPayloads(in *arrival) error {
	p := i.pipe
	if in.ahead == nil {
		select {
		case <-in.started:
		case <-p.down:
			return p.Err()
		}
	}
	for k, d := range in.desc.Payloads {
		if err := expectFrame(p.desc, d.Length); err != nil {
			return err
		}
		if err := in.readPayload(k, d.Length); err != nil {
			return err
		}
	}
	return nil
}

// finish notes the end of the descriptor connection: an orderly one leaves the
// pipe up, so that what has arrived can be read.
func (i *inbox) finish(err error) {
	p := i.pipe
	orderly := errors.Is(err, io.EOF)
	end := classify(err)
	if orderly && !p.control.exists() {
		end = i.doubt(end)
	}
	end = p.errorFor("next", p.desc.name, p.control.explain(end))
	i.mu.Lock()
	i.end = end
	i.at.ended = orderly
	i.mu.Unlock()
	if orderly {
		p.out.finishUp(p.errorFor("write", p.desc.name, end))
		p.peerEnded(p.desc.name)
	} else {
		p.fail(end)
	}
}

// doubt asks whether a peer that cannot say goodbye, a C++ process, meant to
// close: not if messages to it were left in the middle.
func (i *inbox) doubt(end error) error {
	if !i.writesEnded() {
		end = classify(io.ErrUnexpectedEOF)
	}
	if cause := i.pipe.Err(); errors.Is(cause, ErrPeerLost) {
		return cause // the writes may not have heard of it yet
	}
	return cmp.Or(i.pipe.out.lost(), end)
}

// writesEnded reports whether the messages under way from this end are through,
// well or not, within a short time.
func (i *inbox) writesEnded() bool {
	t := time.NewTimer(goodbyeWait)
	defer t.Stop()
	idle := i.pipe.out.idle()
	select {
	case <-idle:
	case <-i.pipe.down:
	case <-t.C:
	}
	return isClosed(idle) || isClosed(i.pipe.down)
}

// endError is why there are no more messages: what ended the connection, or
// what took the pipe down and with it the connection.
func (i *inbox) endError() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.at.ended {
		return i.end
	}
	return cmp.Or(i.pipe.Err(), i.end)
}

// blame says why a reply could not be sent: where this end has answered the
// peer's close, that close is the reason.
func (i *inbox) blame(err error) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.at.ended && errors.Is(err, ErrClosed) {
		return i.end
	}
	return classify(err)
}

func (i *inbox) listen(on bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.at.listening = on
}

func (i *inbox) progress() progress {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.at
}

// oldest is the message whose turn to be read is next, nil if there is none.
func (i *inbox) oldest() *arrival {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.unread.Len() == 0 {
		return nil
	}
	return i.unread.Front()
}

// took notes that the oldest message is being read: its place in the line and
// its share of the read-ahead bytes are free.
func (i *inbox) took(in *arrival) {
	i.mu.Lock()
	i.unread.Pop()
	i.mu.Unlock()
	i.held.Release(in.held)
}

// drain discards what comes while the pipe is closing, so that the peer's
// writes end well and nothing unread resets the connections.
func (i *inbox) drain() {
	for i.drainOldest() {
		select {
		case _, ok := <-i.ready:
			if !ok {
				i.drainOldest()
				return
			}
		case <-i.pipe.down:
			return
		}
	}
}

// drainOldest discards what has come. It reports false if that took the pipe
// down.
func (i *inbox) drainOldest() bool {
	for in := i.oldest(); in != nil; in = i.oldest() {
		i.makeRoom() // or the run loop would wait with this very message in hand
		err := in.forgo(context.Background())
		switch {
		case err == nil:
		case errors.Is(err, ErrAlreadyRead):
			in.awaitStart()
		default:
			i.pipe.fail(err) // it cannot be discarded, or was cut off
			return false
		}
	}
	return true
}

// makeRoom empties the queue to Next, which returns nothing any more.
func (i *inbox) makeRoom() {
	for len(i.ready) > 0 {
		<-i.ready
	}
}

// awaitStart waits until whoever has claimed the message gives memory for it, or
// for long enough to find out that it was withdrawn at the last moment.
func (in *arrival) awaitStart() {
	t := time.NewTimer(10 * time.Millisecond)
	defer t.Stop()
	select {
	case <-in.started:
	case <-in.inbox.pipe.down:
	case <-t.C:
	}
}

// discardDevice chooses where to put a tensor that nobody wants.
func (i *inbox) discardDevice(t TensorDescriptor) device.Device {
	if !t.TargetDevice.IsZero() {
		return t.TargetDevice
	}
	if i.pipe.lanes[devicePair{device.CPU(), t.SourceDevice}] != nil {
		return device.CPU()
	}
	return i.pipe.arriving[t.SourceDevice]
}
