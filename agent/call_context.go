package agent

import (
	"context"
	"sync"
	"time"
)

// callContext is the context of a handler, or of a goroutine that waits on behalf of a call. It
// ends with its parent, at the deadline of the call with a *TimeoutError as its cause, or when it
// is cancelled. Most handlers do not wait for its end, and most messages are sent without waiting,
// so the context and the timer that this takes are made on first use. Its user must call finish.
type callContext struct {
	parent   context.Context
	deadline time.Time     // zero for none
	limit    time.Duration // of the *TimeoutError

	mu          sync.Mutex
	inner       context.Context // made from parent on first use
	cancelInner context.CancelCauseFunc
	stopTimer   context.CancelFunc
	finished    bool
}

// withLimit returns a context derived from ctx that also ends at the limit of the call. The caller
// must call its finish.
func (c *call) withLimit(ctx context.Context) *callContext {
	limited := &callContext{parent: ctx, limit: c.limit}
	if c.limit > 0 {
		limited.deadline = c.begun.Add(c.limit)
	}
	return limited
}

// Deadline implements context.Context.
func (c *callContext) Deadline() (time.Time, bool) {
	deadline, ok := c.parent.Deadline()
	if c.deadline.IsZero() || ok && deadline.Before(c.deadline) {
		return deadline, ok
	}
	return c.deadline, true
}

// Done implements context.Context.
func (c *callContext) Done() <-chan struct{} { return c.current(true).Done() }

// Err implements context.Context. It returns an error once the deadline has passed, even if no
// timer has been made.
func (c *callContext) Err() error { return c.current(false).Err() }

// Value implements context.Context. It does not check the deadline, which only the cause depends
// on: context.Cause calls Err first, and thus finds inner.
func (c *callContext) Value(key any) any {
	c.mu.Lock()
	ctx := c.inner
	c.mu.Unlock()
	if ctx == nil {
		ctx = c.parent
	}
	return ctx.Value(key)
}

// current returns inner. If inner has not been made, current makes it if create is set, if the
// deadline has passed or if finish was called. Otherwise it returns the parent.
func (c *callContext) current(create bool) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil && !create && !c.finished && (c.deadline.IsZero() || time.Now().Before(c.deadline)) {
		return c.parent
	}
	return c.makeInner()
}

// makeInner returns inner, and makes it if it is nil. The caller holds mu.
func (c *callContext) makeInner() context.Context {
	if c.inner != nil {
		return c.inner
	}
	c.inner, c.cancelInner = context.WithCancelCause(c.parent)
	if !c.deadline.IsZero() {
		c.inner, c.stopTimer = context.WithDeadlineCause(c.inner, c.deadline, &TimeoutError{Limit: c.limit})
	}
	if c.finished {
		c.releaseInner()
	}
	return c.inner
}

// cancel ends the context with a cause.
func (c *callContext) cancel(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.makeInner()
	c.cancelInner(cause)
}

// finish ends the context with context.Canceled, and releases its timer.
func (c *callContext) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finished = true
	if c.inner != nil {
		c.releaseInner()
	}
}

// releaseInner cancels inner, which must have been made, and stops its timer. The caller holds
// mu.
func (c *callContext) releaseInner() {
	c.cancelInner(context.Canceled)
	if c.stopTimer != nil {
		c.stopTimer()
	}
}
