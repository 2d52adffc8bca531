package agent

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// backlog is the small answers for which a pipe had no room, and the requests that are
// held back meanwhile: no more answers are made than the other end takes in.
type backlog struct {
	answers atomic.Int64
	mu      sync.Mutex // held by who takes one away, or acts on there being some
	held    fifo.Queue[*Request]
	short   fifo.Queue[*Request] // likewise, of those that take no slot
}

// maxWaiting bounds the answers that wait before a request that is not held back, since
// it is to be refused or is large, ends the pipe.
const maxWaiting = 1 << 12

// overrun ends the pipe if the other end does not take in its answers.
func (c *conn) overrun() {
	if n := c.backlog.answers.Load(); n > maxWaiting {
		c.pipe.Abort(fmt.Errorf("%w: %d answers wait for %s to read", ErrOverloaded, n, c.peer))
	}
}

func (b *backlog) begin() { b.answers.Add(1) }

func (b *backlog) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answers.Add(-1)
}

// hold keeps a request until the answers that wait have left. It reports false where
// there are none, and the request can begin. So can one that has memory for large
// requests: the room for answers may be that of calls which wait for the same at the
// other end.
func (b *backlog) hold(r *Request) bool {
	if b.answers.Load() == 0 || r.large+r.nestedLarge > 0 {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.answers.Load() == 0 {
		return false
	}
	r.stage.Store(uint32(ServedQueued))
	if r.short() {
		b.short.Push(r)
	} else {
		b.held.Push(r)
	}
	return true
}

// holds reports whether there is a request that can begin now.
func (b *backlog) holds() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.answers.Load() == 0 && b.held.Len() > 0
}

// next takes a request from q that can begin now, nil if there is none.
func (b *backlog) next(q *fifo.Queue[*Request]) *Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.answers.Load() > 0 || q.Len() == 0 {
		return nil
	}
	return q.Pop()
}

// goOn begins what was held back, where it takes a slot as there are some, until answers
// wait again.
func (c *conn) goOn() {
	for r := c.backlog.next(&c.backlog.short); r != nil; r = c.backlog.next(&c.backlog.short) {
		go r.run()
	}
	s := &c.agent.slots
	for c.backlog.holds() {
		s.enter()
		r := c.backlog.next(&c.backlog.held)
		if r == nil {
			s.leave()
			return
		}
		go s.run(r)
	}
}
