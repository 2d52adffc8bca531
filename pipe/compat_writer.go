package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// compatWriter is the sending half of a pipe in the compatible dialect. A message is in queue until
// the writer's goroutine starts it, and then in started until all its parts are complete; messages
// complete in order. It is also in unsent until its target devices are known, since tensors are
// given to the channels in the order of messages.
type compatWriter struct {
	*sender
	pipe          *compat
	maxDescriptor int // the largest descriptor that the peer can read, 0 if there is no bound

	// Guarded by mu of the sender.
	count         uint64 // messages started
	queue         fifo.Queue[*compatWriteOp]
	started       fifo.Queue[*compatWriteOp]
	unsent        fifo.Queue[*compatWriteOp]
	awaitingReply fifo.Queue[*compatWriteOp] // the messages of unsent that wait for a reply
	noReplies     bool                       // the peer sends no more replies
	lossErr       error                      // of the first message that failed because the peer is lost
}

func (w *compatWriter) init(p *compat) {
	w.pipe, w.sender = p, &p.sender
	w.busy = func() bool { return w.queue.Len() > 0 || w.started.Len() > 0 }
	if c, ok := p.first.(transport.FrameLimiter); ok {
		w.maxDescriptor = c.FrameLimits().MaxWhole
	}
}

// tryWrite always returns false and nil: it accepts no message, because in the compatible dialect
// messages are sent from the caller's memory, which stays in use longer than the call.
func (p *compat) tryWrite(*Message) (bool, error) { return false, nil }

