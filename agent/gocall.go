package agent

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// asyncCall is a call whose result goes to a future.
type asyncCall[R any] struct {
	call
	ctx    context.Context
	agent  *Agent
	future *Future[R]
	result R
	ended  atomic.Bool // the call is over, or somebody watches it: who comes second ends that
	timer  *time.Timer
	stop   func() bool // looking after ctx
}

// launch makes a call whose result goes to a future.
func launch[R any](ctx context.Context, a *Agent, t target, args any) *Future[R] {
	if r := t.retry(); r != nil {
		a.activity.begin(&t)
		f := insistLater[R](ctx, a, r, t, args)
		_ = f.OnDone(func(*Future[R]) { a.activity.ended.Add(1) }) // it is never refused
		return f
	}
	g := &asyncCall[R]{ctx: ctx, agent: a}
	g.future = future.NewWith[R](future.Options{Recall: g.recall, OnPanic: a.onPanic, Activity: &a.activity})
	g.observer = g
	a.activity.begin(&t)
	if err := a.begin(ctx, &g.call, t, args); err != nil {
		_ = g.future.Fail(err) // nobody else has it
		a.activity.ended.Add(1)
		return g.future
	}
	g.watch()
	return g.future
}

// watch ends the call when its time is over, or its context ends.
func (g *asyncCall[R]) watch() {
	expire := g.expire
	if g.limit > 0 {
		g.timer = time.AfterFunc(time.Until(g.begun.Add(g.limit)), expire)
	}
	if g.ctx.Done() != nil {
		g.stop = context.AfterFunc(g.ctx, expire)
	}
	if g.ended.Swap(true) {
		g.unwatch() // the answer was faster
	}
}

func (g *asyncCall[R]) unwatch() {
	if g.timer != nil {
		g.timer.Stop()
	}
	if g.stop != nil {
		g.stop()
	}
}

// expire ends the call with its context, or else for its limit, unless it is answered.
func (g *asyncCall[R]) expire() {
	cause := context.Cause(g.ctx)
	if cause == nil {
		cause = &TimeoutError{Limit: g.limit}
	}
	if g.abandon(cause) {
		g.finish()
		_ = g.future.Fail(g.fault(cause))
		g.agent.activity.ended.Add(1)
	}
}

// recall is called when the future is about to be cancelled.
func (g *asyncCall[R]) recall(cause error) {
	if g.abandon(cause) {
		g.finish()
		g.agent.activity.ended.Add(1)
	}
}

// settled has the answer decoded, here if it is small, in the shift s if that is not nil.
func (g *asyncCall[R]) settled(answer *arrival, err error, s *shift) {
	g.finish()
	switch {
	case err != nil:
		_ = g.future.Fail(g.fault(err))
		g.agent.activity.ended.Add(1)
	case answer.immediate():
		g.decode(answer, s)
	default:
		go g.decode(answer, nil)
	}
}

// finish stops watching, or has that done by who is about to begin.
func (g *asyncCall[R]) finish() {
	if g.ended.Swap(true) {
		g.unwatch()
	}
}

// decode completes the future, even if an interceptor ends the goroutine.
func (g *asyncCall[R]) decode(answer *arrival, s *shift) {
	err := errGoexit
	defer func() {
		if err != nil {
			_ = g.future.Fail(g.fault(err)) // somebody may have cancelled it
		} else {
			_ = g.future.SetOn(g.result, g.streams...)
		}
		g.agent.activity.ended.Add(1)
	}()
	err = guarded(func() error { return g.taken(answer, s) })
}

// taken decodes the answer. Interceptors that run in a shift have a context that says so.
func (g *asyncCall[R]) taken(answer *arrival, s *shift) error {
	if s == nil || len(g.agent.interceptors) == 0 {
		return g.agent.take(g.ctx, &g.call, answer, &g.result)
	}
	ctx := &shiftContext{Context: g.ctx, shift: s}
	defer ctx.end()
	return g.agent.take(ctx, &g.call, answer, &g.result)
}
