package ringnet

import (
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// FirstSegment is the size of an end's first segment, LaterSegment that of each
// further one.
var (
	FirstSegment = segmentSize(firstRings[:])
	LaterSegment = placeSize(smallRing)
)

// Words of the ring to which the end that opens the first stream of a segment
// writes.
const (
	FirstHead   = placeHeader + atHead
	FirstTail   = placeHeader + atTail
	FirstReader = placeHeader + atReader
)

// SecondHead and SecondGrown are words of the next place's.
var (
	SecondHead  = placeSize(largeRing) + placeHeader + atHead
	SecondGrown = placeSize(largeRing) + placeHeader + atGrown
)

// Bells that a peer may ring.
const (
	Opened  = uint16(bellOpened | bellOwn)
	Segment = uint16(bellSegment)
)

// SetPatience sets how long a peer may take to hear a bell.
func (s *Session) SetPatience(d time.Duration) {
	s.bond.ringing.Lock()
	defer s.bond.ringing.Unlock()
	s.bond.patience = d
}

// FirstPlaces is how many places the first segment has.
const FirstPlaces = firstPlaces

// PlaceShift is where a bell has its place.
const PlaceShift = bellPlace

// ResetByPeer counts this end's streams that the peer has refused, as Open does.
func (s *Session) ResetByPeer() int { return len(s.resetByPeer()) }

// RingSizes are the bytes of the rings that there are.
var RingSizes = []int{largeRing, smallRing}

// HeaderSize is what stands before the bytes of a ring.
const HeaderSize = headerSize

// Put writes once to a ring, and Take reads once from it; they return how many
// bytes that was.
func Put(ring, p []byte) (int, error)  { return newWriterEnd(ring).put(p) }
func Take(ring, p []byte) (int, error) { return newReaderEnd(ring).take(p) }

// Large reports for each of reads into memory of such lengths, which get up to n bytes
// each, whether it is of a large part.
func Large(n int, lengths ...int) (large []bool) {
	r := &readerEnd{}
	for _, length := range lengths {
		large = append(large, r.isLarge(make([]byte, length)))
		r.rest -= min(n, length, r.rest)
	}
	return large
}

// PutAll writes pieces to a ring, and calls came when there is something to read.
func PutAll(ring []byte, pieces [][]byte, came func()) (int, error) {
	return newWriterEnd(ring).putAll(pieces, came)
}

// StartRing is what a ring begins with, LargeRing what it grows to; SmallRing is one that
// does not.
const (
	StartRing = startRing
	LargeRing = largeRing
	SmallRing = smallRing

	MuchTraffic = muchTraffic
)

// Reduce does what happens after IdleRing.
func (s *Session) Reduce() { s.reduce() }

// ReduceAround runs f in the midst of Reduce: that has begun, and has not looked at any
// stream yet. A timer for it is set.
func (s *Session) ReduceAround(f func()) {
	reduced := make(chan struct{})
	defer func() { <-reduced }()
	s.mu.Lock()
	defer s.mu.Unlock()
	go func() {
		defer close(reduced)
		s.reduce()
	}()
	for begin := time.Now(); s.Reducing() && time.Since(begin) < patience.Limit; {
		runtime.Gosched()
	}
	f()
}

// Reducing reports whether a timer for that is set.
func (s *Session) Reducing() bool {
	s.reducer.mu.Lock()
	defer s.reducer.mu.Unlock()
	return s.reducer.timer != nil
}

// FirstRing is the bytes of the ring to which the end that opens the first stream
// writes.
func (s *Session) FirstRing() []byte {
	_, data := split(s.mine[0].here)
	return data
}

// Roomy reports whether a reader wakes a writer that sleeps, by what was written and
// read.
func Roomy(ring []byte, written, read uint64) bool {
	w, _ := split(ring)
	w.writer.Store(1)
	w.head.Store(written)
	r := newReaderEnd(ring)
	r.tail = read
	return r.roomy()
}

// Created is the segment that begins with the k-th place, with rings of so many bytes.
func Created(k, ring int) (*segment.Segment, error) { return created(k, ring) }

// Segments counts those of this end and the peer.
func (s *Session) Segments() int { return len(s.segments) }

// FirstGrown is the word of that ring that says that it has all of its bytes.
func (s *Session) FirstGrown() *atomic.Uint32 {
	w, _ := split(s.mine[0].here)
	return w.grown
}

// FirstWriter is the word of that ring that says that its writer sleeps.
func (s *Session) FirstWriter() *atomic.Uint32 {
	w, _ := split(s.mine[0].here)
	return w.writer
}

// Shortages is how often a bell is tried again.
const Shortages = shortages

// Starve has the system lack the memory for a bell so many times. What it returns
// rings one, says why the bond has ended, if it has, and ends it.
func Starve(sock *net.UnixConn, times int) (ring func() error, err error) {
	b := &bond{}
	if err := b.init(sock); err != nil {
		return nil, err
	}
	b.send = func(fd uintptr) bool {
		if times--; times >= 0 {
			b.sent = unix.ENOBUFS
			return true
		}
		return b.write(fd)
	}
	return func() error {
		b.ring(bellWritable)
		err := b.failure()
		b.end(transport.ErrClosed)
		return err
	}, nil
}
