package agent

import (
	"context"
	"sync"
	"time"
)

// callContext is the context of a handler. Most handlers never ask whether it has
// ended, so what that takes is made when somebody does.
type callContext struct {
	base     context.Context // of the agent
	deadline time.Time       // of the call, zero without one
	limit    time.Duration

	mu    sync.Mutex
	inner context.Context // what Done, Err and Cause rely on, once it is there
	end   context.CancelCauseFunc
	stop  context.CancelFunc // of the timer
	over  bool               // the call has been answered
}

// Deadline implements context.Context.
func (c *callContext) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

// Done implements context.Context.
func (c *callContext) Done() <-chan struct{} { return c.real().Done() }

// Err implements context.Context.
func (c *callContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.inner != nil:
		return c.inner.Err()
	case c.over:
		return context.Canceled
	case !c.deadline.IsZero() && !time.Now().Before(c.deadline):
		return context.DeadlineExceeded
	}
	return c.base.Err()
}

// value is Value for what the context of the package looks for to find the cause.
func (c *callContext) value(key any) any { return c.real().Value(key) }

func (c *callContext) real() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ensure()
}

// ensure makes inner. The caller holds mu.
func (c *callContext) ensure() context.Context {
	if c.inner != nil {
		return c.inner
	}
	c.inner, c.end = context.WithCancelCause(c.base)
	if !c.deadline.IsZero() {
		c.inner, c.stop = context.WithDeadlineCause(c.inner, c.deadline, &TimeoutError{Limit: c.limit})
	}
	if c.over {
		c.letGo()
	}
	return c.inner
}

// cancel ends the context with a cause.
func (c *callContext) cancel(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ensure()
	c.end(cause)
}

// finish lets go of what the context holds, when the call has been answered.
func (c *callContext) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.inner != nil {
		c.letGo()
	}
}

// letGo ends inner. The caller holds mu.
func (c *callContext) letGo() {
	c.end(context.Canceled)
	if c.stop != nil {
		c.stop()
	}
}

type requestKey struct{}

// requestOf is the request whose handler has ctx, if it is one's.
func requestOf(ctx context.Context) *Request {
	r, _ := ctx.Value(requestKey{}).(*Request)
	return r
}

// Caller is who called the handler that has ctx.
func Caller(ctx context.Context) (WorkerInfo, bool) {
	if r := requestOf(ctx); r != nil {
		return r.conn.peer, true
	}
	return WorkerInfo{}, false
}

// FromContext is the agent that serves the call whose handler has ctx, for calls of
// its own; nil if ctx is not a handler's.
func FromContext(ctx context.Context) *Agent {
	if r := requestOf(ctx); r != nil {
		return r.conn.agent
	}
	return nil
}
