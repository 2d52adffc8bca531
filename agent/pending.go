package agent

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// call is a request that waits for its answer.
type call struct {
	conn      *conn
	to        To
	id        uint64
	typ, name string
	begun     time.Time
	limit     time.Duration
	nested    bool
	weight    int // of the budget; 0 for one that took nothing of it

	// Of a large request that is sent by a goroutine: how to end that, and when it
	// has ended and nobody uses the memory of the arguments any more.
	left        atomic.Bool // the request has
	leaving     bool        // it has begun to, as one that takes a while
	stopSending context.CancelCauseFunc
	sent        chan struct{}

	// Who waits for the call gets a word in woken once answer or err is set; or
	// observer is told, and never on the goroutine of the one who waits.
	woken    chan struct{}
	timer    *time.Timer // for the limit; made when first needed
	observer observer
	answer   *arrival
	err      error
	shift    shift           // while it looks for its answer itself
	streams  []device.Stream // on which the tensors of the result are valid
}

// observer is told of the end of a call that nobody waits for.
type observer interface {
	settled(a *arrival, err error, s *shift)
}

// settle ends the call. Whoever took it out of the table calls this, once. An answer,
// or the end of the pipe, may come while the request is still being sent: the caller is
// told when nobody uses the memory of the arguments any more. s is the shift in which
// that happens, nil for none.
func (c *call) settle(a *arrival, err error, s *shift) {
	c.release()
	switch {
	case c.observer == nil:
		c.answer, c.err = a, err
		c.woken <- struct{}{}
	case c.sending():
		go func() {
			<-c.sent
			c.observer.settled(a, err, nil)
		}()
	default:
		c.observer.settled(a, err, s)
	}
}

// sending reports whether a goroutine sends the request.
func (c *call) sending() bool {
	if c.sent == nil {
		return false
	}
	select {
	case <-c.sent:
		return false
	default:
		return true
	}
}

// sendingOver is called when the request has left, or never will.
func (c *call) sendingOver() {
	if c.sent != nil {
		c.stopSending(nil)
		close(c.sent)
	}
}

// release gives back what the call took of the budget.
func (c *call) release() {
	if c.weight > 0 {
		c.conn.room.Release(c.weight)
	}
}

// calls is the table of those that wait.
type calls struct {
	mu      sync.Mutex
	waiting map[uint64]*call
	err     error // why there can be no more
	last    atomic.Uint64
}

// number is one for the next call.
func (t *calls) number() uint64 { return t.last.Add(1) }

// reason is why there can be no more calls.
func (t *calls) reason() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// add lets a call be answered.
func (t *calls) add(c *call) (waiting int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return 0, t.err
	}
	if t.waiting == nil {
		t.waiting = map[uint64]*call{}
	}
	t.waiting[c.id] = c
	return len(t.waiting), nil
}

// take removes a call; who gets it settles it.
func (t *calls) take(id uint64) *call {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.waiting[id]
	delete(t.waiting, id)
	return c
}

// end removes all calls, and lets no other come.
func (t *calls) end(err error) map[uint64]*call {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
	}
	all := t.waiting
	t.waiting = nil
	return all
}
