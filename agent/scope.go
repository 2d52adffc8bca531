package agent

import (
	"context"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// scope is the calls that were begun within WaitAll and return a future.
type scope struct {
	mu    sync.Mutex
	calls []future.Any
	first context.CancelCauseFunc // ends the scope at the first error; nil where none does
}

type scopeKey struct{}

// WaitAll runs f, and returns when the calls that it began with its context have ended
// as well: those that return a future, by Func.Go and the like. It returns the error of
// f, or else that of the first call to fail in the order in which they began. Where f
// panics the calls are waited for too.
func WaitAll(ctx context.Context, f func(ctx context.Context) error) error {
	return waitAll(ctx, &scope{}, f)
}

// WaitAllOrFail is WaitAll that ends the context of f, and thus the calls, as soon as one
// of them fails. It returns the error of the call that failed first.
func WaitAllOrFail(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	first := &firstError{}
	err := waitAll(ctx, &scope{first: func(err error) { first.set(err); end(err) }}, f)
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
		s.mu.Lock()
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
func goCall[R any](ctx context.Context, a *Agent, t target, args ...any) *Future[R] {
	return inScope(ctx, launch[R](ctx, a, t, args...))
}

// inScope makes a call, be it one that never left, part of the scope of ctx.
func inScope[R any](ctx context.Context, f *Future[R]) *Future[R] {
	s, _ := ctx.Value(scopeKey{}).(*scope)
	if s == nil {
		return f
	}
	s.mu.Lock()
	s.calls = append(s.calls, f)
	s.mu.Unlock()
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
