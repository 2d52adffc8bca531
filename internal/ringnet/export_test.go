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
	FirstSegment = segmentSize(firstRings...)
	LaterSegment = segmentSize(smallRing)
)

// Words of the ring to which the end that opens the first stream of a segment
// writes.
const (
	FirstHead   = placeHeader + atHead
	FirstTail   = placeHeader + atTail
	FirstReader = placeHeader + atReader
)

// SecondHead and SecondLevel are words of the next place's.
var (
	SecondHead  = largeRing.nearSize() + placeHeader + atHead
	SecondLevel = largeRing.nearSize() + placeHeader + atLevel
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
var FirstPlaces = len(firstRings)

// PlaceShift is where a bell has its place.
const PlaceShift = bellPlace

// ResetByPeer counts this end's streams that the peer has refused, as Open does.
func (s *Session) ResetByPeer() int { return len(s.resetByPeer()) }

// RingKind is a kind of rings.
type RingKind = ringKind

// The kinds that there are.
const (
	LargeRing = largeRing
	SmallRing = smallRing
)

// NewRing is the memory of a ring, which begins with its largest region without the
// budget, and its header and the size of that region.
func NewRing(kind RingKind) (r ring, header []byte, size int) {
	p := places(make([]byte, segmentSize(kind)), 1)[0]
	wordsIn(p.here.header).clear(paidLevel - 1)
	return p.here, p.here.header, regionsOf[kind][paidLevel-1].size
}

func writerOf(r ring) *writerEnd { return newWriterEnd(r, paidLevel-1) }
func readerOf(r ring) *readerEnd { return newReaderEnd(r, paidLevel-1) }

// Put writes once to such a ring, and Take reads once from it; they return how many bytes
// that was.
func Put(r ring, p []byte) (int, error)  { return writerOf(r).put(p) }
func Take(r ring, p []byte) (int, error) { return readerOf(r).take(p) }

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
func PutAll(r ring, pieces [][]byte, came func()) (int, error) {
	return writerOf(r).putAll(pieces, came)
}

// Regions returns the size of each region of a large ring, and the number of bytes that go
// through the ring before it is used.
func Regions() (sizes, after []int) {
	for _, region := range regionsOf[largeRing] {
		sizes, after = append(sizes, region.size), append(after, region.after)
	}
	return sizes, after
}

// A large ring has a first region of FirstRegion bytes, and UnpaidRegion, all together with
// the regions between of UnpaidBytes. After MuchTraffic it has LargeRegion, for which the
// budget pays.
var (
	FirstRegion  = regionsOf[largeRing][0].size
	UnpaidRegion = regionsOf[largeRing][paidLevel-1].size
	LargeRegion  = regionsOf[largeRing][paidLevel].size
	MuchTraffic  = regionsOf[largeRing][paidLevel].after
	UnpaidBytes  = FirstRegion + largeRing.farSize()/2 - LargeRegion

	SmallRegion = regionsOf[smallRing][paidLevel-1].size
	SmallBytes  = regionsOf[smallRing][0].size + smallRing.farSize()/2
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
// writes, but for those that it begins with.
func (s *Session) FirstRing() []byte {
	var all []byte
	for _, region := range s.mine[0].here.regions[1:] {
		all = append(all, region[pages:len(region)-pages]...)
	}
	return all
}

// pages is more than the part of a page with which a region may begin or end.
const pages = 8 << 10

// Roomy reports whether a reader wakes a writer that sleeps, by what was written and
// read.
func Roomy(of ring, written, read uint64) bool {
	w := wordsIn(of.header)
	w.writer.Store(1)
	w.head.Store(written)
	r := readerOf(of)
	r.tail = read
	return r.roomy()
}

// Created is the segment that begins with the k-th place, with such rings.
func Created(k int, kind RingKind) (*segment.Segment, error) { return created(k, kind) }

// Segments counts those of this end and the peer.
func (s *Session) Segments() int { return len(s.segments) }

// FirstLevel is the word of that ring with the number of the region that is written to.
func (s *Session) FirstLevel() *atomic.Uint32 {
	w := wordsIn(s.mine[0].here.header)
	return w.level
}

// FirstWriter is the word of that ring that says that its writer sleeps.
func (s *Session) FirstWriter() *atomic.Uint32 {
	w := wordsIn(s.mine[0].here.header)
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
