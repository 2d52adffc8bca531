package agent

import (
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
)

// A caller keeps within the limits that the ends of the pipe have agreed on. The bounds here are
// for a caller that does not, and for calls that it has cancelled whose handlers still run.
const (
	// overcommit times Limits.CallBytes bounds the charges of the requests of one caller.
	overcommit = 2

	// nestedOvercommit times Limits.CallBytes bounds them for requests that handlers make, and
	// nestedOvercommit times Limits.LargeBytes bounds the large ones of these.
	nestedOvercommit = 8
)

// errDuplicate means that a request of the same number is being served.
var errDuplicate = errors.New("request came twice")

// register adds a request to those that are served and takes its charge. If a cancellation has come
// before the request, the context of the request is cancelled. The error matches ErrClosed if the
// pipe has ended, and ErrOverloaded if there are too many requests or streams; it is errDuplicate
// if a request of the same number is being served. After an error the request is not registered.
func (c *conn) register(r *Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.serving == nil {
		return ErrClosed
	}
	if _, duplicate := c.serving[r.id]; duplicate {
		return errDuplicate
	}
	factor := overcommit
	if r.flags&wire.FlagNested != 0 {
		factor = nestedOvercommit
	}
	if len(c.serving) > 0 && c.servingBytes+r.charge > factor*c.agent.limits.CallBytes {
		return fmt.Errorf("%w: %d bytes in %d calls at once", ErrOverloaded, c.servingBytes, len(c.serving))
	}
	if r.stream != nil {
		if c.servingStreams >= c.agent.limits.MaxStreams {
			return fmt.Errorf("%w: %d streams at once, which is MaxStreams there", ErrOverloaded, c.servingStreams)
		}
		c.servingStreams++
	}
	c.servingBytes += r.charge
	c.serving[r.id] = r
	if cause := c.earlyCancels.remove(r.id); cause != nil {
		r.callContext.cancel(cause)
	}
	return nil
}

// earlyCancels remembers the latest cancellations of requests that are not registered, guarded by
// the mutex of the conn. Most of these requests have been replied to, but a cancellation can also
// overtake its request.
type earlyCancels struct {
	ids    [32]uint64 // 0 for none
	causes [32]error
	next   int // index of the oldest
}

func (e *earlyCancels) add(id uint64, cause error) {
	e.ids[e.next], e.causes[e.next] = id, cause
	e.next = (e.next + 1) % len(e.ids)
}

// remove forgets and returns the cause with which the request with this number was cancelled before
// it was registered. It returns nil if no such cancellation is remembered. The caller holds the
// mutex of the conn.
func (e *earlyCancels) remove(id uint64) error {
	for i, other := range e.ids {
		if other == id && e.causes[i] != nil {
			cause := e.causes[i]
			e.ids[i], e.causes[i] = 0, nil
			return cause
		}
	}
	return nil
}

// openLarge opens a request that is not inline. It first waits until the budget for large requests
// has memory for the tensors, which stay at the caller until then. If that fails, it rejects the
// request. It does not run on the leader.
func (c *conn) openLarge(r *Request) {
	n := r.message.incoming.Descriptor().Bytes()
	if err := c.acquireLarge(r, n); err != nil {
		r.drop()
		c.reject(r, err, nil)
		return
	}
	// This goroutine does not read messages, but it can run one request that is detached.
	l := &leader{conn: c, yielded: true}
	c.open(r, l)
	if l.detached != nil {
		l.detached.runDetached()
	}
}

// acquireLarge takes n bytes for a large request from the budget of the connection, and blocks
// until the budget has them. The error is the cause of the request's context, or ErrCallerGone if
// the pipe has ended; then nothing was taken. For a request that a handler of the caller makes it
// does not block, since handlers that hold memory may wait for the reply: if there are too many
// such bytes, the error matches ErrOverloaded.
func (c *conn) acquireLarge(r *Request, n int) error {
	if r.flags&wire.FlagNested == 0 {
		if !c.largeBudget.Acquire(r, c.down, n) {
			if err := ctxerr.Cause(r); err != nil {
				return err
			}
			return ErrCallerGone
		}
		r.largeCharge = n
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nestedLargeBytes > 0 && n > nestedOvercommit*c.agent.limits.LargeBytes-c.nestedLargeBytes {
		return fmt.Errorf("%w: %d bytes in large calls of handlers", ErrOverloaded, c.nestedLargeBytes)
	}
	r.nestedCharge = n
	c.nestedLargeBytes += n
	return nil
}
