package mux

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// maxQueued is the number of bytes in the queue from which on writers wait: the next piece of a
	// large transfer is queued while one is written.
	maxQueued = 2 * messageSize

	// smallMessage is the size of messages that may exceed maxQueued, by as much again: they would
	// lose much by waiting for large ones. Longer messages are written from the memory of the caller
	// if nothing is queued.
	smallMessage = 4 << 10

	// flushRounds is how often a writer goes on with messages that others have queued during its
	// write.
	flushRounds = 4
)

// writeQueue sends messages in order and complete. A writer writes its message to the connection
// itself, if the connection accepts it at once and no other goroutine is writing, or if it may block
// (writeInPlace); otherwise queued messages are written together. After a failed write it discards all
// messages, and the session ends when reading fails, for which it sets a deadline.
type writeQueue struct {
	conn    transport.Stream
	quota   transport.Quota       // charged for queued bytes; nil: none
	failure atomic.Pointer[error] // the first error of a write
	writers sync.WaitGroup        // goroutines that write

	// Of the goroutine that has set writing.
	pieces [][]byte // the argument of TryWrite
	head   header   // of a message that is written from the memory of the caller

	mu        sync.Mutex
	buf       []byte // queued messages
	spare     []byte // memory for the next buf
	inPlace   inPlaceWrite
	limitTime time.Time     // of all writes of the connection; zero: none
	writing   bool          // a goroutine writes, and will write the queue
	closed    bool          // messages are discarded
	space     chan struct{} // non-nil if a goroutine waits for space; closed when there is some
	idle      chan struct{} // non-nil if a goroutine waits until all is written; closed then
}

func newWriteQueue(conn transport.Stream, quota transport.Quota) *writeQueue {
	return &writeQueue{conn: conn, quota: quota}
}

// enqueue does what tryEnqueue does, and blocks while the queue has no space. It returns true once
// the message is written or queued, or discarded because the queue is closed. If deadline is closed
// first it returns false and has queued nothing. A nil deadline means none.
func (o *writeQueue) enqueue(h *header, body []byte, deadline <-chan struct{}) bool {
	for {
		ok, space := o.tryEnqueue(h, body)
		if ok {
			return true
		}
		select {
		case <-space:
		case <-deadline:
			return false
		}
	}
}

// tryEnqueue writes the message of h and the pieces of body, as far as that does not block, or
// queues a copy of it, and returns true and nil. Bytes for which the connection has no room at once
// are copied too, and left to a goroutine. If there is no space it returns false, and a channel that is
// closed when there may be. If the queue is closed it discards the message and returns true. It does
// not keep the pieces.
func (o *writeQueue) tryEnqueue(h *header, body ...[]byte) (ok bool, space <-chan struct{}) {
	size := 0
	for _, p := range body {
		size += len(p)
	}
	o.mu.Lock()
	if space := o.full(size); space != nil {
		o.mu.Unlock()
		return false, space
	}
	if o.closed {
		o.mu.Unlock()
		return true, nil
	}
	mine := !o.writing
	o.writing = true
	direct := mine && len(o.buf) == 0 && size > smallMessage
	if !direct {
		o.buf = appendAll(append(o.buf, h[:]...), body)
		o.charge(headerSize + size)
	}
	o.mu.Unlock()
	switch {
	case direct:
		o.writeDirectly(h, body)
	case mine:
		o.writeNow()
	}
	return true, nil
}

// writeDirectly writes the message of h and body from their memory as far as that does not block,
// then what others have queued meanwhile, and leaves a copy of the remainder to a goroutine. The
// caller has set o.writing while the queue was empty, and does not hold mu.
func (o *writeQueue) writeDirectly(h *header, body [][]byte) {
	o.head = *h
	o.pieces = append(append(o.pieces[:0], o.head[:]), body...)
	n, err := o.conn.TryWrite(o.pieces...)
	if err != nil {
		clear(o.pieces)
		o.fail(nil, err)
		return
	}
	var rest []byte
	for _, p := range o.pieces {
		k := min(n, len(p))
		n -= k
		rest = append(rest, p[k:]...)
	}
	clear(o.pieces)
	if len(rest) == 0 {
		o.writeNow()
		return
	}
	o.charge(len(rest))
	o.writers.Go(func() { o.writeLoop(rest, 0) })
}

// isIdle reports whether a message would be written from the memory of the caller.
func (o *writeQueue) isIdle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.writing && !o.closed
}

// charge adds n bytes to the quota.
func (o *writeQueue) charge(n int) {
	if o.quota != nil {
		o.quota.Add(n)
	}
}

// appendAll appends copies of all pieces to data and returns the extended slice.
func appendAll(data []byte, pieces [][]byte) []byte {
	for _, p := range pieces {
		data = append(data, p...)
	}
	return data
}

