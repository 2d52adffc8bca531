package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/compress"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// nativeOutbox is the writing half of a pipe. What is small is copied into
// blocks, which the run loop writes to the message stream, so that Write need
// not wait; for what is large the message gets a nativeOp.
type nativeOutbox struct {
	pipe   *nativePipe
	stream transport.Stream
	poll   transport.Poller    // stream, if that can be read and written without waiting
	prompt transport.TryWriter // stream, if that can be written so
	room   room
	wake   chan struct{} // has a token when there is something to write

	gathering atomic.Bool // messages are to leave together with those that follow at once

	refused chan struct{} // closed with refusal
	halted  chan struct{} // closed with stopped

	mu      sync.Mutex
	frame   native.Message // scratch for encoding
	count   uint64         // messages so far
	blocks  fifo.Queue[*block]
	writing bool                 // a block is being written
	rest    *block               // what could not be written promptly, goes first
	ops     map[uint64]*nativeOp // messages with transfers under way
	refusal error                // why new messages are refused
	stopped error                // why messages under way fail
	flushed chan struct{}        // made by idle, closed when nothing is under way

	one     [1][]byte // the block that is written promptly
	head    []byte    // of the message that is written at once
	pieces  [][]byte  // of it, and its parts
	copied  *WriteOp  // the operation of every message that has been copied
	traffic traffic
	saved   savings
}

func (o *nativeOutbox) init(p *nativePipe) {
	o.pipe = p
	o.room = newRoom(p.context)
	o.wake = make(chan struct{}, 1)
	o.refused = make(chan struct{})
	o.halted = make(chan struct{})
	o.ops = map[uint64]*nativeOp{}
	o.copied = failedOp(nil)
}

// attach gives the outbox its stream.
func (o *nativeOutbox) attach(s transport.Stream) {
	o.stream = s
	o.poll, _ = s.(transport.Poller)
	o.prompt, _ = s.(transport.TryWriter)
}

func (p *nativePipe) write(ctx context.Context, m *Message) error {
	_, op, err := p.out.send(ctx, m)
	if op == nil {
		return err
	}
	return op.Wait(ctx)
}

func (p *nativePipe) writeConfirmed(ctx context.Context, m *Message) error {
	number, op, err := p.out.send(ctx, m)
	if err != nil {
		return err
	}
	if op != nil {
		if err := op.Wait(ctx); err != nil {
			return err
		}
	}
	return p.control.awaitRead(ctx, number)
}

func (p *nativePipe) writeAsync(ctx context.Context, m *Message) *WriteOp {
	_, op, err := p.out.send(ctx, m)
	if err != nil {
		return failedOp(err)
	}
	if op == nil {
		return p.out.copied
	}
	op.watch(ctx)
	return &op.WriteOp
}

