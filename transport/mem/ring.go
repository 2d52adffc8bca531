package mem

import (
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// minRing is the first size of a ring's memory; idle connections stay cheap.
const minRing = 512

// ring carries the bytes of one direction, from one writer to one reader. Its
// memory grows with use up to limit.
type ring struct {
	limit int

	mu        sync.Mutex
	changed   sync.Cond // bytes came or went, or an end closed
	buf       []byte
	start     int  // index of the oldest byte
	used      int  // bytes held
	finished  bool // the writing end sends no more
	abandoned bool // the reading end reads no more
	readBy    deadline
	writeBy   deadline
}

func newRing(limit int) *ring {
	r := &ring{limit: limit}
	r.changed.L = &r.mu
	return r
}

// Write copies all of p into the ring and waits for room as needed. It returns
// how much it copied.
func (r *ring) Write(p []byte) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		switch {
		case r.finished:
			return n, transport.ErrClosed
		case r.abandoned:
			return n, syscall.EPIPE
		case r.writeBy.expired():
			return n, os.ErrDeadlineExceeded
		case n == len(p):
			return n, nil
		case r.used == r.limit:
			r.changed.Wait()
		default:
			n += r.put(p[n:])
			r.changed.Broadcast()
		}
	}
}

// Read waits for bytes and moves some into p. It returns io.EOF when the writer
// finished and nothing is left.
func (r *ring) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		switch {
		case r.abandoned:
			return 0, transport.ErrClosed
		case r.readBy.expired():
			return 0, os.ErrDeadlineExceeded
		case r.used > 0:
			n := r.take(p)
			r.changed.Broadcast()
			return n, nil
		case r.finished:
			return 0, io.EOF
		}
		r.changed.Wait()
	}
}

// finish ends writing: the reader gets what is in the ring, then io.EOF.
func (r *ring) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finished = true
	r.changed.Broadcast()
}

// abandon ends reading: what is in the ring is lost and writes fail.
func (r *ring) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.abandoned = true
	r.buf, r.used = nil, 0
	r.changed.Broadcast()
}

// put copies as much of p as fits and returns how much that was.
func (r *ring) put(p []byte) int {
	r.grow(r.used + len(p))
	n := min(len(p), len(r.buf)-r.used)
	end := (r.start + r.used) % len(r.buf)
	first := copy(r.buf[end:], p[:n])
	copy(r.buf, p[first:n])
	r.used += n
	return n
}

// take moves the oldest bytes into p and returns how many that were.
func (r *ring) take(p []byte) int {
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

// grow makes room for want bytes in all, as far as limit allows.
func (r *ring) grow(want int) {
	if want <= len(r.buf) || len(r.buf) == r.limit {
		return
	}
	buf := make([]byte, min(r.limit, max(want, 2*len(r.buf), minRing)))
	held := r.used
	r.take(buf[:held])
	r.buf, r.start, r.used = buf, 0, held
}