// send checks m, waits until the budgets of bytes in flight admit it, and queues it. The returned
// operation ends when m's memory, which is not copied, may be reused. The first result is always 0:
// m gets its number when it is started, and the operation then has it. If m is invalid, its
// deadline has passed, ctx has ended, or the pipe accepts no more messages, send queues nothing and
// returns an *Error and no operation.
func (p *compat) send(ctx context.Context, m *Message, _ bool) (uint64, *WriteOp, error) {
	w := &p.writer
	size, err := messageSize{}, p.Err()
	if err == nil {
		size, err = p.measure(m)
	}
	if err == nil {
		err = w.checkWireSizes(m, size.descriptor)
	}
	if err == nil {
		err = m.checkDeadline()
	}
	if err != nil {
		return 0, nil, p.errorFor("write", "", err)
	}
	p.plain.addMany(size.compressible)
	op := &compatWriteOp{}
	op.init(w.sender, op)
	op.msg, op.data, op.pending = m, size.data, 1+int32(m.tensorParts())
	for i := range m.Tensors {
		if m.Tensors[i].TargetDevice.IsZero() {
			op.missingTargets++
		}
	}
	if ctx.Err() != nil || !w.budget.acquire(ctx, w.rejected, size.total()) {
		return 0, nil, w.writeError(context.Cause(ctx))
	}
	op.share = w.budget.shareOf(size.total())
	if err := m.checkDeadline(); err != nil { // it may have passed during the wait
		w.budget.releaseShare(op.share)
		return 0, nil, w.writeError(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rejection != nil {
		w.budget.releaseShare(op.share)
		return 0, nil, w.rejection
	}
	w.queue.Push(op)
	w.signal()
	return 0, &op.WriteOp, nil
}

// run is the loop that sends the descriptors and payloads of queued messages, one message after the
// other. It returns after the writer was stopped. An error of the descriptor connection stops the
// writer: all messages that have not completed then fail.
func (w *compatWriter) run() {
	var enc compatEncoder
	for op := w.next(); op != nil; op = w.next() {
		err := w.pipe.desc.WriteFrames(enc.encode(op)...)
		enc.clear()
		if err != nil {
			w.pipe.stopWriting(w.pipe.errorFor("write", w.pipe.desc.name, w.pipe.control.explainEnd(classify(err))))
		}
		w.finishPart(op, nil, err)
	}
}

// next waits until a message is queued, marks it as started, gives it the next number and returns
// it. It also gives the tensors of the message to their channels if their target devices are known,
// as sendTensors does. It returns nil once the writer is stopped. It locks mu.
func (w *compatWriter) next() *compatWriteOp {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.queue.Len() == 0 && w.stopped == nil {
		w.mu.Unlock()
		select {
		case <-w.wake:
		case <-w.halted:
		}
		w.mu.Lock()
	}
	if w.stopped != nil {
		return nil
	}
	op := w.queue.Pop()
	op.state = opStarted
	op.number = w.count
	w.count++
	w.started.Push(op)
	w.unsent.Push(op)
	if op.missingTargets > 0 {
		w.awaitingReply.Push(op)
	}
	w.sendTensors()
	return op
}

// sendTensors gives the tensors of the messages in w.unsent to their channels, in the order of the
// messages. It stops at the first message with a tensor whose target device the receiver has not
// chosen yet. It skips empty tensors. It does not wait until the tensors are sent. The caller holds
// mu.
func (w *compatWriter) sendTensors() {
	for w.unsent.Len() > 0 && w.unsent.Front().missingTargets == 0 {
		op := w.unsent.Pop()
		if op.state == opDone {
			continue
		}
		for i, t := range op.msg.Tensors {
			if t.Buffer.Len() == 0 {
				continue
			}
			target := t.TargetDevice
			if op.targets != nil {
				target = op.targets[i]
			}
			ch := w.pipe.channelFor(t.Buffer.Device(), target, t.Buffer.Len())
			id := ch.nextSend
			ch.nextSend++
			ch.sent.add(t.Buffer.Len())
			ch.channel.Send(id, t.Buffer, func(err error) { w.finishPart(op, ch, err) })
		}
	}
}

// readReplies is the loop that reads the receiver's choices of target devices from the reply
// connection and passes each to resolve. It returns when the connection ends, whose error it passes
// to connEnded, or after an invalid reply, which fails the pipe. After an orderly end of the
// connection it also calls endReplies.
func (w *compatWriter) readReplies() {
	p := w.pipe
	var buf []byte // reused, and so is its charge
	held := p.newCharge()
	var reply wire.DescriptorReply
	for {
		frame, err := readFrame(p.reply.namedConn, buf, p.context.limits.DescriptorBytes, &held)
		if err != nil {
			if errors.Is(err, io.EOF) {
				w.endReplies()
			}
			p.connEnded(p.reply.name, err)
			return
		}
		buf = frame
		if err = wire.DecodeDescriptorReply(frame, p.context.limits.wire(), &reply); err != nil {
			err = protocolError("descriptor reply: %w", err)
		} else {
			err = w.resolve(reply.TargetDevices)
		}
		if err != nil {
			p.fail(p.errorFor("connection", p.reply.name, err))
			return
		}
	}
}

// resolve applies the devices in chosen, which one reply names, to the oldest message that waits
// for a reply, and calls sendTensors. It returns an error that matches ErrProtocol if no message
// waits, if the number of devices is wrong, or if no channel reaches a device. After endReplies or
// dropUnsent it ignores the reply and returns nil. It does not keep chosen. It locks mu.
func (w *compatWriter) resolve(chosen []device.Device) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.noReplies {
		return nil
	}
	if w.awaitingReply.Len() == 0 {
		return protocolError("descriptor reply, and no message waits for one")
	}
	op := w.awaitingReply.Pop()
	if len(chosen) != op.missingTargets {
		return protocolError("descriptor reply names %d devices, the message needs %d", len(chosen), op.missingTargets)
	}
	targets := make([]device.Device, len(op.msg.Tensors))
	for i, t := range op.msg.Tensors {
		targets[i] = t.TargetDevice
		if t.TargetDevice.IsZero() {
			targets[i], chosen = chosen[0], chosen[1:]
		}
		if _, err := w.pipe.findChannel(t.Buffer.Device(), targets[i]); err != nil {
			return protocolError("descriptor reply: %w", err)
		}
	}
	op.targets, op.missingTargets = targets, 0
	w.sendTensors()
	return nil
}

// stopWriting implements engine: it stops the writer with err, unless the writer is stopped
// already. Queued messages, and messages whose tensors were not given to channels yet, fail with
// the error of the stop; new messages are rejected. The operations end in the order of the
// messages. The operation of a message that is being sent ends when the connections and channels
// have released its memory; stopWriting does not wait for that. It locks mu.
func (p *compat) stopWriting(err error) {
	w := &p.writer
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failQueued(err)
	w.dropUnsent()
	w.completeFinished()
}

// stopStarting stops the writer with err, because the peer has closed, unless the writer is stopped
// already. Queued messages fail, and new messages are rejected. Messages that have started
// continue: before it closed, the peer may have sent the target devices of their tensors, and then
// waits for these tensors. If endReplies was called before, messages that lack a target device fail
// too. It locks mu.
func (w *compatWriter) stopStarting(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failQueued(err)
	if w.noReplies {
		w.dropUnsent()
	}
	w.completeFinished()
}

// endReplies records that the peer sends no more replies. If the writer is stopped, endReplies
// makes the messages that still wait for a reply, and those queued after them, fail. It locks mu.
func (w *compatWriter) endReplies() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noReplies = true
	if w.stopped != nil {
		w.dropUnsent()
		w.completeFinished()
	}
}

