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
	// lose much by waiting for large ones.
	smallMessage = 4 << 10

	// flushRounds is how often a writer goes on with messages that others have queued during its
	// write.
	flushRounds = 4
)

// writeQueue sends messages in order and complete. A writer writes its message to the connection
// itself, if the connection accepts it at once and no other goroutine is writing; otherwise queued
// messages are written together. After a failed write it discards all messages, and the session
// ends when reading fails, for which it sets a deadline.
type writeQueue struct {
	conn    transport.Stream
	quota   transport.Quota       // charged for queued bytes; nil: none
	failure atomic.Pointer[error] // the first error of a write
	writers sync.WaitGroup        // goroutines that write
	pieces  [1][]byte             // the argument of TryWrite; of the goroutine that has set writing

	mu      sync.Mutex
	buf     []byte        // queued messages
	spare   []byte        // memory for the next buf
	writing bool          // a goroutine writes, and will write the queue
	closed  bool          // messages are discarded
	space   chan struct{} // non-nil if a goroutine waits for space; closed when there is some
	idle    chan struct{} // non-nil if a goroutine waits until all is written; closed then
}

func newWriteQueue(conn transport.Stream, quota transport.Quota) *writeQueue {
	return &writeQueue{conn: conn, quota: quota}
}

// enqueue is tryEnqueue, but blocks while there is no space. It returns true. If deadline is closed
// before there is space, it returns false and has done nothing. A nil deadline means none.
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

// tryEnqueue queues a copy of the message of h and body and returns true. If no other goroutine is
// writing, it writes the queue as far as that does not block. If there is no space it returns
// false, and a channel that is closed when there may be. If the queue is closed it discards the
// message and returns true.
func (o *writeQueue) tryEnqueue(h *header, body []byte) (ok bool, space <-chan struct{}) {
	o.mu.Lock()
	if space := o.full(len(body)); space != nil {
		o.mu.Unlock()
		return false, space
	}
	if !o.closed {
		o.buf = append(append(o.buf, h[:]...), body...)
		if o.quota != nil {
			o.quota.Add(headerSize + len(body))
		}
	}
	mine := !o.writing && !o.closed
	o.writing = o.writing || mine
	o.mu.Unlock()
	if mine {
		o.writeNow()
	}
	return true, nil
}

// full returns nil if a body of n bytes may be queued, and otherwise a channel that is closed when
// that may have changed. The caller holds mu.
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
// The caller has set writing, which is cleared when the queue is empty, and does not hold mu.
func (o *writeQueue) writeNow() {
	for range flushRounds {
		data := o.takeQueued()
		if data == nil {
			return
		}
		o.pieces[0] = data
		n, err := o.conn.TryWrite(o.pieces[:]...)
		o.pieces[0] = nil
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

// writeLoop writes data except for its first n bytes, then all that is queued, until the queue is
// empty or a write fails. It runs on a goroutine that writers counts, with writing set.
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

// takeQueued removes the queued messages and returns them; the caller passes their memory to
// recycle. If there are none it returns nil and clears writing.
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

// recycle takes over data, messages that were written: it releases their charge and keeps their
// memory for the next ones, unless that is larger than the queue may be.
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

// notify wakes the goroutines that wait for space and, if no goroutine writes, those in waitIdle.
// The caller holds mu.
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
// and of the queued messages. The connection is read for readAfterWriteError longer, to receive
// messages that the peer has sent; then reads fail.
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

// close blocks until all queued messages are written, and makes the queue discard later ones. It
// reports whether all messages were written, and so returns false if a write has failed, now or
// before.
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
		if o.idle == nil {
			o.idle = make(chan struct{})
		}
		idle := o.idle
		o.mu.Unlock()
		<-idle
		o.mu.Lock()
	}
}
