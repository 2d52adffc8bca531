package pipe

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// refuse makes enqueue return err from now on.
func (o *outbox) refuse(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refuseLocked(err)
}

func (o *outbox) refuseLocked(err error) {
	if o.refusal == nil {
		o.refusal = err
		close(o.refused)
	}
}

// stop ends all writing: messages that have not started fail at once, the
// others when their connections let go of them.
func (o *outbox) stop(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.halt(err)
	o.keepTensors()
	o.settle()
}

// finishUp lets no more messages start, as the peer has closed. Those that have
// started go on: the targets of their tensors may be in replies that the peer
// sent before, and then it waits for the tensors.
func (o *outbox) finishUp(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.halt(err)
	if o.silent {
		o.keepTensors()
	}
	o.settle()
}

// noMoreReplies is called when the peer has sent its last reply.
func (o *outbox) noMoreReplies() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.silent = true
	if o.stopped != nil {
		o.keepTensors()
		o.settle()
	}
}

// halt makes messages fail that have not started.
func (o *outbox) halt(err error) {
	if o.stopped != nil {
		return
	}
	o.refuseLocked(err)
	o.stopped = err
	close(o.halted)
	for o.queue.Len() > 0 {
		op := o.queue.Pop()
		op.state = opStarted
		op.parts = 0
		o.spoil(op, err)
		o.started.Push(op)
	}
}

// keepTensors gives up those that wait for their targets, and those behind them.
func (o *outbox) keepTensors() {
	o.silent = true
	for o.unsent.Len() > 0 {
		op := o.unsent.Pop()
		if op.state == opComplete {
			continue // only the targets of empty tensors were still open
		}
		op.parts -= op.msg.tensorParts()
		o.spoil(op, o.stopped)
	}
	o.asking = fifo.Queue[*outgoing]{}
}

// lost is the error of a message that failed because the peer was lost, nil if
// there is none.
func (o *outbox) lost() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.loss
}

// flush waits until all messages are complete.
func (o *outbox) flush(ctx context.Context) error {
	if !inTime(ctx, o.idle(), nil) {
		return fmt.Errorf("%w: messages are still leaving", ErrCloseTimeout)
	}
	return nil
}

// idle returns a channel that is closed when no message is on its way.
func (o *outbox) idle() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.flushed == nil {
		o.flushed = make(chan struct{})
	}
	flushed := o.flushed
	o.settle()
	return flushed
}
