package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// outbox is the writing half of a pipe. Messages wait in queue until the run
// loop takes them. From then on they are in started until all their parts are
// through, and complete in order. Their tensors wait in unsent until the
// target devices are known, and go to the channels in the order of messages.
type outbox struct {
	pipe  *compat
	room  room
	whole int           // how large a description the peer survives, 0 for any
	wake  chan struct{} // has a token when the run loop should look again

	refused chan struct{} // closed with refusal
	halted  chan struct{} // closed with stopped

	mu      sync.Mutex
	count   uint64 // messages started
	queue   fifo.Queue[*outgoing]
	started fifo.Queue[*outgoing]
	unsent  fifo.Queue[*outgoing]
	asking  fifo.Queue[*outgoing] // those of unsent that wait for a reply
	refusal error                 // why new messages are refused
	stopped error                 // why messages under way fail
	silent  bool                  // the peer chooses no more targets
	loss    error                 // of the first message that the peer's loss failed
	flushed chan struct{}         // made by idle, closed when all are complete

	traffic traffic
}

func (o *outbox) init(p *compat) {
	o.pipe = p
	o.room = newRoom(p.context)
	if c, ok := p.first.(transport.Whole); ok {
		o.whole = c.LargestWhole()
	}
	o.wake = make(chan struct{}, 1)
	o.refused = make(chan struct{})
	o.halted = make(chan struct{})
}

// enqueue puts a message in line, once there is room for it.
func (o *outbox) enqueue(ctx context.Context, m *Message) (*outgoing, error) {
	if err := o.pipe.Err(); err != nil {
		return nil, o.pipe.errorFor("write", "", err)
	}
	op, err := o.prepare(m)
	if err != nil {
		return nil, o.pipe.errorFor("write", "", err)
	}
	if ctx.Err() != nil || !o.room.acquire(ctx, o.refused, op.cost) {
		return nil, o.notEnqueued(ctx)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.refusal != nil {
		o.room.release(op.cost)
		return nil, o.refusal
	}
	o.queue.Push(op)
	o.signal()
	return op, nil
}

func (o *outbox) notEnqueued(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.refusal != nil {
		return o.refusal
	}
	return o.pipe.errorFor("write", "", context.Cause(ctx))
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// run sends the messages in line, one after the other.
func (o *outbox) run() {
	var enc encoder
	for op := o.next(); op != nil; op = o.next() {
		err := o.pipe.desc.WriteFrames(enc.encode(op)...)
		enc.clear()
		if err != nil {
			o.stop(o.pipe.errorFor("write", o.pipe.desc.name, o.pipe.control.explain(classify(err))))
		}
		o.finish(op, nil, err)
	}
}

// next waits for a message and starts it. It returns nil when there will be
// none.
func (o *outbox) next() *outgoing {
	for {
		if op, stopped := o.take(); op != nil || stopped {
			return op
		}
		select {
		case <-o.wake:
		case <-o.halted:
		}
	}
}

func (o *outbox) take() (op *outgoing, stopped bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped != nil {
		return nil, true
	}
	if o.queue.Len() == 0 {
		return nil, false
	}
	op = o.queue.Pop()
	op.state = opStarted
	op.number = o.count
	o.count++
	o.started.Push(op)
	o.unsent.Push(op)
	if op.missing > 0 {
		o.asking.Push(op)
	}
	o.sendTensors()
	return op, false
}

// sendTensors gives the channels the tensors of all messages, in order, whose
// targets are known. Channels only take note in Send, so it holds the lock.
func (o *outbox) sendTensors() {
	for o.unsent.Len() > 0 && o.unsent.Front().missing == 0 {
		op := o.unsent.Pop()
		if op.state == opComplete {
			continue
		}
		for i, t := range op.msg.Tensors {
			if t.Buffer.Len() == 0 {
				continue
			}
			l := o.pipe.laneFor(t.Buffer.Device(), op.target(i), t.Buffer.Len())
			id := l.nextSend
			l.nextSend++
			l.sent.add(t.Buffer.Len())
			l.channel.Send(id, t.Buffer, func(err error) { o.finish(op, l, err) })
		}
	}
}

// finish notes that a part of op is through, well or not: a tensor on l, or,
// where l is nil, what went over the descriptor connection.
func (o *outbox) finish(op *outgoing, l *lane, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	op.parts--
	if err != nil {
		o.spoil(op, o.pipe.transferFailed("write", l, err))
	}
	o.settle()
}

// spoil gives op its error. Where writing was stopped, that is the reason; what
// the closing connections say is not.
func (o *outbox) spoil(op *outgoing, err error) {
	if op.err == nil {
		op.err = o.pipe.errorFor("write", "", cmp.Or(o.stopped, err))
	}
	if o.loss == nil && errors.Is(op.err, ErrPeerLost) {
		o.loss = op.err
	}
}

// settle completes the messages at the front that are through.
func (o *outbox) settle() {
	for o.started.Len() > 0 {
		op := o.started.Front()
		if op.parts > 0 {
			break
		}
		o.started.Pop()
		o.complete(op)
	}
	if o.flushed != nil && o.queue.Len() == 0 && o.started.Len() == 0 {
		close(o.flushed)
		o.flushed = nil
	}
}

func (o *outbox) complete(op *outgoing) {
	if op.state == opComplete {
		return
	}
	op.state = opComplete
	if op.unwatch != nil {
		op.unwatch()
	}
	o.room.release(op.cost)
	if op.err == nil {
		o.traffic.add(op.data)
	}
	if op.missing == 0 {
		op.msg = nil // the caller's again; a reply to come still needs it
	}
	close(op.done)
}

// watch cancels op when ctx ends.
func (o *outbox) watch(ctx context.Context, op *outgoing) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op.state != opComplete {
		op.unwatch = context.AfterFunc(ctx, func() { o.cancel(op, context.Cause(ctx)) })
	}
}

// cancel withdraws op if nothing of it has left, and takes the pipe down if
// something is under way.
func (o *outbox) cancel(op *outgoing, cause error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case op.state == opComplete:
	case op.state == opQueued:
		o.queue.Remove(func(q *outgoing) bool { return q == op })
		op.err = o.pipe.errorFor("write", "", cause)
		o.complete(op)
		o.settle()
	case op.parts == 0:
		o.complete(op)
	default:
		o.spoil(op, fmt.Errorf("%w: %w", ErrCancelled, cause))
		o.pipe.fail(ErrCancelled)
	}
}

