package agent

import (
	"context"
	"sync"
	"time"
)

// limited is a context with the limit of a call, which sets its alarm once somebody
// waits for its end: most of what is written leaves without a wait.
type limited struct {
	context.Context // without the limit
	call            *call

	mu     sync.Mutex
	bound  context.Context // once made
	cancel context.CancelCauseFunc
}

// within is the context that counts: the one with the alarm, if there is one or wanted.
func (l *limited) within(wanted bool) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bound == nil && wanted {
		l.bound, l.cancel = l.call.bound(l.Context)
	}
	if l.bound == nil {
		return l.Context
	}
	return l.bound
}

func (l *limited) Done() <-chan struct{} { return l.within(true).Done() }

// Err has the limit looked at also where nobody waits.
func (l *limited) Err() error {
	over := l.call.limit > 0 && time.Since(l.call.begun) >= l.call.limit
	return l.within(over).Err()
}

func (l *limited) Deadline() (time.Time, bool) { return l.within(true).Deadline() }
func (l *limited) Value(key any) any           { return l.within(false).Value(key) }

// release is called when nobody needs the context any more.
func (l *limited) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cancel != nil {
		l.cancel(nil)
	}
}
