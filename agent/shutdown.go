package agent

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Shutdown leaves the group when there is nothing more to do, and then closes the
// agent, whatever the outcome.
//
// All workers of a static group call it. It serves calls until no worker has any
// under way, as caller, in a handler or in a callback of a call's future, and then all
// leave. Without a deadline in ctx it waits for as long as all workers live. One that dies
// ends it for all: the error is that of AllGather. In a dynamic group this worker ends its
// own calls, and those that it serves, and leaves; the others go on.
//
// Of several at once the later ones join the first and have its result; when the context
// of any of them ends the agent is closed, which ends the others. A handler is refused at
// once, with ErrConfig: it would wait for itself, as it does for as long as ctx where that
// is not its own. So do interceptors and callbacks.
//
// The error is an *Error. It matches that of ctx if calls were still under way when
// ctx ended. It tells too of a store that has not been told within 5 seconds.
func (a *Agent) Shutdown(ctx context.Context) error {
	if requestOf(ctx) != nil {
		return &Error{Op: "shutdown", Err: fmt.Errorf("%w: a handler cannot wait until there are none", ErrConfig)}
	}
	e, first := a.beginEnding()
	switch {
	case e == nil:
		return &Error{Op: "shutdown", Err: ErrClosed}
	case first:
		e.err = a.shutdown(ctx)
		close(e.over)
		return e.err
	}
	select {
	case <-e.over:
		return e.err
	case <-ctx.Done():
	}
	select {
	case <-e.over:
		return e.err
	default:
		return a.endWith(context.Cause(ctx))
	}
}

// ending is a Shutdown that is under way.
type ending struct {
	over chan struct{} // closed when err is set
	err  error
}

// beginEnding begins to shut down, or finds who has done so before. It returns nil if
// the agent is closed.
func (a *Agent) beginEnding() (e *ending, first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.ending == nil && a.isClosed():
		return nil, false
	case a.ending == nil:
		a.ending = &ending{over: make(chan struct{})}
		return a.ending, true
	}
	select {
	case <-a.ending.over:
		return nil, false
	default:
		return a.ending, false
	}
}

func (a *Agent) shutdown(ctx context.Context) error {
	err := a.drain(ctx)
	if err == nil && a.isStatic() {
		if err = a.leave(); err == nil {
			// The store may be with one of us, who stays until all have left it.
			_, err = gather(ctx, a, shutdownRound(), None{})
		}
	}
	if err != nil {
		return a.endWith(err)
	}
	if err := a.close(a.leave); err != nil {
		return a.gatherError("shutdown", err)
	}
	return nil
}

// endWith closes the agent because Shutdown failed, and returns its error.
func (a *Agent) endWith(cause error) error {
	e := a.gatherError("shutdown", cause)
	if err := a.Close(); err != nil {
		e.Err = errors.Join(e.Err, err)
	}
	return e
}

func shutdownRound() gathering {
	return gathering{op: "shutdown", opts: []CallOption{Timeout(0)}}
}

// workload is what a worker has had to do so far.
type workload struct {
	Begun  int64 // calls
	Active int64 // calls and handlers
}

// drain returns when this worker has no calls under way, or no worker of a static
// group has.
func (a *Agent) drain(ctx context.Context) error {
	before := int64(-1)
	for {
		if err := a.awaitIdle(ctx); err != nil || !a.isStatic() {
			return err
		}
		all, err := gather(ctx, a, shutdownRound(), a.workload())
		if err != nil {
			return err
		}
		var sum workload
		for _, w := range all {
			sum.Begun += w.value.Begun
			sum.Active += w.value.Active
		}
		// Twice the same: between the two looks at each worker nothing was begun, and
		// there was a moment between all of the first and all of the second.
		if sum.Active == 0 && sum.Begun == before {
			return nil
		}
		before = -1
		if sum.Active == 0 {
			before = sum.Begun
		}
	}
}

func (a *Agent) isStatic() bool { return a.own.member.Static }

const (
	idleFirst = 100 * time.Microsecond
	idleLast  = 10 * time.Millisecond
)

// awaitIdle returns when this worker has nothing under way. It looks from time to
// time, so that calls need not tell.
func (a *Agent) awaitIdle(ctx context.Context) error {
	t := time.NewTimer(0)
	defer t.Stop()
	for pause := idleFirst; ; pause = min(2*pause, idleLast) {
		select {
		case <-t.C:
		case <-a.base.Done():
			return ErrClosed
		case <-ctx.Done():
			w := a.workload()
			return fmt.Errorf("%d calls and handlers of %s are still under way: %w", w.Active, a.self, context.Cause(ctx))
		}
		if a.workload().Active == 0 {
			return nil
		}
		t.Reset(pause)
	}
}

// activity counts calls to others, and to this worker itself, and goroutines that run
// callbacks of their futures.
type activity struct{ begun, ended atomic.Int64 }

// Begin and End implement future.Activity.
func (c *activity) Begin() { c.begun.Add(1) }

func (c *activity) End() { c.ended.Add(1) }

// begin counts a call if that is of the application.
func (c *activity) begin(t *target) (counts bool) {
	if t.typ == groupType {
		return false
	}
	c.begun.Add(1)
	return true
}

func (a *Agent) workload() workload {
	ended := a.activity.ended.Load() // before begun, or a call in between would hide one
	begun := a.activity.begun.Load()
	return workload{Begun: begun, Active: begun - ended + a.handling()}
}

// handling is how many requests of others are here, and not answered.
func (a *Agent) handling() (n int64) {
	a.conns.Range(func(c, _ any) bool {
		n += c.(*conn).handling()
		return true
	})
	return n
}

func (c *conn) handling() (n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.serving {
		if r.handler.typ != groupType {
			n++
		}
	}
	return n
}
