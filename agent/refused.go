package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
)

// refused is the task of a request that does not get to its handler: it waits behind
// others as any does whose answer takes room.
type refused struct{ err error }

// Run answers the request.
func (t refused) Run(_ context.Context, r *Request) { _ = r.Fail(t.err) } // nobody else answers it

func (refused) short() bool { return true }

// refuse answers a request that does not get to its handler, once there is room.
func (c *conn) refuse(r *Request, err error, s *shift) {
	level, stack := slog.LevelDebug, ""
	if p, ok := errors.AsType[*PanicError](err); ok { // of an allocator, an interceptor, or what opens the request
		level, stack = slog.LevelError, p.Stack
	}
	c.agent.log.Log(r, level, "call refused", "function", r.Name(), "caller", c.peer.Name, "error", err, "stack", stack)
	r.task = refused{err}
	c.launch(r, s)
}

// reject answers a request beyond what the other end has agreed to, which nothing here
// counts. Who takes in no answers either loses the pipe.
func (c *conn) reject(r *Request, err error) {
	if n := c.backlog.bytes.Load(); n >= c.backlog.most {
		c.pipe.Abort(fmt.Errorf("%w: answers of %d bytes wait for %s to read, and there are more calls than it agreed to", ErrOverloaded, n, c.peer))
	}
	c.agent.log.Debug("call rejected", "function", r.Name(), "caller", c.peer.Name, "error", err)
	_ = r.Fail(err) // nobody else answers it
}
