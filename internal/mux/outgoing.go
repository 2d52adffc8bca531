package mux

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// mostWaiting is how many bytes may wait for the connection before those who
	// write wait too: the next piece of a large transfer gathers while one leaves.
	mostWaiting = 2 * messageSize

	// smallMessage is what may wait beyond that: it would lose much and gains
	// nobody anything to wait behind large ones.
	smallMessage = 4 << 10

	// flushRounds is how often a writer goes on with what others have written
	// meanwhile.
	flushRounds = 4
)

// tryWriter is a power of some connections: to write what there is room for and
// not to wait.
type tryWriter interface {
	TryWrite(p []byte) (int, error)
}

// outgoing is the messages on their way to the connection, whole and in order. Who
// writes one sends it there himself, where the connection takes it at once and nobody
// else is writing; else what has gathered is written together. After a failure it
// takes messages and drops them: the reading side finds out how the connection ended,
// and is given a moment to do so.
type outgoing struct {
	conn    transport.Stream
	quota   transport.Quota       // charged for queued bytes; nil: none
	try     tryWriter             // conn, if it can
	failure atomic.Pointer[error] // of a write, once
	writers sync.WaitGroup        // goroutines that write

	mu     sync.Mutex
	buf    []byte        // what waits
	spare  []byte        // memory for that
	busy   bool          // somebody writes, and will see to what waits
	silent bool          // nothing is written any more
	room   chan struct{} // made by who waits for room, closed when there is some
	idle   chan struct{} // made by who waits for all to leave, closed then
}

func newOutgoing(conn transport.Stream, quota transport.Quota) *outgoing {
	o := &outgoing{conn: conn, quota: quota}
	o.try, _ = conn.(tryWriter)
	return o
}

// put sends a message, or has it sent. It reports false, and has done nothing, where
// there was no room before the deadline.
func (o *outgoing) put(h *header, body []byte, deadline <-chan struct{}) bool {
	for {
		ok, room := o.append(h, body)
		if ok {
			return true
		}
		select {
		case <-room:
		case <-deadline:
			return false
		}
	}
}

// putNow is put that does not wait.
func (o *outgoing) putNow(h *header, body []byte) bool {
	ok, _ := o.append(h, body)
	return ok
}

// append adds a message to what waits, and writes that where nobody does. Where there
// is no room it returns what is closed when there may be.
func (o *outgoing) append(h *header, body []byte) (ok bool, room <-chan struct{}) {
	o.mu.Lock()
	if room := o.full(len(body)); room != nil {
		o.mu.Unlock()
		return false, room
	}
	if !o.silent {
		o.buf = append(append(o.buf, h[:]...), body...)
		if o.quota != nil {
			o.quota.Add(headerSize + len(body))
		}
	}
	mine := !o.busy && !o.silent
	o.busy = o.busy || mine
	o.mu.Unlock()
	if mine {
		o.begin()
	}
	return true, nil
}

// full returns what to wait for before n bytes more may wait, and nil where they may.
// The caller holds mu.
func (o *outgoing) full(n int) <-chan struct{} {
	most := mostWaiting
	if n <= smallMessage {
		most *= 2
	}
	if o.silent || len(o.buf) < most {
		return nil
	}
	if o.room == nil {
		o.room = make(chan struct{})
	}
	return o.room
}

// awaitRoom waits until a small message may wait.
func (o *outgoing) awaitRoom() {
	for {
		o.mu.Lock()
		room := o.full(0)
		o.mu.Unlock()
		if room == nil {
			return
		}
		<-room
	}
}

// begin writes what waits as far as that takes no waiting, and leaves the rest to a
// goroutine. The caller has set busy.
func (o *outgoing) begin() {
	for range flushRounds {
		data := o.next()
		if data == nil {
			return
		}
		n, err := o.attempt(data)
		if err != nil {
			o.fail(err)
			return
		}
		if n < len(data) {
			o.writers.Go(func() { o.goOn(data, n) })
			return
		}
		o.recycle(data)
	}
	o.writers.Go(func() { o.goOn(o.next(), 0) })
}

func (o *outgoing) attempt(data []byte) (int, error) {
	if o.try == nil {
		return 0, nil
	}
	return o.try.TryWrite(data)
}

// goOn writes data, but for its first n bytes, and then all that waits.
func (o *outgoing) goOn(data []byte, n int) {
	for data != nil {
		if _, err := o.conn.Write(data[n:]); err != nil {
			o.fail(err)
			return
		}
		o.recycle(data)
		data, n = o.next(), 0
	}
}

// next takes what waits. There being nothing, nobody writes any more.
func (o *outgoing) next() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.buf) == 0 {
		o.busy = false
		o.notify()
		return nil
	}
	data := o.buf
	o.buf, o.spare = o.spare, nil
	o.notify()
	return data
}

// recycle keeps the memory of what was written for the next messages, unless it is more
// than may wait.
func (o *outgoing) recycle(data []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if cap(data) <= 2*mostWaiting {
		o.spare = data[:0]
	}
	if o.quota != nil {
		o.quota.Release(len(data))
	}
}

// notify wakes who waits for room, which there is, and for all to have left, if it has.
// The caller holds mu.
func (o *outgoing) notify() {
	if o.room != nil {
		close(o.room)
		o.room = nil
	}
	if o.idle != nil && !o.busy {
		close(o.idle)
		o.idle = nil
	}
}

// fail drops all there is and will be. What the peer sent before it went is worth having.
func (o *outgoing) fail(err error) {
	o.failure.CompareAndSwap(nil, &err)
	o.mu.Lock()
	o.silent, o.busy, o.buf = true, false, nil
	o.notify()
	o.mu.Unlock()
	o.conn.SetReadDeadline(time.Now().Add(linger))
}

// flushed waits until all has left, or is lost.
func (o *outgoing) flushed() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.settle()
}

// end is the end of what is written, behind whole messages. It reports false if writing
// had failed.
func (o *outgoing) end() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.settle()
	ended := !o.silent
	o.silent = true
	return ended
}

// settle waits until nobody writes. The caller holds mu.
func (o *outgoing) settle() {
	for o.busy {
		if o.idle == nil {
			o.idle = make(chan struct{})
		}
		idle := o.idle
		o.mu.Unlock()
		<-idle
		o.mu.Lock()
	}
}