// readReplies takes the receiver's choices of target devices.
func (o *outbox) readReplies() {
	p := o.pipe
	var buf []byte // kept from frame to frame, and so is its charge
	held := p.newCharge()
	var reply wire.DescriptorReply
	for {
		frame, err := readFrame(p.reply.link, buf, p.context.limits.DescriptorBytes, &held)
		if err != nil {
			if errors.Is(err, io.EOF) {
				o.noMoreReplies()
			}
			p.connEnded(p.reply.name, err)
			return
		}
		buf = frame
		if err = wire.DecodeDescriptorReply(frame, p.context.limits.wire(), &reply); err != nil {
			err = protocolError("descriptor reply: %w", err)
		} else {
			err = o.resolve(reply.TargetDevices)
		}
		if err != nil {
			p.fail(p.errorFor("connection", p.reply.name, err))
			return
		}
	}
}

// resolve applies the receiver's choice to the oldest message that asked.
func (o *outbox) resolve(chosen []device.Device) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.silent {
		return nil
	}
	if o.asking.Len() == 0 {
		return protocolError("descriptor reply that no message asked for")
	}
	op := o.asking.Pop()
	if len(chosen) != op.missing {
		return protocolError("descriptor reply names %d devices, asked were %d", len(chosen), op.missing)
	}
	named, err := o.pipe.nameTargets(op.msg.Tensors, chosen)
	if err != nil {
		return protocolError("descriptor reply: %w", err)
	}
	op.named, op.missing = named, 0
	o.sendTensors()
	return nil
}
