package agent

import (
	"context"
	"time"
)

// wait waits for the answer to a call, until ctx ends or the call's limit. Whatever
// the outcome, nobody uses the call any more.
func (c *call) wait(ctx context.Context) (*arrival, error) {
	if c.conn.lookFor(c) {
		return c.answer, c.err
	}
	defer leaveSlot(ctx)()
	var over <-chan time.Time
	if c.limit > 0 {
		over = c.alarm(time.Until(c.begun.Add(c.limit)))
		defer c.timer.Stop()
	}
	select {
	case <-c.woken:
	case <-ctx.Done():
		return c.giveUp(context.Cause(ctx))
	case <-over:
		return c.giveUp(&TimeoutError{Limit: c.limit})
	}
	return c.answer, c.err
}

// alarm is sent to after d.
func (c *call) alarm(d time.Duration) <-chan time.Time {
	if c.timer == nil {
		c.timer = time.NewTimer(d)
	} else {
		c.timer.Reset(d)
	}
	return c.timer.C
}

// abandon takes a call that nobody wants any more out of the table, and tells the other
// end. When it returns nobody uses the memory of the arguments. It reports false if the
// call has been answered, or abandoned by somebody else.
func (c *call) abandon(cause error) bool {
	taken := c.conn.calls.take(c.id) != nil
	if taken {
		c.release()
	}
	if c.sent != nil {
		c.stopSending(cause)
		<-c.sent
	}
	if taken {
		c.conn.sendCancel(c.id, cause)
	}
	return taken
}

// giveUp ends a call that nobody wants to wait for, and tells the other end. If the
// answer is there it counts.
func (c *call) giveUp(cause error) (*arrival, error) {
	if c.abandon(cause) {
		return nil, cause
	}
	<-c.woken
	return c.answer, c.err
}

// sendCancel tells the other end that nobody waits for a call.
func (c *conn) sendCancel(id uint64, cause error) {
	text := cause.Error()
	c.tell(appendText(appendHead(nil, cancel, 0, id), text[:min(len(text), maxName)]))
}
