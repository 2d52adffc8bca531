package agent

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
)

// asyncCall is a call whose result completes a future.
type asyncCall[R any] struct {
	call
	ctx         context.Context
	agent       *Agent
	activity    *activity // in which the call counts, nil for none
	future      *Future[R]
	result      R
	attended    atomic.Bool // a goroutine has waited for the future
	timersOrEnd atomic.Bool // set by startAsync and by finish: the second of them stops the timers
	timer       *time.Timer
	stopContext func() bool // stops watching ctx
}

// startAsync starts the call t with the value to which args points, with retries if t has the
// option WithRetry, and returns the future that the result completes. If the call cannot be
// started, the returned future has failed. If a function of the application panics during the
// start, startAsync ends the call and panics too. startAsync may block while it opens a pipe or
// waits for the call budget. The memory of args is in use until the future is done.
func startAsync[R any](ctx context.Context, a *Agent, t target, args any) *Future[R] {
	o := t.settings()
	dst := newDestination(ctx, o.place)
	t.dst = dst
	counted := a.countedActivity(&o)
	counted.Begin()
	if o.retry != nil {
		f := retryAsync[R](ctx, a, o.retry, t, args)
		_ = f.OnDone(func(*Future[R]) { // cannot fail
			counted.End()
			dst.end(nil)
		})
		return f
	}
	g := &asyncCall[R]{ctx: ctx, agent: a, activity: counted}
	g.future = future.NewWith[R](future.Options{Recall: g.onCancel, OnPanic: a.onPanic, Activity: counted, Attender: g, Devices: a.futureDevices()})
	g.observer = g
	if dst != nil {
		_ = g.future.OnDone(func(*Future[R]) { dst.end(nil) }) // cannot fail
	}
	started := false
	defer func() {
		if !started { // a panic, or the end of the goroutine
			_ = g.future.Fail(t.wrapError(errGoexitWaiting)) // cannot fail: nothing else has the future
			counted.End()
		}
	}()
	defer a.reportUnreturned(&g.call, &t, &started)
	err := a.startCall(ctx, &g.call, t, args)
	started = true
	if err != nil {
		_ = g.future.Fail(err) // cannot fail either
		counted.End()
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

// Attend implements future.Attender: it reads messages of the connection.
func (g *asyncCall[R]) Attend(ctx context.Context, done <-chan struct{}) {
	l := &g.leader
	if g.attended.Swap(true) {
		l = &leader{}
	}
	g.conn.attend(ctx, l, done)
}

// finish stops the timer of the limit and the watch of the context, because the call has ended. If
// startAsync has not set both of them up yet, finish only records the end, and startAsync stops
// them.
func (g *asyncCall[R]) finish() {
	if g.timersOrEnd.Swap(true) {
		g.stopTimers()
	}
}

// expire cancels the call because its context or its limit has ended, reports the end to Events,
// and fails the future. The error wraps the cause of the context if the context has ended, and
// otherwise a *TimeoutError. expire does nothing if the call has ended before. It runs on a
// goroutine of a timer or of the context.
func (g *asyncCall[R]) expire() {
	cause := ctxerr.Cause(g.ctx)
	if cause == nil {
		cause = &TimeoutError{Limit: g.limit}
	}
	if g.cancel(cause) {
		g.finish()
		err := g.wrapError(cause)
		g.agent.reportCallEnded(&g.call, err)
		_ = g.future.Fail(err)
		g.activity.End()
	}
}

// onCancel cancels the call and reports its end to Events when the application cancels the future
// with cause. The future calls onCancel before the future itself fails. If the call has ended
// already, onCancel only waits for the goroutine that still sends the request, and for one that
// receives tensors of the result into g.dst. When onCancel returns, the memory of the arguments and
// that of g.dst are free.
func (g *asyncCall[R]) onCancel(cause error) {
	if g.cancel(cause) {
		g.finish()
		g.agent.reportCallEnded(&g.call, g.wrapError(cause))
		g.activity.End()
	}
	g.dst.end(cause)
}

// callEnded implements observer: it is called when the call has ended with err or with the reply
// in. If err is not nil, callEnded fails the future with an *Error that wraps err. Otherwise it
// owns in and decodes it: an inline reply itself, a larger one on another goroutine. l is the
// leader on which callEnded runs, nil on a goroutine that does not lead.
func (g *asyncCall[R]) callEnded(in *inMessage, err error, l *leader) {
	g.finish()
	switch {
	case err != nil:
		err = g.wrapError(err)
		g.agent.reportCallEnded(&g.call, err)
		_ = g.future.Fail(err)
		g.activity.End()
	case in.isInline():
		g.decode(in, l)
	default:
		go g.decode(in, nil)
	}
}

// decode decodes in, the reply, and returns it to its pool. It reports the end of the call to
// Events and completes the future with the result. If decoding fails or panics, or an interceptor
// ends the goroutine, decode fails the future instead. l is the leader on which decode runs, nil on
// a goroutine that does not lead.
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
		g.activity.End()
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

// WaitAll runs f with a context derived from ctx, and then waits until all calls have ended that
// were begun with that context and return a future, such as those of Func.Go. It returns the error
// of f; if f returned nil, that of the first call that failed, in the order in which the calls
// returned their futures; nil if no call failed. It waits for the calls even if f fails or panics,
// and does not return early when ctx ends.
func WaitAll(ctx context.Context, f func(ctx context.Context) error) error {
	return waitAll(ctx, newScope(nil), f)
}

// WaitAllOrFail runs f with a context derived from ctx and waits for the calls that return a
// future, as WaitAll does. As soon as one of these calls fails, it cancels that context, and thus
// ends the other calls. It returns the error of the call that failed first, or the error of f if no
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

// wait blocks until all calls of the scope have ended, including those that begin while it waits.
// It returns the error of the first call that failed, in the order in which the calls returned
// their futures, or nil if none failed. It does not return early when ctx ends: the calls end with
// their own contexts. If ctx is that of a handler, the handler has no slot during the wait.
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

// callInScope starts the call t with the value to which args points, and returns the future that
// the result completes. If ctx comes from WaitAll or WaitAllOrFail, these wait for the call. The
// memory of args is in use until the future is done.
func callInScope[R any](ctx context.Context, a *Agent, t target, args any) *Future[R] {
	return trackInScope(ctx, func() *Future[R] { return startAsync[R](ctx, a, t, args) })
}

// trackInScope runs start and returns the future of start. If ctx comes from WaitAll or
// WaitAllOrFail, it adds the future to the scope of these, so that they wait for it. They wait from
// the beginning of start on, since the call may run before it has a future. If start panics,
// nothing is added. If the future fails and the scope has a function onError, that is called with
// the error.
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
