package agent

import (
	"context"
	"errors"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// maxPolls bounds the messages that a goroutine reads before it checks its context.
const maxPolls = 64

// poll reads messages without blocking, as the leader l, until it has received from done, and then
// returns true. It returns false as soon as no message is there, after maxPolls messages, if a
// handler made it yield, or if another goroutine polls. It saves a switch to the calling goroutine,
// which reads the message that it waits for itself.
func (c *conn) poll(l *leader, done <-chan struct{}) bool {
	if !c.pollLock.TryLock() {
		return false
	}
	*l = leader{lock: &c.pollLock}
	defer l.finish()
	for range maxPolls {
		in, _ := c.pipe.TryNext() // the read loop gets the error too
		if in == nil {
			return false
		}
		c.dispatch(in, l)
		select {
		case <-done:
			return true
		default:
		}
		if l.yielded {
			return false
		}
	}
	return false
}

// errExpired is the error of block after its timer has fired.
var errExpired = errors.New("expired")

// block waits until it has received from done, and then returns nil. If ctx ends first, it returns
// the cause of ctx, and if the channel expired of a timer has a value first, errExpired. Unless
// another waiting goroutine already does so, block reads the messages of the connection while it
// waits, as the leader l, so that the message that done reports needs no switch from another
// goroutine.
func (c *conn) block(ctx context.Context, l *leader, done <-chan struct{}, expired <-chan time.Time) error {
	var next <-chan *pipe.Incoming // nil for a follower
	var down <-chan struct{}
	if c.waitLock.TryLock() {
		*l = leader{lock: &c.waitLock}
		defer l.finish()
		next, down = c.pipe.NextCh(), c.down
	}
	for {
		select {
		case in := <-next:
			c.dispatch(in, l)
			if l.yielded {
				next, down = nil, nil
			}
		case <-down: // the read loop ends all calls and streams once no other goroutine leads
			l.yield()
			next, down = nil, nil
		case <-done:
			return nil
		case <-ctx.Done():
			return ctxerr.Cause(ctx)
		case <-expired:
			return errExpired
		}
	}
}
