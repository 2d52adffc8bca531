package transfer

import (
	"cmp"
	"context"
	"net"
	"sync"
)

// Lifecycle covers one end of a channel from its creation to its first failure or Close, whichever
// comes first. The error of the failure, or the cause of the Close, is the error of all transfers
// that are left. A Lifecycle also counts the goroutines of the end, for which Close waits. All
// methods may be called concurrently.
type Lifecycle struct {
	release func() error
	broken  func(error)
	ctx     context.Context
	end     context.CancelCauseFunc

	mu       sync.Mutex
	idle     sync.Cond // running has become 0
	running  int
	released error // the error of release
}

// NewLifecycle returns a Lifecycle that has begun. When it ends it calls release once, on the
// goroutine of Fail or Close; release must make all goroutines of the Lifecycle return, and must
// not call Close. If Fail has ended it, it then calls broken with the error, on another goroutine.
// The Lifecycle retains both functions.
func NewLifecycle(release func() error, broken func(error)) *Lifecycle {
	l := &Lifecycle{release: release, broken: broken}
	l.idle.L = &l.mu
	l.ctx, l.end = context.WithCancelCause(context.Background())
	return l
}

// Context returns a context that is done when the Lifecycle has ended. Its cause, as of
// context.Cause, is then the error that Err returns.
func (l *Lifecycle) Context() context.Context { return l.ctx }

// Err returns nil before the Lifecycle has ended, and afterwards the error of Fail or the cause of
// Close that ended it, which is never nil. Transfers that remain complete with this error.
func (l *Lifecycle) Err() error { return context.Cause(l.ctx) }

// Go runs f on a new goroutine, for which Close waits. f must return soon after the end of the
// Lifecycle.
func (l *Lifecycle) Go(f func()) {
	l.mu.Lock()
	l.running++
	l.mu.Unlock()
	go func() {
		defer l.exit()
		f()
	}()
}

func (l *Lifecycle) exit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	if l.running == 0 {
		l.idle.Broadcast()
	}
}

// CompleteAsync calls done with err on a new goroutine, for which Close waits. It does not block,
// so the caller may hold locks that done takes.
func (l *Lifecycle) CompleteAsync(done func(error), err error) {
	l.Go(func() { done(err) })
}

// Fail ends the Lifecycle with err, or with [net.ErrClosed] if err is nil: it calls release, and
// then starts a goroutine that calls broken with the error. It does not wait for the goroutines of
// the Lifecycle. If the Lifecycle has ended already, Fail does nothing.
func (l *Lifecycle) Fail(err error) {
	l.finish(err, l.broken)
}

// Close ends the Lifecycle with cause, or with [net.ErrClosed] if cause is nil: it calls release,
// but not broken. If the Lifecycle has ended already, it keeps its error. In both cases Close then
// waits until all goroutines of the Lifecycle have ended, and returns the error of release. It must
// not be called from one of these goroutines.
func (l *Lifecycle) Close(cause error) error {
	l.finish(cause, nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.running > 0 {
		l.idle.Wait()
	}
	return l.released
}

// finish ends the Lifecycle with err, or with net.ErrClosed if err is nil: it calls release and
// stores its error, and then, if report is not nil, starts a goroutine that calls report with the
// error of the Lifecycle. If the Lifecycle has ended already, finish does nothing. It counts as a
// goroutine of the Lifecycle until it returns, so that a concurrent Close waits for it.
func (l *Lifecycle) finish(err error, report func(error)) {
	err = cmp.Or(err, net.ErrClosed)
	l.mu.Lock()
	if l.ctx.Err() != nil {
		l.mu.Unlock()
		return
	}
	l.end(err)
	l.running++
	l.mu.Unlock()
	defer l.exit()

	released := l.release()
	l.mu.Lock()
	l.released = released
	l.mu.Unlock()
	if report != nil {
		l.CompleteAsync(report, err)
	}
}

// Drain closes q and completes the transfers in it with the error of the Lifecycle, which must have
// ended. It calls their Done functions on this goroutine; a transfer with a nil Done needs none. It
// must be called when the memory of these transfers is not in use any more, by the goroutine that
// processes q if there is one.
func (l *Lifecycle) Drain(q *Queue) {
	for _, t := range q.Close() {
		if t.Done != nil {
			t.Done(l.Err())
		}
	}
}
