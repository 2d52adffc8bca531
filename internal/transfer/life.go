package transfer

import (
	"cmp"
	"context"
	"net"
	"sync"
)

// Life is the life of one end of a channel. It ends with the first failure or
// with Close, and the first of them gives the error for all that is left.
type Life struct {
	release func() error
	broken  func(error)
	ctx     context.Context
	end     context.CancelCauseFunc

	mu       sync.Mutex
	quiet    sync.Cond // running fell to 0
	running  int
	released error // what release returned
}

// NewLife starts a life. release is called once at its end and lets go of
// whatever the goroutines may be blocked in; broken is called, on a goroutine
// of its own, if the end is not due to Close.
func NewLife(release func() error, broken func(error)) *Life {
	l := &Life{release: release, broken: broken}
	l.quiet.L = &l.mu
	l.ctx, l.end = context.WithCancelCause(context.Background())
	return l
}

// Context ends with the life; its cause is then what Err returns.
func (l *Life) Context() context.Context { return l.ctx }

// Err is nil until the end, then the error for all that is left.
func (l *Life) Err() error { return context.Cause(l.ctx) }

// Go runs f on a goroutine that Close waits for.
func (l *Life) Go(f func()) {
	l.mu.Lock()
	l.running++
	l.mu.Unlock()
	go func() {
		defer l.exit()
		f()
	}()
}

func (l *Life) exit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	if l.running == 0 {
		l.quiet.Broadcast()
	}
}

// Later calls done with err, but not before the caller has moved on.
func (l *Life) Later(done func(error), err error) {
	l.Go(func() { done(err) })
}

// Fail ends the life because of err, unless it has ended. A nil error here and
// in Close stands for [net.ErrClosed].
func (l *Life) Fail(err error) {
	l.finish(err, l.broken)
}

// Close ends the life because of cause, unless it has ended, and waits until
// nothing runs any more. The error is that of release.
func (l *Life) Close(cause error) error {
	l.finish(cause, nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.running > 0 {
		l.quiet.Wait()
	}
	return l.released
}

// finish makes the first caller end the life. What it still does counts as
// running, so that a Close that comes second waits for it.
func (l *Life) finish(err error, tell func(error)) {
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
	if tell != nil {
		l.Later(tell, err)
	}
}

// Drain finishes what is left in q. The goroutine that works on q calls it when
// it has let go of all memory.
func (l *Life) Drain(q *Queue) {
	for _, t := range q.Close() {
		if t.Done != nil {
			t.Done(l.Err())
		}
	}
}
