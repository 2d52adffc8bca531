package pipe

import (
	"context"
	"time"
)

// watchedOp is what operations of the native dialect have in common. All but done
// is guarded by nativeOutbox.mu; err too, until done is closed.
type watchedOp struct {
	WriteOp
	out     *nativeOutbox
	ended   bool        // done is closed
	unwatch func() bool // ends the watch on the ctx of WriteAsync
	expiry  *time.Timer // cancels at the message's deadline
}

func (op *watchedOp) init(o *nativeOutbox, of canceler) {
	op.out, op.of, op.done = o, of, make(chan struct{})
}

// watch cancels the operation when ctx ends.
func (op *watchedOp) watch(ctx context.Context) {
	op.out.mu.Lock()
	defer op.out.mu.Unlock()
	if ctx.Done() != nil && !op.ended {
		op.unwatch = context.AfterFunc(ctx, func() { op.of.cancel(context.Cause(ctx)) })
	}
}

// expireAt cancels the operation at a time, if that is one.
func (op *watchedOp) expireAt(t time.Time) {
	if !t.IsZero() {
		op.expiry = time.AfterFunc(time.Until(t), func() { op.of.cancel(context.DeadlineExceeded) })
	}
}

// end completes the operation. The caller holds nativeOutbox.mu.
func (op *watchedOp) end() {
	op.ended = true
	if op.unwatch != nil {
		op.unwatch()
	}
	if op.expiry != nil {
		op.expiry.Stop()
	}
	close(op.done)
}
