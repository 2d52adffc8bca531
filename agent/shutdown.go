package agent

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
)

// Shutdown waits for pending calls and handlers, drains the extensions, leaves the group and closes
// the agent. It closes the agent also if it fails, except if ctx is the context of a handler. If an
// extension fails, Shutdown goes on, and returns the error of the extension in the end.
//
// In a static group all workers must call it. Each goes on serving calls until no worker has
// pending calls, running handlers or running callbacks of call futures; then all leave. Without a
// deadline in ctx it waits as long as all workers live. If a worker dies, Shutdown fails on all
// others, with the error of AllGather. In a dynamic group this worker waits for its own calls and
// handlers, and leaves; the others continue.
//
// Concurrent calls of Shutdown wait for the first one and return its result. When the context of
// one of them ends, the agent is closed, and all of them return. With the context of a handler
// Shutdown fails at once with ErrConfig, because it would wait for that handler. If a handler, an
// interceptor or a callback calls Shutdown with another context, Shutdown waits for its own caller
// until that context ends.
//
// The error is an *Error. It wraps the cause of ctx if calls were pending when ctx ended, and
// matches ErrTimeout if that was a deadline; it wraps ErrClosed if the agent was closed before, and
// otherwise the reason, such as that the store could not be changed within 5 seconds.
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
		return a.failShutdown(ctxerr.Cause(ctx))
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

// shutdown drains this worker and its extensions, leaves the group and closes the agent, for the
// first call of Shutdown. The error of an extension is returned at the end; the other workers do
// not notice it.
func (a *Agent) shutdown(ctx context.Context) error {
	if err := a.drain(ctx); err != nil {
		return a.failShutdown(err)
	}
	drained := a.drainExtensions(ctx)
	if a.IsStatic() {
		err := a.leaveGroup()
		if err == nil {
			// One of the workers may serve the store: it must stay until all have left the group.
			_, err = gather(ctx, a, shutdownRound(), None{})
		}
		if err != nil {
			return a.failShutdown(errtext.Join(drained, err))
		}
	}
	if err := errtext.Join(drained, a.close(a.leaveGroup)); err != nil {
		return a.opError("shutdown", err)
	}
	return nil
}

// failShutdown closes the agent after Shutdown has failed because of cause. It returns the error of
// Shutdown: an *Error that wraps cause and the error of Close, if Close fails too.
func (a *Agent) failShutdown(cause error) error {
	e := a.opError("shutdown", cause)
	if err := a.Close(); err != nil {
		e.Err = errtext.Join(e.Err, err)
	}
	return e
}

func shutdownRound() groupOp {
	return groupOp{op: "shutdown", opts: []CallOption{WithTimeout(0)}}
}

// drain blocks until this worker has no pending calls and handlers, in a static group until no
// worker has any, and returns nil. The error wraps the cause of ctx, is ErrClosed if the agent is
// closed, or, in a static group, is that of AllGather.
func (a *Agent) drain(ctx context.Context) error {
	before := int64(-1)
	for {
		if err := a.awaitIdle(ctx); err != nil || !a.IsStatic() {
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

// IsStatic reports whether the group of the agent is static: whether it has a WorldSize.
func (a *Agent) IsStatic() bool { return a.selfPeer.member.Static }

const (
	minIdlePoll = 100 * time.Microsecond
	maxIdlePoll = 10 * time.Millisecond
)

// awaitIdle blocks until this worker has no pending calls and handlers, and returns nil. The error
// is ErrClosed if the agent is closed, or wraps the cause of ctx. It polls with growing intervals,
// so that the end of a call costs nothing extra.
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
			return fmt.Errorf("calls and handlers pending: %d: %w", w.Active, ctxerr.Cause(ctx))
		}
		if a.workload().Active == 0 {
			return nil
		}
		t.Reset(pause)
	}
}

// activity counts calls, also those to this worker itself, and goroutines that run callbacks of
// their futures. Calls WithBackground do not count.
type activity struct{ begun, ended atomic.Int64 }

// Begin implements future.Activity: it counts a call, or a goroutine that is about to run callbacks
// of a future, as begun. End counts it as ended. For nil both do nothing.
func (c *activity) Begin() {
	if c != nil {
		c.begun.Add(1)
	}
}

func (c *activity) End() {
	if c != nil {
		c.ended.Add(1)
	}
}

// countedActivity returns the activity in which a call with the options o counts, nil for a call in
// the background.
func (a *Agent) countedActivity(o *callOptions) *activity {
	if o.background {
		return nil
	}
	return &a.activity
}

// workload returns how many calls and callback goroutines this worker has begun since it joined,
// and how much of its work is active: those calls and goroutines that have not ended, and the
// requests that it serves. Calls and requests in the background do not count.
func (a *Agent) workload() wire.Workload {
	ended := a.activity.ended.Load() // before begun, or a call in between would hide one
	begun := a.activity.begun.Load()
	w := wire.Workload{Begun: begun, Active: begun - ended}
	a.conns.Range(func(key, _ any) bool {
		c := key.(*conn)
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, r := range c.serving {
			if r.flags&wire.FlagBackground == 0 {
				w.Active++
			}
		}
		return true
	})
	return w
}
