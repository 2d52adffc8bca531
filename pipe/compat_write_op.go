package pipe

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// compatWriteOp is the write of a message in the compatible dialect, from its enqueueing until all
// its parts are complete.
type compatWriteOp struct {
	WriteOp
	writer *compatWriter

	// Guarded by mu of the writer.
	missingTargets int             // targets that the receiver has to choose
	targets        []device.Device // of all tensors, once the receiver has chosen
}

// finishPart notes that a part of op is complete or, with err, has failed: a tensor on ch or, if ch
// is nil, the frames on the descriptor connection. The part's memory is not used any more. It locks
// mu.
func (w *compatWriter) finishPart(op *compatWriteOp, ch *pipeChannel, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	op.pending--
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
		op.writer.traffic.add(op.data)
	}
	if op.missingTargets == 0 {
		op.msg = nil // with missing targets a reply will still use the devices of its tensors
	}
	op.complete()
}

// cancelLocked implements canceler: it withdraws an operation that is queued, and nothing of it is
// sent. One whose parts are all complete ends at once, with its own result. For any other the pipe
// fails with ErrCancelled.
func (op *compatWriteOp) cancelLocked(cause error) {
	w := op.writer
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
