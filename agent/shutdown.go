package agent

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
)

// Shutdown waits for pending calls and handlers, leaves the group and closes the agent. It closes
// the agent also if it fails.
//
// In a static group all workers must call it. Each goes on serving calls until no worker has
// pending calls, running handlers or running callbacks of call futures; then all leave. Without a
// deadline in ctx it waits as long as all workers live. If a worker dies Shutdown fails on all
// others, with the error of AllGather. In a dynamic group this worker waits for its own calls and
// handlers, and leaves; the others continue.
//
// Concurrent calls of Shutdown wait for the first one and return its result. When the context of
// any of them ends, the agent is closed and all return. With the context of a handler Shutdown
// fails at once with ErrConfig, because it would wait for that handler. With another context in a
// handler, in an interceptor or in a callback it waits for its caller until ctx ends.
//
// The error is an *Error. It matches that of ctx if calls were pending when ctx ended, and
// ErrClosed if the agent was closed before. It also reports that the store could not be changed
// within 5 seconds.
func (a *Agent) Shutdown(ctx context.Context) error {
	if requestOf(ctx) != nil {
		return &Error{Op: "shutdown", Err: fmt.Errorf("%w: a handler cannot wait until no handlers run", ErrConfig)}
	}
	op, first := a.startShutdown()
	switch {
	case op == nil:
		return &Error{Op: "shutdown", Err: ErrClosed}
	case first:
		op.err = a.shutdown(ctx)
		close(op.done)
		return op.err
	}
	select {
	case <-op.done:
		return op.err
	case <-ctx.Done():
	}
	select {
	case <-op.done:
		return op.err
	default:
		return a.failShutdown(context.Cause(ctx))
	}
}

// shutdownOp is a Shutdown in progress.
type shutdownOp struct {
	done chan struct{} // closed when err is set
	err  error
}

// startShutdown starts a Shutdown, which the caller must then perform, and returns it and true. If
// a Shutdown is in progress, it returns that one and false. It returns nil and false if the agent
// is closed or a Shutdown has ended.
func (a *Agent) startShutdown() (op *shutdownOp, first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.shutdownOp == nil && a.isClosed():
		return nil, false
	case a.shutdownOp == nil:
		a.shutdownOp = &shutdownOp{done: make(chan struct{})}
		return a.shutdownOp, true
	}
	select {
	case <-a.shutdownOp.done:
		return nil, false
	default:
		return a.shutdownOp, false
	}
}

func (a *Agent) shutdown(ctx context.Context) error {
	err := a.drain(ctx)
	if err == nil && a.isStatic() {
		if err = a.leaveGroup(); err == nil {
			// One of the workers may serve the store: it must stay until all have left the group.
			_, err = gather(ctx, a, shutdownRound(), None{})
		}
	}
	if err != nil {
		return a.failShutdown(err)
	}
	if err := a.close(a.leaveGroup); err != nil {
		return a.opError("shutdown", err)
	}
	return nil
}

// failShutdown closes the agent after Shutdown has failed, and returns the error of Shutdown.
func (a *Agent) failShutdown(cause error) error {
	e := a.opError("shutdown", cause)
	if err := a.Close(); err != nil {
		e.Err = errors.Join(e.Err, err)
	}
	return e
}

func shutdownRound() groupOp {
	return groupOp{op: "shutdown", opts: []CallOption{WithTimeout(0)}}
}

// drain returns nil once this worker has no pending calls and handlers, and in a static group
// once no worker has. The error is that of ctx, ErrClosed, or, in a static group, that of
// AllGather.
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
		var sum wire.Workload
		for _, w := range all {
			sum.Begun += w.value.Begun
			sum.Active += w.value.Active
		}
		// Two rounds without activity and with the same number of calls: no worker has begun a
		// call between its two contributions, and all first contributions precede all second
		// ones, so at some moment between them no worker was active.
		if sum.Active == 0 && sum.Begun == before {
			return nil
		}
		before = -1
		if sum.Active == 0 {
			before = sum.Begun
		}
	}
}

func (a *Agent) isStatic() bool { return a.selfPeer.member.Static }

const (
	minIdlePoll = 100 * time.Microsecond
	maxIdlePoll = 10 * time.Millisecond
)

// awaitIdle returns nil once this worker has no pending calls and handlers. The error is
// ErrClosed if the agent is closed, or wraps the cause of ctx. It polls with growing intervals,
// so that calls have no extra work at their end.
func (a *Agent) awaitIdle(ctx context.Context) error {
	t := time.NewTimer(0)
	defer t.Stop()
	for pause := minIdlePoll; ; pause = min(2*pause, maxIdlePoll) {
		select {
		case <-t.C:
		case <-a.base.Done():
			return ErrClosed
		case <-ctx.Done():
			w := a.workload()
			return fmt.Errorf("%d calls and handlers of %s are still pending: %w", w.Active, a.self, context.Cause(ctx))
		}
		if a.workload().Active == 0 {
			return nil
		}
		t.Reset(pause)
	}
}

// activity counts calls, also those to this worker itself, and goroutines that run callbacks of
// their futures.
type activity struct{ begun, ended atomic.Int64 }

// Begin and End implement future.Activity.
func (c *activity) Begin() { c.begun.Add(1) }

func (c *activity) End() { c.ended.Add(1) }

// begin counts a call as begun and returns true. The caller then must add 1 to ended when the call
// ends. For a call of a group round begin counts nothing and returns false.
func (c *activity) begin(t *target) (counts bool) {
	if t.typ == wire.GroupType {
		return false
	}
	c.begun.Add(1)
	return true
}

// workload returns the activity of this worker.
func (a *Agent) workload() wire.Workload {
	ended := a.activity.ended.Load() // before begun, or a call in between would hide one
	begun := a.activity.begun.Load()
	w := wire.Workload{Begun: begun, Active: begun - ended}
	a.conns.Range(func(key, _ any) bool {
		c := key.(*conn)
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, r := range c.serving {
			if r.handler.typ != wire.GroupType {
				w.Active++
			}
		}
		return true
	})
	return w
}
