package agent

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// leader is the state of a goroutine that reads the messages of a connection for all
// goroutines that use it: the read loop of the connection, or a caller that reads while it
// waits for its own reply. Short handlers and interceptors run on the leader. Before they
// wait, perhaps for another message of the same connection, the leader yields: from then on
// another goroutine reads.
type leader struct {
	lock     *sync.Mutex // held by a caller that leads, until it yields; nil for the read loop
	conn     *conn       // of the read loop, which starts another one when it yields
	yielded  bool
	detached *Request // run by the read loop after it has promoted another goroutine, see detach
	handover handover
}

// yield lets another goroutine read, before this one waits: a caller that leads unlocks its lock,
// the read loop starts another read loop. It does nothing if l is nil, or has yielded before.
func (l *leader) yield() {
	switch {
	case l == nil || l.yielded:
		return
	case l.lock != nil:
		l.lock.Unlock()
	default:
		go l.conn.readLoop(&leader{conn: l.conn})
	}
	l.yielded = true
}

// finish ends the lead of a caller by unlocking its lock, unless it has yielded. It is not for
// the read loop.
func (l *leader) finish() {
	if !l.yielded {
		l.lock.Unlock()
	}
}

// detach runs a request that may take long such that the leader can continue to read. On the read
// loop it records the request in l.detached: the loop then promotes another goroutine to read and
// runs the request itself, so that only the new reader may have to wait until a thread wakes up.
// For a caller that leads, without a lead (l is nil), or while promotions are paused, the request
// runs on a new goroutine.
func (l *leader) detach(r *Request) {
	if l == nil || l.lock != nil || !l.yielded && !l.handover.takePromotion() {
		go r.runDetached()
		return
	}
	l.detached = r
}

// promote clears the recorded request and, unless l has yielded, starts another goroutine that
// continues the read loop with l. The calling goroutine must not use l after that.
func (l *leader) promote() {
	l.detached = nil
	if !l.yielded {
		l.handover.promoted = time.Now()
		go l.conn.readLoop(l)
	}
}

// runDetached reads and starts a large request whose message was not read yet, or runs a decoded
// one in the slot that it has. It may block.
func (r *Request) runDetached() {
	if r.message != nil {
		r.conn.openLarge(r)
	} else {
		r.conn.agent.slots.run(r)
	}
}

const (
	// slowPromotion is the delay after which a promoted goroutine counts as late: all
	// processors were busy.
	slowPromotion = time.Millisecond

	// promotionPause is the number of requests for which the read loop then keeps reading:
	// a handler that computes would otherwise hold the processor that the reader needs.
	promotionPause = 64
)

// handover measures how long a promoted goroutine takes to start, and pauses promotions
// where that is too long.
type handover struct {
	promoted time.Time // when the goroutine was promoted; zero once it has started
	paused   int       // requests for which no goroutine is promoted
}

// observe is called by each read loop when it starts. If that goroutine was promoted and started
// late, promotions are paused for promotionPause requests.
func (h *handover) observe() {
	if !h.promoted.IsZero() && time.Since(h.promoted) > slowPromotion {
		h.paused = promotionPause
	}
	h.promoted = time.Time{}
}

// takePromotion reports whether another goroutine may be promoted for a request, and counts the
// request if promotions are paused.
func (h *handover) takePromotion() bool {
	if h.paused > 0 {
		h.paused--
		return false
	}
	return true
}

// leaderContext is the context of interceptors that handle a reply on the leader. Calls that
// these interceptors make do not wait for the call budget, because the messages that would
// release it may be queued after this one. Before any other wait the leader yields.
type leaderContext struct {
	context.Context
	mu     sync.Mutex
	leader *leader // nil once the interceptors have returned
}

type leaderKey struct{}

// Value implements context.Context.
func (c *leaderContext) Value(key any) any {
	switch key.(type) {
	case leaderKey, future.WaiterKey:
		return c
	}
	return c.Context.Value(key)
}

// leaderOf returns the innermost leaderContext from which ctx is derived, nil if there is none.
func leaderOf(ctx context.Context) *leaderContext {
	c, _ := ctx.Value(leaderKey{}).(*leaderContext)
	return c
}

// active reports whether the interceptors still run. c may be nil.
func (c *leaderContext) active() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leader != nil
}

// yield makes the leader of the context yield if the interceptors still run. c may be nil.
func (c *leaderContext) yield() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leader.yield()
}

// finish detaches the context from its leader, after the interceptors have returned: active is
// false from then on, and yield does nothing. It is called once.
func (c *leaderContext) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leader = nil
}

// BeginWait implements future.Waiter.
func (c *leaderContext) BeginWait() (end func()) { return beginWait(c) }

// readerState counts the messages that goroutines are handling for a connection. While there
// are any, Close must not wait for the connection's read loop: a function of the application
// that handles one of them may have called Close.
type readerState struct {
	dispatching atomic.Int32 // messages that are being handled
	released    atomic.Bool  // Close does not wait for the read loop any more
}

// releaseReader makes Close no longer wait for the read loop of the connection. It is called when
// the loop ends, or earlier by Close itself. Only the first call has an effect.
func (c *conn) releaseReader() {
	if !c.reader.released.Swap(true) {
		c.agent.work.Done()
	}
}
