package agent

import (
	"context"
	"errors"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// wait waits for the answer to a call, until ctx ends or the call's limit. Whatever
// the outcome, nobody uses the call any more: not either where a function that runs here
// meanwhile ends the goroutine, as FailNow of a test does.
func (c *call) wait(ctx context.Context) (*arrival, error) {
	over := false
	defer func() {
		if !over {
			c.desert()
		}
	}()
	answer, err := c.look(ctx)
	over = true
	return answer, err
}

var errDeserted = errors.New("the goroutine of the caller has ended")

// desert gives the call up for a caller who is not there any more.
func (c *call) desert() {
	if answer, _ := c.giveUp(errDeserted); answer != nil {
		c.conn.agent.arrivals.drop(answer)
	}
}

// look looks for the answer, and then waits for it.
func (c *call) look(ctx context.Context) (*arrival, error) {
	if r := requestOf(ctx); r != nil && c.nested {
		r.slot.leaveShift() // before it looks for more, which may wait in turn
	}
	if c.conn.lookFor(c) {
		return c.answer, c.err
	}
	defer leaveSlot(ctx)()
	var over <-chan time.Time
	if c.limit > 0 {
		over = c.alarm(time.Until(c.begun.Add(c.limit)))
		defer c.timer.Stop()
	}
	err := c.waitAhead(ctx, over)
	if err == errBehind {
		err = c.waitBehind(ctx, over)
	}
	if err != nil {
		return c.giveUp(err)
	}
	return c.answer, c.err
}

// errBehind says that what comes is for others to take in.
var errBehind = errors.New("behind others")

// waitAhead takes in what comes until the call is over, if nobody else does: the answer
// then takes no way over the reader of the pipe.
func (c *call) waitAhead(ctx context.Context, over <-chan time.Time) error {
	conn := c.conn
	if !conn.ahead.TryLock() {
		return errBehind
	}
	c.shift = shift{lock: &conn.ahead}
	defer c.shift.end()
	ahead := conn.pipe.Ahead()
	for {
		select {
		case in := <-ahead:
			conn.dispatch(in, &c.shift)
			if c.shift.over {
				return errBehind
			}
		case <-conn.down: // whose reader settles all calls, once nobody is ahead
			return errBehind
		case <-c.woken:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-over:
			return &TimeoutError{Limit: c.limit}
		}
	}
}

// waitBehind waits until the call is over.
func (c *call) waitBehind(ctx context.Context, over <-chan time.Time) error {
	select {
	case <-c.woken:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-over:
		return &TimeoutError{Limit: c.limit}
	}
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
		c.sendCancel(cause)
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

// sendCancel tells the other end that nobody waits for the call.
func (c *call) sendCancel(cause error) {
	text := cause.Error()
	m := &pipe.Message{Metadata: appendText(appendHead(nil, cancel, 0, c.id), text[:min(len(text), maxName)])}
	if c.conn.agent.outgoing != nil {
		about := Message{Kind: KindCancel, Type: c.typ, Name: c.name, Peer: c.conn.peer}
		// Nobody is there who would want to know of an error.
		if over, _ := c.conn.suffer(&about, m); over {
			return
		}
	}
	c.conn.tell(m)
}
