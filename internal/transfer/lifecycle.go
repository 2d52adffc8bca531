package transfer

import (
	"cmp"
	"context"
	"net"
	"sync"
)

// Lifecycle covers one end of a channel from its creation to its first failure or Close, whichever
// comes first. The error of the failure, or the cause of the Close, is the error of all transfers that
// are left. A Lifecycle also counts the goroutines of the end, for which Close waits. All methods may
// be called concurrently.
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

// NewLifecycle returns a Lifecycle that has begun. At the end it calls release once, on the goroutine
// of Fail or Close, to unblock and clean up the goroutines; release must not call Close. If the end is
// a failure it then calls broken with the error, on another goroutine.
func NewLifecycle(release func() error, broken func(error)) *Lifecycle {
	l := &Lifecycle{release: release, broken: broken}
	l.idle.L = &l.mu
	l.ctx, l.end = context.WithCancelCause(context.Background())
	return l
}

// Context returns a context that ends with the Lifecycle; its cause is then the error that Err
// returns.
func (l *Lifecycle) Context() context.Context { return l.ctx }

// Err returns nil until the end, and then the error for all transfers that are left.
func (l *Lifecycle) Err() error { return context.Cause(l.ctx) }

// Go runs f on a goroutine for which Close waits. f must return after the end of the Lifecycle.
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

// CompleteAsync calls done with err on another goroutine, for which Close waits. The caller may hold
// locks that done takes.
func (l *Lifecycle) CompleteAsync(done func(error), err error) {
	l.Go(func() { done(err) })
}

// Fail ends the Lifecycle with err: it calls release, and then broken with the error on another
// goroutine. A nil err stands for [net.ErrClosed]. Fail does not wait for the goroutines of the
// end. If the Lifecycle has ended already, Fail does nothing.
func (l *Lifecycle) Fail(err error) {
	l.finish(err, l.broken)
}

// Close ends the Lifecycle with cause, unless it has ended, and waits until all goroutines have ended.
// A nil cause stands for [net.ErrClosed]. It returns the error of release. It must not be called from
// one of these goroutines.
func (l *Lifecycle) Close(cause error) error {
	l.finish(cause, nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.running > 0 {
		l.idle.Wait()
	}
	return l.released
}

// finish ends the Lifecycle with err, or with net.ErrClosed if err is nil, and calls release. Then it
// calls report, if not nil, with the error on another goroutine. If the Lifecycle has ended, finish
// does nothing. It counts as a running goroutine until it returns, so that a concurrent Close waits for
// it.
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

// Drain closes q and completes the transfers left in it with the error of the Lifecycle, which must
// have ended. The goroutine that processes q calls it when it has stopped using the memory of all of
// them.
func (l *Lifecycle) Drain(q *Queue) {
	for _, t := range q.Close() {
		if t.Done != nil {
			t.Done(l.Err())
		}
	}
}
