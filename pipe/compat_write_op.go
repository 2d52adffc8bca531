package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/device"
)

func (p *compat) write(ctx context.Context, m *Message) error {
	op, err := p.writer.enqueue(ctx, m)
	if err != nil {
		return err
	}
	return op.Wait(ctx)
}

// tryWrite accepts no message: in this dialect messages are sent from the caller's memory.
func (p *compat) tryWrite(*Message) (bool, error) { return false, nil }

func (p *compat) writeConfirmed(ctx context.Context, m *Message) error {
	if !p.control.exists() {
		return p.errorFor("write", "", ErrNoControl)
	}
	op, err := p.writer.enqueue(ctx, m)
	if err != nil {
		return err
	}
	if err := op.Wait(ctx); err != nil {
		return err
	}
	return p.control.awaitRead(ctx, op.number)
}

func (p *compat) writeAsync(ctx context.Context, m *Message) *WriteOp {
	op, err := p.writer.enqueue(ctx, m)
	if err != nil {
		return completedOp(err)
	}
	if ctx.Done() != nil {
		p.writer.watch(ctx, op)
	}
	return &op.WriteOp
}

// compatWriteOp is the write of a message in the compatible dialect, from its enqueueing until all
// its parts are complete.
type compatWriteOp struct {
	WriteOp
	writer *compatWriter
	msg    *Message
	data   int // bytes of payloads and tensors
	cost   int // bytes of the budgets

	// Guarded by mu of the writer, as is err until done is closed.
	number         uint64 // of the message, from 0, once it has started
	state          opState
	unwatch        func() bool     // stops watching the context of WriteAsync
	missingTargets int             // targets that the receiver has to choose
	targets        []device.Device // of all tensors, once the receiver has chosen
	pendingParts   int             // parts that are not complete
}

// opState is the state of a write.
type opState int

const (
	opQueued   opState = iota // nothing was sent; it can be cancelled
	opStarted                 // it is being sent
	opComplete                // done is closed
)

func (op *compatWriteOp) cancel(cause error) { op.writer.cancel(op, cause) }

// target returns the target device of tensor i: the receiver's choice once it is known, and else
// the sender's, which may be zero.
func (op *compatWriteOp) target(i int) device.Device {
	if op.targets != nil {
		return op.targets[i]
	}
	return op.msg.Tensors[i].TargetDevice
}

// finishPart notes that a part of op is complete or, with err, has failed: a tensor on ch or, if ch
// is nil, the frames on the descriptor connection. The part's memory is not used any more. It locks
// mu.
func (w *compatWriter) finishPart(op *compatWriteOp, ch *pipeChannel, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	op.pendingParts--
	if err != nil {
		w.failOp(op, w.pipe.failTransfer("write", ch, err))
	}
	w.completeFinished()
}

// failOp sets the error of op, unless op has one. If the writer is stopped that is w.stopped, since
// err may only be a consequence. The first error that means that the peer is lost is kept in
// lossErr. The caller holds mu.
func (w *compatWriter) failOp(op *compatWriteOp, err error) {
	if op.err == nil {
		op.err = w.pipe.errorFor("write", "", cmp.Or(w.stopped, err))
	}
	if w.lossErr == nil && errors.Is(op.err, ErrPeerLost) {
		w.lossErr = op.err
	}
}

// completeFinished completes the oldest started messages, up to the first with pending parts, and
// closes flushed if no message is left. The caller holds mu.
func (w *compatWriter) completeFinished() {
	for w.started.Len() > 0 {
		op := w.started.Front()
		if op.pendingParts > 0 {
			break
		}
		w.started.Pop()
		w.complete(op)
	}
	if w.flushed != nil && w.queue.Len() == 0 && w.started.Len() == 0 {
		close(w.flushed)
		w.flushed = nil
	}
}

// complete ends op: it releases its bytes of the budgets and its message, and closes done. It does
// nothing if op is complete. The caller holds mu.
func (w *compatWriter) complete(op *compatWriteOp) {
	if op.state == opComplete {
		return
	}
	op.state = opComplete
	if op.unwatch != nil {
		op.unwatch()
	}
	w.budget.release(op.cost)
	if op.err == nil {
		w.traffic.add(op.data)
	}
	if op.missingTargets == 0 {
		op.msg = nil // with missing targets a reply will still use the devices of its tensors
	}
	close(op.done)
}

// watch has op cancelled when ctx ends before op is complete.
func (w *compatWriter) watch(ctx context.Context, op *compatWriteOp) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if op.state != opComplete {
		op.unwatch = context.AfterFunc(ctx, func() { w.cancel(op, context.Cause(ctx)) })
	}
}

// cancel ends op with cause if it is still queued, and nothing of it is sent. An op whose parts are
// all complete ends at once, with its own result. For any other op that has started the pipe fails
// with ErrCancelled. A complete op is left alone.
func (w *compatWriter) cancel(op *compatWriteOp, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case op.state == opComplete:
	case op.state == opQueued:
		w.queue.Remove(func(q *compatWriteOp) bool { return q == op })
		op.err = w.pipe.errorFor("write", "", cause)
		w.complete(op)
		w.completeFinished()
	case op.pendingParts == 0:
		w.complete(op)
	default:
		w.failOp(op, fmt.Errorf("%w: %w", ErrCancelled, cause))
		w.pipe.fail(ErrCancelled)
	}
}
