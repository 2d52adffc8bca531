package agent

import (
	"context"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// slots bounds how many handlers run at once. A handler that waits for a call of
// its own gives its slot to another one meanwhile, so that handlers which wait for
// each other, at whatever depth, never keep out the one they wait for.
type slots struct {
	mu      sync.Mutex
	max     int
	busy    int
	back    fifo.Queue[chan struct{}] // handlers that had a slot and want one again
	waiting fifo.Queue[*Request]      // requests that had none yet
}

// start runs r apart from the shift, at once or when there is a slot.
func (s *slots) start(r *Request, now *shift) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy >= s.max {
		s.waiting.Push(r)
		return
	}
	s.busy++
	now.apart(r)
}

// run runs r, and then others for as long as there are any and the slot is not
// with somebody else.
func (s *slots) run(r *Request) {
	for r != nil {
		if r.conn.backlog.hold(r) {
			r = s.next()
			continue
		}
		r.slot.begin(s)
		if !r.run() {
			return
		}
		r = s.next()
	}
}

// next is the request to whom a slot passes that is free now; nil if it passed to
// somebody who waited to have one again, or to nobody.
func (s *slots) next() *Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.back.Len() > 0 {
		close(s.back.Pop())
		return nil
	}
	if s.waiting.Len() > 0 {
		return s.waiting.Pop()
	}
	s.busy--
	return nil
}

// leave gives up a slot.
func (s *slots) leave() {
	if r := s.next(); r != nil {
		go s.run(r)
	}
}

// enter waits for a slot.
func (s *slots) enter() {
	s.mu.Lock()
	if s.busy < s.max {
		s.busy++
		s.mu.Unlock()
		return
	}
	w := make(chan struct{})
	s.back.Push(w)
	s.mu.Unlock()
	<-w
}

// counts is how many handlers run, and how many requests wait to.
func (s *slots) counts() (busy, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.busy, s.waiting.Len()
}

// leaveSlot is called by who is about to wait on behalf of ctx. If that is the
// context of a handler its slot is free until the returned function is called. If it is
// that of an interceptor somebody else sees to what comes.
func leaveSlot(ctx context.Context) (enter func()) {
	shiftOf(ctx).relieve()
	if r := requestOf(ctx); r != nil {
		return r.leaveSlot()
	}
	return func() {}
}

func (r *Request) leaveSlot() (enter func()) {
	if !r.slot.leave() {
		return func() {}
	}
	return r.slot.enter
}

// slotWaiter is the request in whose context somebody waits for a future.
type slotWaiter Request

// BeginWait implements future.Waiter.
func (w *slotWaiter) BeginWait() (end func()) { return (*Request)(w).leaveSlot() }