// send puts a message in line once there is room for it. Where all of it has
// been copied there is no operation to wait for.
func (o *nativeOutbox) send(ctx context.Context, m *Message) (number uint64, op *watchedOp, err error) {
	size, err := o.check(m)
	if err != nil {
		return 0, nil, err
	}
	cost := o.cost(&size)
	if ctx.Err() != nil || !o.pipe.account.Charge(0) || !o.room.acquire(ctx, o.refused, cost) {
		return 0, nil, o.notSent(ctx)
	}
	packed, err := o.pack(ctx, m, &size)
	if err != nil {
		o.room.release(cost)
		return 0, nil, o.notPacked(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.refusal != nil {
		packed.release()
		o.room.release(cost)
		return 0, nil, o.refusal
	}
	number, op = o.start(m, &size, packed)
	o.writePromptly(m.More)
	return number, op, nil
}

// check refuses what cannot be sent at all.
func (o *nativeOutbox) check(m *Message) (sizer, error) {
	p := o.pipe
	if err := p.Err(); err != nil {
		return sizer{}, p.errorFor("write", "", err)
	}
	size, err := p.measure(m)
	if err == nil {
		err = cmp.Or(m.checkParts(), m.checkDeadline())
	}
	if err != nil {
		return sizer{}, p.errorFor("write", "", err)
	}
	return size, nil
}

// checkParts refuses what has no number in this dialect, whatever the limits.
func (m *Message) checkParts() error {
	if n := max(len(m.Payloads), len(m.Tensors)); n > native.MaxParts {
		return messageError("%w", limitError("parts of a kind in the native dialect", uint64(n), native.MaxParts))
	}
	return nil
}

func (o *nativeOutbox) notSent(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.refusal != nil {
		return o.refusal
	}
	return o.pipe.errorFor("write", "", cmp.Or(context.Cause(ctx), o.pipe.context.unadmittedError()))
}

// start numbers a message and copies what is small of it. Channels take note of
// their tensors before the message leaves, and so before the peer can ask for
// them.
func (o *nativeOutbox) start(m *Message, size *sizer, packed *packing) (uint64, *watchedOp) {
	number := o.count
	o.count++
	large := o.describe(m, size, packed)
	o.countPacking(size, packed)
	room := o.settleCost(size, packed)
	defer o.frame.Forget()
	if large == 0 {
		o.traffic.add(size.data)
		op := o.writeOut(m, packed, true, room)
		packed.release()
		return number, op
	}
	op := newNativeOp(o, m, number, large)
	op.packed = packed
	o.ops[number] = op
	op.data = size.data
	room, op.room = room.split(o.frame.EncodedSize())
	op.begin()
	o.writeOut(m, packed, false, room)
	return number, &op.watchedOp
}

// describe fills the scratch frame with all but the bytes, and counts the parts
// that do not travel inside the message.
func (o *nativeOutbox) describe(m *Message, size *sizer, packed *packing) (large int) {
	f := &o.frame
	f.Metadata, f.Deadline = m.Metadata, m.timeLeft()
	f.Payloads, f.Tensors = f.Payloads[:0], f.Tensors[:0]
	in := inliner{most: o.mostInline(size, packed)}
	for i := range m.Payloads {
		p := &m.Payloads[i]
		part := native.Payload{Length: uint64(len(p.Data)), Metadata: p.Metadata}
		if form := packed.payload(i); form != nil {
			part.Codec, part.Form = compress.Codec(p.Compression), formLength(form)
		}
		if part.Inline = in.take(int(part.Carried())); !part.Inline {
			large++
		}
		f.Payloads = append(f.Payloads, part)
	}
	for i := range m.Tensors {
		t := &m.Tensors[i]
		part := native.Tensor{
			Length: uint64(t.Buffer.Len()), Metadata: t.Metadata,
			Source: t.Buffer.Device(), Target: t.TargetDevice,
		}
		if form := packed.tensor(i); form != nil {
			part.Codec, part.Form = compress.Codec(t.Compression), formLength(form)
		}
		if part.Inline = in.takeTensor(t, int(part.Carried())); !part.Inline {
			large++
		}
		f.Tensors = append(f.Tensors, part)
	}
	return large
}

// encode appends the described message to the last block, or a new one.
func (o *nativeOutbox) encode(m *Message, packed *packing, room share) {
	b := o.blockFor(o.frame.EncodedSize())
	o.queue(b, room)
	start := len(b.data)
	b.data = o.frame.AppendHead(b.data, o.pipe.context.opts.Checksum)
	for i := range m.Payloads {
		if o.frame.Payloads[i].Inline {
			b.data = appendPart(b.data, device.Bytes(m.Payloads[i].Data), packed.payload(i))
		}
	}
	for i := range m.Tensors {
		if o.frame.Tensors[i].Inline {
			b.data = appendPart(b.data, m.Tensors[i].Buffer, packed.tensor(i))
		}
	}
	if o.pipe.context.opts.Checksum {
		b.data = native.AppendChecksum(b.data, start)
	}
}

// appendPart appends a part that is in host memory, or its compressed form if it
// has one.
func appendPart(dst []byte, b device.Buffer, form [][]byte) []byte {
	if p, ok := b.Contiguous(); ok && form == nil {
		return append(dst, p...)
	}
	if form == nil {
		form = b.AppendSegments(nil)
	}
	for _, p := range form {
		dst = append(dst, p...)
	}
	return dst
}

// settle wakes who waits for nothing to be under way.
func (o *nativeOutbox) settle() {
	idle := !o.writing && o.blocks.Len() == 0 && len(o.ops) == 0
	if o.flushed != nil && idle {
		close(o.flushed)
		o.flushed = nil
	}
}

// resolve applies the receiver's choice of devices to a message. One that has
// been given up meanwhile is not known any more.
func (o *nativeOutbox) resolve(c *native.Control) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	op := o.ops[c.Number]
	if op == nil && c.Number < o.count {
		return nil
	}
	if op == nil {
		return protocolError("devices for message %d, which was not sent", c.Number)
	}
	if op.err != nil || op.unwanted {
		return nil // given up, and a channel is not through with it yet
	}
	return op.resolve(c.Devices)
}

// giveUp ends a message that the peer does not want: that is no failure.
func (o *nativeOutbox) giveUp(number uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op := o.ops[number]; op != nil {
		op.unwanted = true
		op.abort(errUnwanted)
	}
}

// giveUpAll ends all messages that wait for memory of a peer that closes.
func (o *nativeOutbox) giveUpAll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range o.ops {
		op.unwanted = true
		op.abort(errUnwanted)
	}
}

// errUnwanted is what channels are told about transfers that the peer cancels.
var errUnwanted = errors.New("the peer does not want it")

// refuse makes send return err from now on.
func (o *nativeOutbox) refuse(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refuseLocked(err)
}

func (o *nativeOutbox) refuseLocked(err error) {
	if o.refusal == nil {
		o.refusal = err
		close(o.refused)
	}
}

// stop ends all writing. What is under way fails with err when its channel has
// let go of it.
func (o *nativeOutbox) stop(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped != nil {
		return
	}
	o.refuseLocked(err)
	o.stopped = err
	close(o.halted)
	if o.rest != nil {
		o.recycle(o.rest, err)
		o.rest, o.writing = nil, false
	}
	for o.blocks.Len() > 0 {
		o.recycle(o.blocks.Pop(), err)
	}
	for _, op := range o.ops {
		op.fail(err)
	}
	o.settle()
}

// flush waits until everything has left.
func (o *nativeOutbox) flush(ctx context.Context) error {
	if !inTime(ctx, o.idle(), nil) {
		return fmt.Errorf("%w: messages are still leaving", ErrCloseTimeout)
	}
	return nil
}

// idle returns a channel that is closed when nothing is under way.
func (o *nativeOutbox) idle() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flushed = cmp.Or(o.flushed, make(chan struct{}))
	flushed := o.flushed
	o.settle()
	return flushed
}
