package mux

import (
	"errors"
	"math/bits"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// receiveBuffer holds the bytes that a stream has received and that were not read yet. The
// goroutine that has locked link.in adds bytes. One goroutine at a time takes them.
type receiveBuffer struct {
	pool    *segmentPool
	quota   transport.Quota // charged for the memory; nil: none
	changed chan struct{}   // holds a token if take may have something to return

	mu       sync.Mutex
	segments fifo.Queue[*segment]
	reserved bool  // bytes are being read to the last segment
	ended    error // no bytes follow: io.EOF or errReset
	dropped  bool  // the bytes are not wanted
}

// segment is memory of a receiveBuffer, of which data[from:to] has bytes that were not read yet.
type segment struct {
	data     []byte
	from, to int
}

// reserve returns memory for the next bytes, of which n will follow at least. It is not empty,
// and nil only if the bytes are not wanted. The caller calls filled next. The memory is charged to
// the quota before it is allocated. If the quota does not have it, reserve waits for it or, if wait
// is false, returns errMustWait. If the quota refuses, the error is errRefused.
func (b *receiveBuffer) reserve(n int, wait bool) ([]byte, error) {
	if p, ok := b.rest(); ok {
		return p, nil
	}
	size := segmentSize(n)
	switch {
	case b.quota == nil:
	case !wait:
		if !b.quota.TryCharge(size) {
			return nil, errMustWait
		}
	case !b.quota.Charge(size):
		return nil, errRefused
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dropped || b.ended != nil {
		b.discharge(size)
		return nil, nil
	}
	s := b.pool.get(size)
	b.segments.Push(s)
	b.reserved = true
	return s.data, nil
}

// rest reserves the rest of the last segment and returns it. ok is false if there is none; it is
// true, and the memory nil, if the bytes are not wanted.
func (b *receiveBuffer) rest() (p []byte, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dropped || b.ended != nil {
		return nil, true
	}
	if k := b.segments.Len(); k > 0 {
		if s := *b.segments.At(k - 1); s.to < len(s.data) {
			b.reserved = true
			return s.data[s.to:], true
		}
	}
	return nil, false
}

// filled records that n bytes were read to the memory that reserve has returned, and wakes the
// reader if n is positive.
func (b *receiveBuffer) filled(n int) {
	b.mu.Lock()
	b.reserved = false
	last := *b.segments.At(b.segments.Len() - 1)
	last.to += n
	switch {
	case b.dropped:
		b.releaseAll()
	case b.segments.Len() == 1 && last.from == last.to:
		b.releaseFront()
	}
	b.mu.Unlock()
	if n > 0 {
		b.signal()
	}
}

// take copies bytes to p and returns how many. If there are none it returns 0 and, if none follow,
// io.EOF or errReset.
func (b *receiveBuffer) take(p []byte) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n < len(p) && b.segments.Len() > 0 {
		s := b.segments.Front()
		k := copy(p[n:], s.data[s.from:s.to])
		n += k
		if s.from += k; s.from < s.to || b.reserved && b.segments.Len() == 1 {
			break
		}
		b.releaseFront()
	}
	if n == 0 {
		err = b.ended
	}
	return n, err
}

// readable reports whether take has bytes or an error to return.
func (b *receiveBuffer) readable() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.segments.Len() > 0 {
		if s := b.segments.Front(); s.from < s.to {
			return true
		}
	}
	return b.ended != nil
}

// end records that no bytes follow, because of err: io.EOF or errReset. The second drops the bytes
// that were not read. Only the first call has an effect.
func (b *receiveBuffer) end(err error) {
	b.mu.Lock()
	if b.ended == nil {
		b.ended = err
		if err == errReset {
			b.releaseAll()
		}
	}
	b.mu.Unlock()
	b.signal()
}

// drop releases the memory: the bytes are not wanted, nor those that follow.
func (b *receiveBuffer) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropped = true
	b.releaseAll()
}

// signal wakes the reader.
func (b *receiveBuffer) signal() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// releaseAll releases all segments but one that is reserved, which it empties and filled releases.
// The caller holds mu.
func (b *receiveBuffer) releaseAll() {
	for b.segments.Len() > 0 {
		if s := b.segments.Front(); b.reserved && b.segments.Len() == 1 {
			s.from = s.to
			return
		}
		b.releaseFront()
	}
}

func (b *receiveBuffer) releaseFront() {
	s := b.segments.Pop()
	b.discharge(len(s.data))
	b.pool.put(s)
}

func (b *receiveBuffer) discharge(n int) {
	if b.quota != nil {
		b.quota.Release(n)
	}
}

var (
	// errMustWait is returned by a step of receiving that would have to block.
	errMustWait = errors.New("mux: receiving must wait")

	// errRefused means that the peer holds too much, so that the owner of the quota closes the session.
	errRefused = errors.New("mux: the quota refuses")
)

// The sizes of segments are powers of two.
const (
	minSegmentBits = 10
	maxSegmentBits = 18 // maxBody
)

// segmentSize returns the size of a segment for n bytes, which must be at most maxBody.
func segmentSize(n int) int { return 1 << max(minSegmentBits, bits.Len(uint(n-1))) }

// segmentPool has memory for segments of each size.
type segmentPool [maxSegmentBits - minSegmentBits + 1]sync.Pool

// get returns an empty segment of that size, a result of segmentSize.
func (p *segmentPool) get(size int) *segment {
	if s, ok := p.of(size).Get().(*segment); ok {
		s.from, s.to = 0, 0
		return s
	}
	return &segment{data: make([]byte, size)}
}

func (p *segmentPool) put(s *segment) { p.of(len(s.data)).Put(s) }

func (p *segmentPool) of(size int) *sync.Pool { return &p[bits.Len(uint(size-1))-minSegmentBits] }
