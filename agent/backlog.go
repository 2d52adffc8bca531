package agent

import (
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// backlog is the answers that have not left: small ones for which the pipe had no room,
// and large ones, which leave when the other end takes them in. Meanwhile requests are
// held back, in lines: no more answers are made than the other end takes in.
type backlog struct {
	most  int64        // bytes of answers with which no request begins
	bytes atomic.Int64 // of all answers, with what they take beside
	small atomic.Int64 // number of the small ones
	mu    sync.Mutex   // held by who takes one away, or acts on there being some
	lines [4]line
}

// line is requests that are held back.
type line = fifo.Queue[*Request]

// answerOverhead is what an answer that waits takes beside its bytes, roughly: most of
// it is a goroutine.
const answerOverhead = 4 << 10

// add counts an answer that waits, of so many bytes.
func (b *backlog) add(bytes int, small bool) {
	b.bytes.Add(int64(bytes) + answerOverhead)
	if small {
		b.small.Add(1)
	}
}

// remove takes back add.
func (b *backlog) remove(bytes int, small bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes.Add(-int64(bytes) - answerOverhead)
	if small {
		b.small.Add(-1)
	}
}

// full reports whether a request cannot begin. One that has memory for large requests
// can although small answers wait: the room for these may be that of calls which wait
// for the same memory at the other end.
func (b *backlog) full(large bool) bool {
	return b.bytes.Load() >= b.most || !large && b.small.Load() > 0
}

// line is where requests of one sort are held back.
func (b *backlog) line(large, short bool) *line {
	i := 0
	if large {
		i = 1
	}
	if short {
		i += 2
	}
	return &b.lines[i]
}

// hold keeps a request until answers that wait have left. It reports false where it can
// begin.
func (b *backlog) hold(r *Request) bool {
	large := r.large+r.nestedLarge > 0
	if !b.full(large) {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.full(large) {
		return false
	}
	r.stage.Store(uint32(ServedQueued))
	b.line(large, r.short()).Push(r)
	return true
}

// ready is a line of which the first request can begin now, nil if there is none. The
// caller holds mu.
func (b *backlog) ready(short bool) *line {
	for _, large := range [...]bool{true, false} {
		if q := b.line(large, short); q.Len() > 0 && !b.full(large) {
			return q
		}
	}
	return nil
}

// holds reports whether there is a request that can begin now.
func (b *backlog) holds(short bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ready(short) != nil
}

// next takes a request that can begin now, nil if there is none.
func (b *backlog) next(short bool) *Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.ready(short); q != nil {
		return q.Pop()
	}
	return nil
}

// goOn begins what was held back, until too many answers wait again: where it is short
// one after the other, otherwise as there are slots.
func (c *conn) goOn() {
	b, s := &c.backlog, &c.agent.slots
	if b.holds(true) {
		go c.goOnShort()
	}
	for b.holds(false) {
		s.enter()
		r := b.next(false)
		if r == nil {
			s.leave()
			return
		}
		go s.run(r)
	}
}

// goOnShort is goOn for what takes no slot, for which it therefore never waits.
func (c *conn) goOnShort() {
	done := false
	defer func() {
		if !done {
			go c.goOnShort() // a Short handler has called runtime.Goexit
		}
	}()
	for r := c.backlog.next(true); r != nil; r = c.backlog.next(true) {
		r.run()
	}
	done = true
}
