package agent

import (
	"cmp"
	"context"
)

// crowd is beyond how many calls on their way at once their requests leave together
// rather than each as soon as it can.
const crowd = 8

// send sends the request of a call, once there is room for it. If it fails the call
// is over, and nobody else settles it.
func (c *conn) send(ctx context.Context, call *call, e *envelope) error {
	call.weight, call.leaving = 0, false
	call.left.Store(false)
	if n := e.bytes() + callOverhead; !call.nested {
		if err := c.acquire(ctx, call, n); err != nil {
			c.agent.envelopes.put(e)
			return err
		}
		call.weight = n
	}
	later := call.observer != nil && !e.small()
	if later { // before anybody can end the call, who looks at these
		ctx, call.stopSending = call.bound(ctx)
		call.sent = make(chan struct{})
	}
	waiting, err := c.calls.add(call)
	if err != nil {
		call.release()
		call.sendingOver()
		c.agent.envelopes.put(e)
		return err
	}
	e.message.More = waiting > crowd
	if done, err := c.writeNow(e); done {
		err = c.unsent(ctx, call, err)
		call.sendingOver()
		return err
	}
	call.leaving = true
	if later {
		go c.sendLater(ctx, call, e)
		return nil
	}
	return c.sendHere(ctx, call, e)
}

// sendHere sends the request of a call whose caller waits for that: it is large, or
// finds no room.
func (c *conn) sendHere(ctx context.Context, call *call, e *envelope) error {
	defer leaveSlot(ctx)()
	bounded := &limited{Context: ctx, call: call}
	defer bounded.release()
	return c.unsent(bounded, call, c.write(bounded, e))
}

// bound is ctx with the limit of the call.
func (c *call) bound(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if c.limit == 0 {
		return ctx, cancel
	}
	ctx, stop := context.WithDeadlineCause(ctx, c.begun.Add(c.limit), &TimeoutError{Limit: c.limit})
	return ctx, func(cause error) { cancel(cause); stop() }
}

// acquire waits for room for n bytes.
func (c *conn) acquire(ctx context.Context, call *call, n int) error {
	if c.room.TryAcquire(n) {
		return nil
	}
	defer leaveSlot(ctx)()
	defer c.agent.aside.enter(call, CallBlocked)()
	ctx, cancel := call.bound(ctx)
	defer cancel(nil)
	if c.room.Acquire(ctx, c.down, n) {
		return nil
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	// The reason may be about to be known.
	return cmp.Or(c.calls.reason(), ErrUnreachable)
}

// sendLater sends the large request of a call for which nobody waits here.
func (c *conn) sendLater(ctx context.Context, call *call, e *envelope) {
	err := c.unsent(ctx, call, c.write(ctx, e))
	call.sendingOver()
	if err != nil {
		call.observer.settled(nil, err, nil)
	}
}

// unsent ends a call whose request could not be sent, if there is an err. Where
// somebody else has ended the call there is none to report.
func (c *conn) unsent(ctx context.Context, call *call, err error) error {
	if err == nil {
		call.left.Store(true)
		return nil
	}
	if c.calls.take(call.id) == nil {
		return nil
	}
	call.release()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return c.lost(err)
}
