package agent

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// asyncCall is a call whose result completes a future.
type asyncCall[R any] struct {
	call
	ctx         context.Context
	agent       *Agent
	future      *Future[R]
	result      R
	timersOrEnd atomic.Bool // set by startAsync and by finish: the second of them stops the timers
	timer       *time.Timer
	stopContext func() bool // stops watching ctx
}

// startAsync starts a call with the value to which args points, and returns the future that the
// result completes. The future has failed if the call could not be started. startAsync may block
// while it opens a pipe or waits for the call budget.
func startAsync[R any](ctx context.Context, a *Agent, t target, args any) *Future[R] {
	if r := t.retry(); r != nil {
		a.activity.begin(&t)
		f := retryAsync[R](ctx, a, r, t, args)
		_ = f.OnDone(func(*Future[R]) { a.activity.ended.Add(1) }) // cannot fail
		return f
	}
	g := &asyncCall[R]{ctx: ctx, agent: a}
	g.future = future.NewWith[R](future.Options{Recall: g.onCancel, OnPanic: a.onPanic, Activity: &a.activity})
	g.observer = g
	a.activity.begin(&t)
	if err := a.startCall(ctx, &g.call, t, args); err != nil {
		_ = g.future.Fail(err) // cannot fail: nothing else has the future
		a.activity.ended.Add(1)
		return g.future
	}
	expire := g.expire
	if g.limit > 0 {
		g.timer = time.AfterFunc(time.Until(g.begun.Add(g.limit)), expire)
	}
	if ctx.Done() != nil {
		g.stopContext = context.AfterFunc(ctx, expire)
	}
	if g.timersOrEnd.Swap(true) {
		g.stopTimers() // the call has ended before
	}
	return g.future
}

func (g *asyncCall[R]) stopTimers() {
	if g.timer != nil {
		g.timer.Stop()
	}
	if g.stopContext != nil {
		g.stopContext()
	}
}

// finish marks the call as ended and stops its timers. If startAsync has not started the timers
// yet, finish leaves it to startAsync to stop them.
func (g *asyncCall[R]) finish() {
	if g.timersOrEnd.Swap(true) {
		g.stopTimers()
	}
}

// expire cancels the call and fails its future: with the cause of the context if that has ended,
// otherwise with a *TimeoutError. It does nothing if the call has ended. It runs on a goroutine
// of a timer or of the context.
func (g *asyncCall[R]) expire() {
	cause := context.Cause(g.ctx)
	if cause == nil {
		cause = &TimeoutError{Limit: g.limit}
	}
	if g.cancel(cause) {
		g.finish()
		err := g.wrapError(cause)
		g.agent.reportCallEnded(&g.call, err)
		_ = g.future.Fail(err)
		g.agent.activity.ended.Add(1)
	}
}

// onCancel cancels the call when its future is cancelled with cause. The future calls onCancel
// before it fails. When onCancel returns, the memory of the arguments is free.
func (g *asyncCall[R]) onCancel(cause error) {
	if g.cancel(cause) {
		g.finish()
		g.agent.reportCallEnded(&g.call, g.wrapError(cause))
		g.agent.activity.ended.Add(1)
	}
}

// callEnded implements observer. If err is not nil, it fails the future with err. Otherwise it
// decodes the reply in, which it owns: an inline reply at once, a larger one on another goroutine.
func (g *asyncCall[R]) callEnded(in *inMessage, err error, l *leader) {
	g.finish()
	switch {
	case err != nil:
		err = g.wrapError(err)
		g.agent.reportCallEnded(&g.call, err)
		_ = g.future.Fail(err)
		g.agent.activity.ended.Add(1)
	case in.isInline():
		g.decode(in, l)
	default:
		go g.decode(in, nil)
	}
}

