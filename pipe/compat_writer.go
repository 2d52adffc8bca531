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

// tryWrite accepts no message: in this dialect messages are sent from the caller's memory.
func (p *compat) tryWrite(*Message) (bool, error) { return false, nil }

// send implements engine: it adds m to the queue.
func (p *compat) send(ctx context.Context, m *Message) (uint64, *WriteOp, error) {
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

// run sends the descriptors and payloads of the queued messages, one after the other, until the
// writer is stopped. An error of the descriptor connection stops the writer.
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

// next waits for a queued message, starts it and returns it. To start a message it also passes its
// tensors to the channels, as sendTensors does. It returns nil once the writer is stopped.
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

// sendTensors gives the tensors of unsent messages to the channels, in order, up to the first
// message whose targets are not known. The caller holds mu; Send does not block.
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

// readReplies reads the receiver's choices of target devices from the reply connection and has
// resolve apply them, until the connection ends. An invalid reply fails the pipe; the end of the
// connection goes to connEnded.
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

// resolve applies the devices that a reply names to the oldest message that waits for a reply, and
// sends its tensors. A reply that fits no message is an error that matches ErrProtocol. After
// endReplies or dropUnsent replies are ignored.
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

// stopWriting implements engine. Messages fail with err: those that have not started at once, the
// others when the connections and channels that use their memory have released it. It does not wait
// for that.
func (p *compat) stopWriting(err error) {
	w := &p.writer
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failQueued(err)
	w.dropUnsent()
	w.completeFinished()
}

// stopStarting fails queued and new messages with err, because the peer has closed. Messages that
// have started continue: the peer may have sent the targets of their tensors before it closed, and
// waits for these tensors. After endReplies, messages without targets fail.
func (w *compatWriter) stopStarting(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failQueued(err)
	if w.noReplies {
		w.dropUnsent()
	}
	w.completeFinished()
}

// endReplies records that the peer has sent its last reply. If the writer is stopped, messages that
// still wait for a reply fail.
func (w *compatWriter) endReplies() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noReplies = true
	if w.stopped != nil {
		w.dropUnsent()
		w.completeFinished()
	}
}

// failQueued fails queued and new messages with err and makes run end. Only the first call has an
// effect. The caller holds mu and must then call completeFinished, which ends the queued messages.
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

// dropUnsent fails the messages in unsent with w.stopped, which must be set. The tensors of these
// messages wait for their target devices, or come after such a message. Later replies are ignored. The
// caller holds mu and must then call completeFinished.
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

// lossError returns the error of the first message that failed because the peer is lost, or nil if
// there is none.
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

// finishPart records that a part of op is complete or, if err is not nil, has failed. The part is a
// tensor on ch or, if ch is nil, the frames on the descriptor connection. Its memory is no longer used.
// finishPart locks mu.
func (w *compatWriter) finishPart(op *compatWriteOp, ch *pipeChannel, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	op.pending--
	if err != nil {
		w.failOp(op, w.pipe.failTransfer("write", ch, err))
	}
	w.completeFinished()
}

// failOp sets the error of op to err, unless op has one. If the writer is stopped it uses w.stopped
// instead, because err may only be a consequence of the stop. The first error that means that the peer
// is lost is kept in lossErr. The caller holds mu.
func (w *compatWriter) failOp(op *compatWriteOp, err error) {
	if op.err == nil {
		op.err = w.pipe.errorFor("write", "", cmp.Or(w.stopped, err))
	}
	if w.lossErr == nil && errors.Is(op.err, ErrPeerLost) {
		w.lossErr = op.err
	}
}

// completeFinished completes the oldest started messages, up to the first with pending parts. The
// caller holds mu.
func (w *compatWriter) completeFinished() {
	for w.started.Len() > 0 && w.started.Front().pending == 0 {
		w.started.Pop().finish()
	}
	w.signalIdle()
}

// finish completes the operation, unless it is complete, and releases its message. The caller holds
// mu of the writer.
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

// cancelLocked implements canceler. It withdraws an operation that is queued, and nothing of it is
// sent. An operation whose parts are all complete ends at once, with its own result. Any other
// operation fails, and the pipe fails with ErrCancelled.
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
