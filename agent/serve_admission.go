package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// A caller keeps within the limits that the ends of the pipe have agreed on. The bounds here are
// for a caller that does not, and for calls that it has cancelled whose handlers still run.
const (
	// overcommit times Limits.CallBytes bounds the charges of the requests of one caller.
	overcommit = 2

	// nestedOvercommit times Limits.CallBytes bounds them for requests that handlers make, and
	// nestedOvercommit times Limits.LargeBytes bounds the large ones of these.
	nestedOvercommit = 8
)

// errDuplicate means that a request of the same number is being served.
var errDuplicate = errors.New("request came twice")

// register adds a request to those that are served and counts its bytes. If a cancellation has come
// before the request, the context of the request is cancelled. The error matches ErrClosed if the
// pipe has ended, and ErrOverloaded if the bytes of the requests that are served, or the number of
// streams, exceed their limit. It is errDuplicate if a request of the same number is being served.
// After an error the request is not registered.
func (c *conn) register(r *Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.serving == nil {
		return ErrClosed
	}
	if _, duplicate := c.serving[r.id]; duplicate {
		return errDuplicate
	}
	factor := overcommit
	if r.flags&wire.FlagNested != 0 {
		factor = nestedOvercommit
	}
	if len(c.serving) > 0 && c.servingBytes+r.charge > factor*c.agent.limits.CallBytes {
		return fmt.Errorf("%w: %d bytes in %d calls at once", ErrOverloaded, c.servingBytes, len(c.serving))
	}
	if r.stream != nil {
		if c.servingStreams >= c.agent.limits.MaxStreams {
			return fmt.Errorf("%w: %d streams at once, which is MaxStreams there", ErrOverloaded, c.servingStreams)
		}
		c.servingStreams++
	}
	c.servingBytes += r.charge
	c.serving[r.id] = r
	if cause := c.earlyCancels.remove(r.id); cause != nil {
		r.callContext.cancel(cause)
	}
	return nil
}

// earlyCancels remembers the latest cancellations of requests that are not registered, guarded by
// the mutex of the conn. Most of these requests have been replied to, but a cancellation can also
// overtake its request.
type earlyCancels struct {
	ids    [32]uint64 // 0 for none
	causes [32]error
	next   int // index of the oldest
}

func (e *earlyCancels) add(id uint64, cause error) {
	e.ids[e.next], e.causes[e.next] = id, cause
	e.next = (e.next + 1) % len(e.ids)
}

// remove forgets and returns the cause with which the request with this number was cancelled before
// it was registered. It returns nil if no such cancellation is remembered. The caller holds the
// mutex of the conn.
func (e *earlyCancels) remove(id uint64) error {
	for i, other := range e.ids {
		if other == id && e.causes[i] != nil {
			cause := e.causes[i]
			e.ids[i], e.causes[i] = 0, nil
			return cause
		}
	}
	return nil
}

// openLarge opens a request that is not inline. It first waits until the budget for large requests
// has memory for the tensors, which stay at the caller until then. If that fails, it rejects the
// request. It does not run on the leader.
func (c *conn) openLarge(r *Request) {
	n := r.message.incoming.Descriptor().Bytes()
	if err := c.acquireLarge(r, n); err != nil {
		r.drop()
		c.reject(r, err, nil)
		return
	}
	// This goroutine does not read messages, but it can run one request that is detached.
	l := &leader{conn: c, yielded: true}
	c.open(r, l)
	if l.detached != nil {
		l.detached.runDetached()
	}
}

// acquireLarge takes n bytes for a large request from the budget of the connection, and blocks
// until the budget has them. The error is the cause of the request's context, or ErrCallerGone if
// the pipe has ended; then nothing was taken. For a request that a handler of the caller makes it
// does not block, since handlers that hold memory may wait for the reply: if there are too many
// such bytes, the error matches ErrOverloaded.
func (c *conn) acquireLarge(r *Request, n int) error {
	if r.flags&wire.FlagNested == 0 {
		if !c.largeBudget.Acquire(r, c.down, n) {
			if err := ctxerr.Cause(r); err != nil {
				return err
			}
			return ErrCallerGone
		}
		r.largeCharge = n
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nestedLargeBytes > 0 && n > nestedOvercommit*c.agent.limits.LargeBytes-c.nestedLargeBytes {
		return fmt.Errorf("%w: %d bytes in large calls of handlers", ErrOverloaded, c.nestedLargeBytes)
	}
	r.nestedCharge = n
	c.nestedLargeBytes += n
	return nil
}

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

// start runs r in a slot, or queues r if no slot is free. It does not block: r runs on the
// goroutine that l.detach chooses. l is the leader on which start is called, and nil on a goroutine
// that does not lead.
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

// run runs r in a slot, which the caller has taken, and then further queued requests in the same
// slot. It returns when no request is queued, or when a request has given the slot to another
// goroutine. A request that must wait until its caller reads replies is put into the backlog of its
// connection instead.
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

// runOne runs r, as run does, on the leader l, and passes the slot on to other goroutines.
func (s *slots) runOne(r *Request, l *leader) {
	if !r.conn.backlog.enqueue(r) {
		r.slot.begin(s)
		r.slot.setLeader(l)
		if !r.run() {
			return
		}
	}
	s.release()
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

// beginWait must be called before a goroutine waits on behalf of ctx; the goroutine must call end
// after the wait. If ctx is the context of a handler, the slot of the handler is free in between,
// and end blocks until the handler has a slot again. If ctx is the context of a short handler or of
// an interceptor, the leader yields, so that another goroutine reads messages. For other contexts
// beginWait and end do nothing.
func beginWait(ctx context.Context) (end func()) {
	leaderOf(ctx).yield()
	if r := requestOf(ctx); r != nil {
		return r.slot.beginWait()
	}
	return func() {}
}

// requestWaiter is a request on behalf of which a goroutine waits for a future.
type requestWaiter Request

// BeginWait implements future.Waiter: it is called before a goroutine waits for a future on behalf
// of the request. It makes the leader of the request yield and releases the slot of the request;
// end blocks until the request has a slot again.
func (w *requestWaiter) BeginWait() (end func()) { return w.slot.beginWait() }

// slotState records whether a request has a slot, and the leader on which the request runs, if any.
// Several goroutines may wait on behalf of the request at once: the first of them releases the
// slot, and the last one that returns acquires a slot again.
type slotState struct {
	mu        sync.Mutex
	leader    *leader // of a request that is being opened, or whose handler runs on the leader
	slots     *slots  // nil for a request without a slot, and after its handler has returned
	held      bool
	acquiring bool          // a goroutine that has returned from its wait waits for a slot
	waiting   int           // goroutines that wait on behalf of the request
	acquired  chan struct{} // closed when the goroutine of acquiring has the slot; made by others that wait for that
}

// begin records that the request starts in a slot of s, which the goroutine that runs it has
// taken.
func (t *slotState) begin(s *slots) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots, t.held = s, true
}

// setLeader sets the leader on which the request is opened or runs, nil for none. A
// later beginWait makes that leader yield.
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

// finish clears the slot and the leader of the request after the handler has returned. held reports
// whether the request had a slot: the caller must then pass the slot on.
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

// beginWait makes the leader of the request yield and releases the slot of the request, before a
// goroutine waits on its behalf. The goroutine must call end after the wait, which blocks until the
// request has a slot again.
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

// endWait ends a wait that beginWait began. It blocks until the request has a slot again, and
// returns at once if the request needs none, because its handler has returned or another goroutine
// still waits on its behalf. If several goroutines return at once, one of them acquires the slot,
// and the others wait for that: each request has at most one slot.
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