// decode decodes the reply in, returns it to its pool and completes the future. If an interceptor
// ends the goroutine, the future fails. l is the leader on which decode runs, nil on another
// goroutine.
func (g *asyncCall[R]) decode(in *inMessage, l *leader) {
	err := errGoexit
	defer func() {
		if err != nil {
			err = g.wrapError(err)
		}
		g.agent.reportCallEnded(&g.call, err)
		if err != nil {
			_ = g.future.Fail(err) // fails if the future was cancelled
		} else {
			_ = g.future.SetOn(g.result, g.streams...)
		}
		g.agent.activity.ended.Add(1)
	}()
	err = catchPanic(func() error {
		if l == nil || len(g.agent.interceptors) == 0 {
			return g.agent.decodeReply(g.ctx, &g.call, in, &g.result)
		}
		ctx := &leaderContext{Context: g.ctx, leader: l}
		defer ctx.finish()
		return g.agent.decodeReply(ctx, &g.call, in, &g.result)
	})
}

// scope is the set of calls for which WaitAll waits: those with a future that were begun with the
// context that WaitAll passes to its function.
type scope struct {
	mu       sync.Mutex
	calls    []future.Any
	starting int             // calls that are being started and have no future yet
	started  sync.Cond       // signals that starting has decreased
	onError  func(err error) // called with the error of a call; may be nil
}

func newScope(onError func(error)) *scope {
	s := &scope{onError: onError}
	s.started.L = &s.mu
	return s
}

type scopeKey struct{}

// WaitAll runs f with a context derived from ctx. It also waits for the calls that were begun with
// that context and that return a future, such as those of Func.Go. It returns the error of f, or
// else that of the first call that failed, in the order in which the calls began. It waits for the
// calls even if f panics.
func WaitAll(ctx context.Context, f func(ctx context.Context) error) error {
	return waitAll(ctx, newScope(nil), f)
}

// WaitAllOrFail is WaitAll, except that it ends the context of f, and thus the calls, as soon as
// one of them fails. It returns the error of the call that failed first, or the error of f if no
// call failed.
func WaitAllOrFail(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var mu sync.Mutex
	var first error
	err := waitAll(ctx, newScope(func(err error) {
		mu.Lock()
		if first == nil {
			first = err
		}
		mu.Unlock()
		end(err)
	}), f)
	mu.Lock()
	defer mu.Unlock()
	if first != nil {
		return first
	}
	return err
}

func waitAll(ctx context.Context, s *scope, f func(ctx context.Context) error) (err error) {
	defer func() {
		if failed := s.wait(ctx); err == nil {
			err = failed
		}
	}()
	return f(context.WithValue(ctx, scopeKey{}, s))
}

// wait waits until all calls have ended, including those that begin while it waits, and returns
// the error of the first one that failed, in the order in which they began. It does not return
// early when ctx ends: the calls end with their own contexts.
func (s *scope) wait(ctx context.Context) (first error) {
	defer beginWait(ctx)()
	for {
		s.mu.Lock()
		for len(s.calls) == 0 && s.starting > 0 {
			s.started.Wait()
		}
		calls := s.calls
		s.calls = nil
		s.mu.Unlock()
		if len(calls) == 0 {
			return first
		}
		if err := future.Settle(context.WithoutCancel(ctx), calls...); first == nil {
			first = err
		}
	}
}

// callInScope starts a call with the value to which args points, and returns the future that the
// result completes. The call belongs to the scope of ctx, if there is one.
func callInScope[R any](ctx context.Context, a *Agent, t target, args any) *Future[R] {
	return trackInScope(ctx, func() *Future[R] { return startAsync[R](ctx, a, t, args) })
}

// trackInScope runs start and returns its future, which it adds to the scope of ctx, if there is
// one. The scope waits from the beginning of start on, since the call may run before it has a
// future. If start panics, nothing is added. If the future fails, onError of the scope is called
// with the error.
func trackInScope[R any](ctx context.Context, start func() *Future[R]) (f *Future[R]) {
	s, _ := ctx.Value(scopeKey{}).(*scope)
	if s == nil {
		return start()
	}
	s.mu.Lock()
	s.starting++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		if f != nil {
			s.calls = append(s.calls, f)
		}
		s.starting--
		s.mu.Unlock()
		s.started.Broadcast()
	}()
	f = start()
	if s.onError != nil {
		_ = f.OnDone(func(f *Future[R]) { // cannot fail
			if err := f.Err(); err != nil {
				s.onError(err)
			}
		})
	}
	return f
}