// full returns nil if a message with a body of n bytes may be queued, or the queue is closed.
// Otherwise it returns a channel that is closed when there may be space. The caller holds mu.
func (o *writeQueue) full(n int) <-chan struct{} {
	limit := maxQueued
	if n <= smallMessage {
		limit *= 2
	}
	if o.closed || len(o.buf) < limit {
		return nil
	}
	if o.space == nil {
		o.space = make(chan struct{})
	}
	return o.space
}

// awaitSpace blocks until a small message may be queued, or the queue is closed. Another goroutine
// may use the space first.
func (o *writeQueue) awaitSpace() {
	for {
		o.mu.Lock()
		space := o.full(0)
		o.mu.Unlock()
		if space == nil {
			return
		}
		<-space
	}
}

// writeNow writes the queue as far as that does not block, and leaves the remainder to a goroutine.
// The caller has set o.writing and does not hold mu. o.writing is cleared when the queue
// is empty or a write has failed.
func (o *writeQueue) writeNow() {
	for range flushRounds {
		data := o.takeQueued()
		if data == nil {
			return
		}
		o.pieces = append(o.pieces[:0], data)
		n, err := o.conn.TryWrite(o.pieces...)
		clear(o.pieces)
		if err != nil {
			o.fail(data, err)
			return
		}
		if n < len(data) {
			o.writers.Go(func() { o.writeLoop(data, n) })
			return
		}
		o.recycle(data)
	}
	o.writers.Go(func() { o.writeLoop(o.takeQueued(), 0) })
}

// writeLoop writes data except for its first n bytes, which were written before, and then all that
// is queued, until the queue is empty or a write fails. It takes over data, and clears o.writing at
// the end. It runs on a goroutine that o.writers counts. If data is nil it does nothing.
func (o *writeQueue) writeLoop(data []byte, n int) {
	for data != nil {
		if _, err := o.conn.Write(data[n:]); err != nil {
			o.fail(data, err)
			return
		}
		o.recycle(data)
		data, n = o.takeQueued(), 0
	}
}

// takeQueued removes the queued messages, returns their bytes, and wakes goroutines that wait for
// space. The caller passes the slice to recycle. If the queue is empty it returns nil and clears
// o.writing, which wakes waitIdle. It acquires mu.
func (o *writeQueue) takeQueued() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.buf) == 0 {
		o.writing = false
		o.notify()
		return nil
	}
	data := o.buf
	o.buf, o.spare = o.spare, nil
	o.notify()
	return data
}

// recycle takes over data, messages that were written: it releases their charge to the quota, and
// keeps the slice for later messages unless that is too large. It acquires mu.
func (o *writeQueue) recycle(data []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if cap(data) <= 2*maxQueued {
		o.spare = data[:0]
	}
	if o.quota != nil {
		o.quota.Release(len(data))
	}
}

// notify wakes the goroutines that wait for space in the queue and, if no goroutine writes, those
// that wait until all is written. The caller holds mu.
func (o *writeQueue) notify() {
	if o.space != nil {
		close(o.space)
		o.space = nil
	}
	if o.idle != nil && !o.writing {
		close(o.idle)
		o.idle = nil
	}
}

// fail handles err, the error of a write of data. It records err if it is the first error of a
// write, and makes the queue discard all messages, queued and later. It releases the charge of data
// and of the queued messages. It also sets a read deadline readAfterWriteError from now: until
// then, messages that the peer has sent can be received.
func (o *writeQueue) fail(data []byte, err error) {
	o.failure.CompareAndSwap(nil, &err)
	o.mu.Lock()
	if o.quota != nil {
		o.quota.Release(len(data) + len(o.buf))
	}
	o.closed, o.writing, o.buf = true, false, nil
	o.notify()
	o.mu.Unlock()
	o.conn.SetReadDeadline(time.Now().Add(readAfterWriteError))
}

// flush blocks until all queued messages are written or discarded.
func (o *writeQueue) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waitIdle()
}

// close blocks until all queued messages are written or a write has failed, and makes the queue
// discard later ones. It reports whether all messages were written. It returns false if a write has
// failed, now or before, or close was called before.
func (o *writeQueue) close() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waitIdle()
	written := !o.closed
	o.closed = true
	return written
}

// waitIdle blocks until no goroutine writes; the queue is empty then. The caller holds mu, which
// waitIdle releases while it blocks.
func (o *writeQueue) waitIdle() {
	for o.writing {
		idle := o.whenIdle()
		o.mu.Unlock()
		<-idle
		o.mu.Lock()
	}
}

// whenIdle returns a channel that is closed when no goroutine writes. One must be writing. The caller
// holds mu.
func (o *writeQueue) whenIdle() <-chan struct{} {
	if o.idle == nil {
		o.idle = make(chan struct{})
	}
	return o.idle
}

// limit makes all writes of the connection fail after t.
func (o *writeQueue) limit(t time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.limitTime = t
	if !o.inPlace.interrupted {
		_ = o.conn.SetWriteDeadline(t) // if that fails, so do later writes
	}
}
