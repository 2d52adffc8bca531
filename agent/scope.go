package agent

import (
	"context"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// scope is the calls that were begun within WaitAll and return a future.
type scope struct {
	mu        sync.Mutex
	calls     []future.Any
	beginning int                     // calls that may run already, and have no future yet
	began     sync.Cond               // one of them less
	first     context.CancelCauseFunc // ends the scope at the first error; nil where none does
}

func newScope(first context.CancelCauseFunc) *scope {
	s := &scope{first: first}
	s.began.L = &s.mu
	return s
}

type scopeKey struct{}

// WaitAll runs f, and returns when the calls that it began with its context have ended
// as well: those that return a future, by Func.Go and the like. It returns the error of
// f, or else that of the first call to fail in the order in which they began. Where f
// panics the calls are waited for too.
func WaitAll(ctx context.Context, f func(ctx context.Context) error) error {
	return waitAll(ctx, newScope(nil), f)
}

// WaitAllOrFail is WaitAll that ends the context of f, and thus the calls, as soon as one
// of them fails. It returns the error of the call that failed first.
func WaitAllOrFail(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	first := &firstError{}
	err := waitAll(ctx, newScope(func(err error) { first.set(err); end(err) }), f)
	if failed := first.get(); failed != nil {
		return failed
	}
	return err
}

func waitAll(ctx context.Context, s *scope, f func(ctx context.Context) error) (err error) {
	defer func() {
		if failed := s.settle(ctx); err == nil {
			err = failed
		}
	}()
	return f(context.WithValue(ctx, scopeKey{}, s))
}

// settle waits until there is no call any more, and returns the first error. The calls
// end with their context.
func (s *scope) settle(ctx context.Context) (first error) {
	defer leaveSlot(ctx)()
	for {
		calls := s.take()
		if len(calls) == 0 {
			return first
		}
		if err := future.Settle(context.WithoutCancel(ctx), calls...); first == nil {
			first = err
		}
	}
}

// take returns the calls since the last time, and none only where none is being begun.
func (s *scope) take() []future.Any {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.calls) == 0 && s.beginning > 0 {
		s.began.Wait()
	}
	calls := s.calls
	s.calls = nil
	return calls
}

type firstError struct {
	mu  sync.Mutex
	err error
}

func (f *firstError) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}

func (f *firstError) get() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// goCall makes a call whose result goes to a future, within the scope of ctx.
func goCall[R any](ctx context.Context, a *Agent, t target, args any) *Future[R] {
	return inScope(ctx, func() *Future[R] { return launch[R](ctx, a, t, args) })
}

// inScope makes a call, be it one that never leaves, part of the scope of ctx.
func inScope[R any](ctx context.Context, launch func() *Future[R]) *Future[R] {
	s, _ := ctx.Value(scopeKey{}).(*scope)
	if s == nil {
		return launch()
	}
	f := s.launch(func() future.Any { return launch() }).(*Future[R])
	if s.first != nil {
		// It is no nil, and cannot be refused.
		_ = f.OnDone(func(f *Future[R]) {
			if err := f.Err(); err != nil {
				s.first(err)
			}
		})
	}
	return f
}

// launch begins a call, which counts before it has a future: it may run by then.
func (s *scope) launch(launch func() future.Any) future.Any {
	s.mu.Lock()
	s.beginning++
	s.mu.Unlock()
	var f future.Any
	defer func() {
		s.mu.Lock()
		if f != nil {
			s.calls = append(s.calls, f)
		}
		s.beginning--
		s.mu.Unlock()
		s.began.Broadcast()
	}()
	f = launch()
	return f
}
