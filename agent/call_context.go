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

// withLimit returns a context derived from ctx that also ends, with a *TimeoutError as its cause,
// when the limit of the call has passed since c.begun. If c.limit is 0 it ends with ctx only. The
// caller must call finish of the result.
func (c *call) withLimit(ctx context.Context) *callContext {
	limited := &callContext{parent: ctx, limit: c.limit}
	if c.limit > 0 {
		limited.deadline = c.begun.Add(c.limit)
	}
	return limited
}

// Deadline implements context.Context. It returns the deadline of the call or that of the parent
// context, whichever is earlier, and false if neither has one.
func (c *callContext) Deadline() (time.Time, bool) {
	deadline, ok := c.parent.Deadline()
	if c.deadline.IsZero() || ok && deadline.Before(c.deadline) {
		return deadline, ok
	}
	return c.deadline, true
}

// Done implements context.Context. It returns a channel that is closed when the context ends. The
// first use creates an inner context, with a timer if there is a deadline.
func (c *callContext) Done() <-chan struct{} { return c.current(true).Done() }

// Err implements context.Context. It returns nil while the context has not ended;
// context.DeadlineExceeded once the deadline has passed, even if no timer exists; context.Canceled
// if the context was cancelled or finished; or the error of the parent context if that ended first.
func (c *callContext) Err() error { return c.current(false).Err() }

// Value implements context.Context. It returns the parent's value for key. Once an inner context
// exists, Value asks the inner context, in which context.Cause finds the cause. Value itself does
// not check the deadline: context.Cause calls Err before Value, and Err creates the inner context
// if the deadline has passed.
func (c *callContext) Value(key any) any {
	c.mu.Lock()
	ctx := c.inner
	c.mu.Unlock()
	if ctx == nil {
		ctx = c.parent
	}
	return ctx.Value(key)
}

// current returns the inner context. If there is none, it creates one if create is true, if the
// deadline has passed or if finish was called; otherwise it returns the parent. It takes c.mu.
func (c *callContext) current(create bool) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil && !create && !c.finished && (c.deadline.IsZero() || time.Now().Before(c.deadline)) {
		return c.parent
	}
	return c.makeInner()
}

// makeInner returns the inner context, and creates it from the parent and the deadline if there is
// none. The caller holds c.mu.
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

// cancel ends the context with the given cause. If the context has ended before, the earlier cause
// remains.
func (c *callContext) cancel(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.makeInner()
	c.cancelInner(cause)
}

// finish ends the context with context.Canceled and stops its timer. If the context has ended
// before, the earlier cause remains. It may be called several times.
func (c *callContext) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finished = true
	if c.inner != nil {
		c.releaseInner()
	}
}

// releaseInner cancels the inner context, which must exist, with context.Canceled and stops its
// timer. The caller holds c.mu.
func (c *callContext) releaseInner() {
	c.cancelInner(context.Canceled)
	if c.stopTimer != nil {
		c.stopTimer()
	}
}
