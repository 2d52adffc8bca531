package agent

import (
	"context"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// slots bounds the handlers that run at once. A handler that waits for a call of its own has no
// slot until it continues, so that handlers that wait for each other, at any depth, cannot use up
// the slots.
type slots struct {
	mu        sync.Mutex
	max       int
	busy      int
	returning fifo.Queue[chan struct{}] // goroutines that wait in acquire, most of them handlers that gave their slot away
	queued    fifo.Queue[*Request]      // requests that have not started
}

// start takes a slot for r and detaches r from the leader l, or queues r if no slot is free. l is
// nil on a goroutine that does not lead.
func (s *slots) start(r *Request, l *leader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy >= s.max {
		s.queued.Push(r)
		return
	}
	s.busy++
	l.detach(r)
}

// run runs r in a slot, which the caller has taken, and then queued requests in the same slot,
// until there are none or a request has given the slot to another goroutine.
func (s *slots) run(r *Request) {
	for r != nil {
		if r.conn.backlog.enqueue(r) {
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

// next passes on a slot that the caller has. It returns the queued request that gets the slot,
// which the caller must run. It returns nil if a goroutine that waits in acquire got the slot, or
// if the slot is free now.
func (s *slots) next() *Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.returning.Len() > 0 {
		close(s.returning.Pop())
		return nil
	}
	if s.queued.Len() > 0 {
		return s.queued.Pop()
	}
	s.busy--
	return nil
}

// release passes on a slot that the caller has, and starts the queued request that gets it, if
// any, on another goroutine.
func (s *slots) release() {
	if r := s.next(); r != nil {
		go s.run(r)
	}
}

// acquire blocks until it has taken a slot, ahead of queued requests. The caller must pass the
// slot on, with release or run.
func (s *slots) acquire() {
	s.mu.Lock()
	if s.busy < s.max {
		s.busy++
		s.mu.Unlock()
		return
	}
	w := make(chan struct{})
	s.returning.Push(w)
	s.mu.Unlock()
	<-w
}

// beginWait must be called before a goroutine waits on behalf of ctx, and the returned function
// after the wait. If ctx is the context of a handler, its slot is free in between, and the
// returned function waits for a slot. If ctx is the context of a short handler or of an
// interceptor, the leader yields.
func beginWait(ctx context.Context) (end func()) {
	leaderOf(ctx).yield()
	if r := requestOf(ctx); r != nil {
		return r.slot.beginWait()
	}
	return func() {}
}

// requestWaiter is a request on behalf of which a goroutine waits for a future.
type requestWaiter Request

// BeginWait implements future.Waiter.
func (w *requestWaiter) BeginWait() (end func()) { return w.slot.beginWait() }

// slotState is the slot of a request, or the leader on which it runs. Several goroutines may
// wait on its behalf at once: the first one gives the slot away, the last one that returns
// acquires one again.
type slotState struct {
	mu        sync.Mutex
	leader    *leader // of a request that is being opened, or whose handler is short
	slots     *slots  // nil for a request without a slot, and after its handler has returned
	held      bool
	acquiring bool          // a goroutine that has returned from its wait waits for a slot
	waiting   int           // goroutines that wait on behalf of the request
	acquired  chan struct{} // closed when that one has the slot; made by others that return
}

// begin records that the request starts in a slot of s, which the goroutine that runs it has
// taken.
func (t *slotState) begin(s *slots) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots, t.held = s, true
}

// setLeader sets the leader on which the request is opened or runs without a slot, nil for none.
// beginWait makes it yield.
func (t *slotState) setLeader(l *leader) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leader = l
}

// isWaiting reports whether a handler with a slot waits: whether a goroutine is between beginWait
// and endWait on behalf of the request.
func (t *slotState) isWaiting() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.slots != nil && t.waiting > 0
}

// finish clears the slot and the leader after the handler has returned, and reports whether the
// request had the slot: then the caller must pass it on.
func (t *slotState) finish() (held bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	held = t.held
	t.slots, t.held, t.leader = nil, false, nil
	return held
}

// yieldLeader makes the leader on which the request runs, if any, yield before the request waits.
func (t *slotState) yieldLeader() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leader.yield()
}

// beginWait makes the leader yield and releases the slot of the request before a goroutine waits
// on its behalf. The goroutine must call end after the wait.
func (t *slotState) beginWait() (end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leader.yield()
	if t.slots == nil {
		return func() {}
	}
	t.waiting++
	if t.held {
		t.held = false
		t.slots.release()
	}
	return t.endWait
}

// endWait ends a wait that beginWait began. It returns when the request has a slot
// again, or does not need one: because its handler has returned or another goroutine of it waits.
// Of several goroutines that return one acquires the slot: a second one would wait for the slot
// that the first has.
func (t *slotState) endWait() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting--
	for t.slots != nil && t.waiting == 0 && !t.held {
		if t.acquiring {
			if t.acquired == nil {
				t.acquired = make(chan struct{})
			}
			acquired := t.acquired
			t.mu.Unlock()
			<-acquired
			t.mu.Lock()
			continue
		}
		s := t.slots
		t.acquiring = true
		t.mu.Unlock()
		s.acquire()
		t.mu.Lock()
		t.acquiring = false
		if t.acquired != nil {
			close(t.acquired)
			t.acquired = nil
		}
		if t.slots == nil || t.waiting > 0 { // the handler has returned or waits again
			s.release()
			continue
		}
		t.held = true
	}
}
