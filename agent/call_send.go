package agent

import (
	"cmp"
	"context"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
)

// callOverhead is roughly the memory that a call takes at either end in addition to its
// message. It is part of the charge.
const callOverhead = 512

// batchThreshold is the number of calls in progress beyond which the pipe may send several
// small requests together instead of each at once.
const batchThreshold = 8

// send adds call, whose id must be set, to the table of pending calls and sends its request out. It
// first waits until the connection's call budget has bytes for the request, unless a handler or an
// interceptor makes the call. send owns out, also after an error.
//
// send returns nil when the request was sent, or when the call has ended in another way, for
// example because the pipe has ended. For a large request of a call with an observer it returns nil
// earlier, and another goroutine sends the request. After an error the call has ended, and its
// observer is not called.
func (c *conn) send(ctx context.Context, call *call, out *outMessage) error {
	call.charge, call.sendBegun = 0, false
	call.requestSent.Store(false)
	if n := out.bytes() + callOverhead; !call.nested {
		if err := c.acquire(ctx, call, n); err != nil {
			c.agent.outMessages.put(out)
			return err
		}
		call.charge = n
	}
	call.requestBytes = out.bytes()
	inBackground := call.observer != nil && !out.small()
	if inBackground { // before other goroutines find the call in the table
		call.sendContext = call.withLimit(ctx)
		ctx = call.sendContext
		call.sendEnded = make(chan struct{})
	}
	call.outcome = MessageUncertain // from now on other goroutines may end the call
	pending, err := c.calls.add(call)
	if err != nil {
		call.outcome = MessageUnsent
		call.releaseCharge()
		call.endSend()
		c.agent.outMessages.put(out)
		return err
	}
	out.message.More = pending > batchThreshold
	if done, err := c.tryWrite(out); done {
		err = c.sendResult(ctx, call, err)
		call.endSend()
		return err
	}
	call.sendBegun = true
	if inBackground {
		go c.sendInBackground(ctx, call, out)
		return nil
	}
	defer beginWait(ctx)()
	limited := call.withLimit(ctx)
	defer limited.finish()
	return c.sendResult(limited, call, c.write(limited, out))
}

// sendInBackground sends the large request out, which it owns, of a call that has an observer. If
// sending fails and the call has not ended otherwise, it ends the call and calls the observer with
// the error.
func (c *conn) sendInBackground(ctx context.Context, call *call, out *outMessage) {
	err := c.sendResult(ctx, call, c.write(ctx, out))
	call.endSend()
	if err != nil {
		call.observer.callEnded(nil, err, nil)
	}
}

// acquire takes n bytes for a call from the call budget of the connection, and blocks until the
// budget has them. After an error nothing was taken. The error is the cause of ctx, a *TimeoutError
// after the limit of the call, or the reason for which the pipe has ended.
func (c *conn) acquire(ctx context.Context, call *call, n int) error {
	if c.callBudget.TryAcquire(n) {
		return nil
	}
	defer beginWait(ctx)()
	defer c.agent.outsideCalls.add(call, CallBlocked)()
	limited := call.withLimit(ctx)
	defer limited.finish()
	if c.callBudget.Acquire(limited, c.down, n) {
		return nil
	}
	if err := ctxerr.Cause(limited); err != nil {
		return err
	}
	// The pipe has ended, and its read loop may not have closed the table yet.
	return cmp.Or(c.calls.closeReason(), ErrUnreachable)
}

// sendResult handles err, the result of sending the request of call with ctx. If err is nil it
// marks the request as sent and returns nil. Otherwise it removes the call from the table, returns
// the call's bytes to the budget, and returns the error of the call: the cause of ctx if ctx has
// ended, and otherwise err as the error of a lost pipe. If the call was not in the table any more,
// it has ended in another way, and sendResult returns nil.
func (c *conn) sendResult(ctx context.Context, call *call, err error) error {
	if err == nil {
		call.requestSent.Store(true)
		return nil
	}
	if c.calls.withdraw(call.id) == nil {
		return nil
	}
	call.releaseCharge()
	if cause := ctxerr.Cause(ctx); cause != nil {
		return cause
	}
	return c.lostError(err)
}