// failQueued stops the writer with err: queued messages fail with err, new messages are rejected,
// and run returns. If the writer is stopped already, failQueued changes nothing. The caller holds
// mu and must then call completeFinished, which ends the failed messages.
func (w *compatWriter) failQueued(err error) {
	w.halt(err)
	for w.queue.Len() > 0 {
		op := w.queue.Pop()
		op.state = opStarted
		op.pending = 0
		w.failOp(op, err)
		w.started.Push(op)
	}
}

// dropUnsent makes the messages in w.unsent fail with w.stopped, which must be set, and empties
// w.unsent. These are the messages that wait for the target devices of their tensors, and later
// ones. Their tensors are not sent, and later replies are ignored. The caller holds mu and must
// then call completeFinished.
func (w *compatWriter) dropUnsent() {
	w.noReplies = true
	for w.unsent.Len() > 0 {
		op := w.unsent.Pop()
		if op.state == opDone {
			continue // only the targets of empty tensors were missing
		}
		op.pending -= int32(op.msg.tensorParts())
		w.failOp(op, w.stopped)
	}
	w.awaitingReply = fifo.Queue[*compatWriteOp]{}
}

// lossError returns the error of the first message that has failed because the peer is lost, or nil
// if none has. It locks mu.
func (w *compatWriter) lossError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lossErr
}

// compatWriteOp is the write of a message in the compatible dialect, from its enqueueing until all
// its parts are complete.
type compatWriteOp struct {
	WriteOp

	// Guarded by mu of the writer.
	missingTargets int             // targets that the receiver has to choose
	targets        []device.Device // of all tensors, once the receiver has chosen
}

// finishPart records that one part of op is complete or, if err is not nil, has failed, and that
// the memory of the part is no longer used. ch is the channel of a tensor, and nil for the frames
// on the descriptor connection. A failed part fails op and, unless the peer is gone or this end has
// closed, the pipe. finishPart then calls completeFinished, which completes op if it is its turn.
// It locks mu.
func (w *compatWriter) finishPart(op *compatWriteOp, ch *pipeChannel, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	op.pending--
	if err != nil {
		w.failOp(op, w.pipe.failTransfer("write", ch, err))
	}
	w.completeFinished()
}

// failOp sets the error of op to err as an *Error, unless op has an error. If the writer is
// stopped, failOp uses w.stopped in place of err, which may only be a consequence of the stop. It
// also stores the first error of any operation that matches ErrPeerLost in w.lossErr. It does not
// complete op. The caller holds mu.
func (w *compatWriter) failOp(op *compatWriteOp, err error) {
	if op.err == nil {
		op.err = w.pipe.errorFor("write", "", cmp.Or(w.stopped, err))
	}
	if w.lossErr == nil && errors.Is(op.err, ErrPeerLost) {
		w.lossErr = op.err
	}
}

// completeFinished completes started messages in order, up to the first one with parts that are not
// complete. If no message is left to send, it wakes the callers that wait for that. The caller
// holds mu.
func (w *compatWriter) completeFinished() {
	for w.started.Len() > 0 && w.started.Front().pending == 0 {
		w.started.Pop().finish()
	}
	w.signalIdle()
}

// finish completes the operation with op.err as its result, counts its bytes if it succeeded, and
// drops the reference to the message. If the receiver has not chosen all target devices, the
// reference stays, because a later reply refers to the message. If op is complete already, finish
// does nothing. The caller holds mu of the writer.
func (op *compatWriteOp) finish() {
	if op.state == opDone {
		return
	}
	if op.err == nil {
		op.sender.traffic.add(op.data)
	}
	if op.missingTargets == 0 {
		op.msg = nil // with missing targets a reply will still use the devices of its tensors
	}
	op.complete()
}

// cancelLocked cancels an operation that is not complete. If it is still queued, it is withdrawn
// with cause as its error, and nothing of it is sent. If all its parts are complete, it ends at
// once with its own result. Otherwise the operation fails with an error that matches ErrCancelled
// and cause, unless it has failed or the writer was stopped before, and the pipe fails with
// ErrCancelled. cancelLocked implements canceler. The caller holds mu of the sender.
func (op *compatWriteOp) cancelLocked(cause error) {
	w := &op.sender.pipe.engine.(*compat).writer
	switch {
	case op.state == opQueued:
		w.queue.Remove(func(q *compatWriteOp) bool { return q == op })
		op.err = w.pipe.errorFor("write", "", cause)
		op.finish()
		w.completeFinished()
	case op.pending == 0:
		op.finish()
	default:
		w.failOp(op, fmt.Errorf("%w: %w", ErrCancelled, cause))
		w.pipe.fail(ErrCancelled)
	}
}
