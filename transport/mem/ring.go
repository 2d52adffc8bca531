package mem

import (
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/internal/deadline"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// minRing is the first size of a ring's memory, small so that idle connections take little.
const minRing = 512

// ring carries the bytes of one direction of a connection, from one writer to one reader. Its
// memory grows with use up to limit bytes.
type ring struct {
	limit int

	mu            sync.Mutex
	changed       sync.Cond // bytes were added or removed, or an end was closed
	buf           []byte
	start         int  // index of the oldest byte
	used          int  // number of bytes
	writerClosed  bool // no more bytes are written
	readerClosed  bool // no more bytes are read
	readDeadline  deadline.Deadline
	writeDeadline deadline.Deadline
}

func newRing(limit int) *ring {
	r := &ring{limit: limit}
	r.changed.L = &r.mu
	r.readDeadline.Wake, r.writeDeadline.Wake = r.wake, r.wake
	return r
}

// Write copies all of p into the ring, blocking while the ring is full, and returns the number of
// bytes copied. That number is less than len(p) only with an error: ErrClosed after closeWriting,
// EPIPE after closeReading, or os.ErrDeadlineExceeded once the write deadline has passed.
func (r *ring) Write(p []byte) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		switch {
		case r.writerClosed:
			return n, transport.ErrClosed
		case r.readerClosed:
			return n, syscall.EPIPE
		case r.writeDeadline.Passed():
			return n, os.ErrDeadlineExceeded
		case n == len(p):
			return n, nil
		case r.used == r.limit:
			r.changed.Wait()
		default:
			n += r.push(p[n:])
			r.changed.Broadcast()
		}
	}
}

// Read blocks until the ring has bytes, moves as many of them as fit to p, and returns their
// number. p must not be empty. The error is io.EOF if the ring is empty and the writing end is
// closed, ErrClosed after closeReading, or os.ErrDeadlineExceeded once the read deadline has
// passed.
func (r *ring) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		switch {
		case r.readerClosed:
			return 0, transport.ErrClosed
		case r.readDeadline.Passed():
			return 0, os.ErrDeadlineExceeded
		case r.used > 0:
			n := r.pop(p)
			r.changed.Broadcast()
			return n, nil
		case r.writerClosed:
			return 0, io.EOF
		}
		r.changed.Wait()
	}
}

// closeWriting closes the writing end. Write returns ErrClosed from then on, also a call that is
// blocked. Read returns the bytes that are in the ring, then io.EOF.
func (r *ring) closeWriting() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writerClosed = true
	r.changed.Broadcast()
}

// closeReading closes the reading end and discards the bytes in the ring. From then on Read returns
// ErrClosed and Write returns EPIPE, or ErrClosed if the writing end is closed too. Calls that are
// blocked do the same.
func (r *ring) closeReading() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readerClosed = true
	r.buf, r.used = nil, 0
	r.changed.Broadcast()
}

// push copies bytes of p into the ring, as many as r.limit allows, and returns their number. It
// enlarges the ring's memory if needed, but does not block. p must not be empty. The caller holds
// r.mu.
func (r *ring) push(p []byte) int {
	r.grow(r.used + len(p))
	n := min(len(p), len(r.buf)-r.used)
	end := (r.start + r.used) % len(r.buf)
	first := copy(r.buf[end:], p[:n])
	copy(r.buf, p[first:n])
	r.used += n
	return n
}

// pop moves the oldest bytes of the ring to p, as many as fit, and returns their number, possibly
// 0. It does not block. The caller holds r.mu.
func (r *ring) pop(p []byte) int {
	n := min(len(p), r.used)
	first := copy(p[:n], r.buf[r.start:])
	copy(p[first:n], r.buf)
	r.start += n
	if r.start >= len(r.buf) {
		r.start -= len(r.buf)
	}
	r.used -= n
	return n
}

// grow makes the ring's memory at least want bytes large, or r.limit bytes if want exceeds r.limit.
// It moves the bytes in the ring to the new memory. It does nothing if the memory is large enough.
// The caller holds r.mu.
func (r *ring) grow(want int) {
	if want <= len(r.buf) || len(r.buf) == r.limit {
		return
	}
	buf := make([]byte, min(r.limit, max(want, 2*len(r.buf), minRing)))
	held := r.used
	r.pop(buf[:held])
	r.buf, r.start, r.used = buf, 0, held
}

// wake makes the blocked calls of Read and Write check again whether they can continue. A deadline
// calls it when it passes or is set. wake acquires r.mu, so that it misses no call that has checked
// and is about to block.
func (r *ring) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed.Broadcast()
}
