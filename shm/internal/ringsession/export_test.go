package ringsession

import (
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Sizes of the first segment of an end, and of each later one.
var (
	FirstSegmentSize = segmentSize(firstSegmentKinds...)
	LaterSegmentSize = segmentSize(smallRing)
)

// Offsets, in a segment, of fields of the first ring, which carries bytes from the end that opens
// the stream in the first slot.
const (
	FirstHead          = slotHeaderSize + offsetHead
	FirstTail          = slotHeaderSize + offsetTail
	FirstReaderBlocked = slotHeaderSize + offsetReaderBlocked
)

// Offsets of the same ring's fields in the second slot of a first segment.
var (
	SecondHead  = largeRing.baseSize() + slotHeaderSize + offsetHead
	SecondLevel = largeRing.baseSize() + slotHeaderSize + offsetLevel
)

// Doorbells of a peer.
const (
	Opened  = uint16(doorbellOpened | doorbellOwn)
	Segment = uint16(doorbellSegment)
)

// SlotShift is the position of the slot's number in a doorbell.
const SlotShift = doorbellSlotShift

// FirstSlots is the number of slots in the first segment.
var FirstSlots = len(firstSegmentKinds)

// SetSendTimeout sets how long a send may block because the peer does not read from the socket.
func (s *Session) SetSendTimeout(d time.Duration) {
	s.peer.sending.Lock()
	defer s.peer.sending.Unlock()
	s.peer.sendTimeout = d
}

// ResetByPeer returns the number of this end's streams that the peer has refused or aborted and
// that are not closed here. Open closes such streams.
func (s *Session) ResetByPeer() int { return len(s.resetByPeer()) }

// RingKind is a kind of rings.
type RingKind = ringKind

// All kinds of rings.
const (
	LargeRing = largeRing
	SmallRing = smallRing
)

// NewRing returns a ring in private memory that begins with its last uncharged region, its header,
// and the size of that region in bytes.
func NewRing(kind RingKind) (r ring, header []byte, size int) {
	s := slotsIn(make([]byte, segmentSize(kind)), []ringKind{kind})[0]
	headerOf(s.fromOpener.header).init(chargedLevel - 1)
	return s.fromOpener, s.fromOpener.header, regionSpecs[kind][chargedLevel-1].size
}

func writerOf(r ring) *ringWriter { return newRingWriter(r, chargedLevel-1) }
func readerOf(r ring) *ringReader { return newRingReader(r, chargedLevel-1) }

// WriteOnce writes at most one batch of p to a ring of NewRing, and returns how many bytes it has
// written.
func WriteOnce(r ring, p []byte) (int, error) { return writerOf(r).write(p) }
func ReadOnce(r ring, p []byte) (int, error)  { return readerOf(r).read(p) }

// WriteAll writes the pieces to a ring of NewRing as far as there is space, and calls published
// after each batch. It returns how many bytes it has written.
func WriteAll(r ring, pieces [][]byte, published func()) (int, error) {
	return writerOf(r).writeAll(pieces, published)
}

// InLargePart reports, for each of a sequence of reads, whether it reads bytes of a large part.
// lengths are those of the memory that each read is to fill; no read returns more than n bytes.
func InLargePart(n int, lengths ...int) (large []bool) {
	r := &ringReader{}
	for _, length := range lengths {
		large = append(large, r.inLargePart(make([]byte, length)))
		r.remaining -= min(n, length, r.remaining)
	}
	return large
}

// Regions returns, for each region of a large ring, its size and the number of bytes that pass
// through the ring before the region is used.
func Regions() (sizes, minTraffic []int) {
	for _, spec := range regionSpecs[largeRing] {
		sizes, minTraffic = append(sizes, spec.size), append(minTraffic, spec.minTraffic)
	}
	return sizes, minTraffic
}

// Sizes of regions and rings, in bytes. A large ring begins with FirstRegion. Without the budget it
// grows to UnchargedRegion; it holds UnchargedBytes if a writer fills all regions up to that one.
// After ChargedTraffic it grows to ChargedRegion, for which the budget is charged. A small ring
// grows to SmallRegion, and holds SmallBytes in all its regions.
var (
	FirstRegion     = regionSpecs[largeRing][0].size
	UnchargedRegion = regionSpecs[largeRing][chargedLevel-1].size
	ChargedRegion   = regionSpecs[largeRing][chargedLevel].size
	ChargedTraffic  = regionSpecs[largeRing][chargedLevel].minTraffic
	UnchargedBytes  = FirstRegion + largeRing.growthSize()/2 - ChargedRegion

	SmallRegion = regionSpecs[smallRing][chargedLevel-1].size
	SmallBytes  = regionSpecs[smallRing][0].size + smallRing.growthSize()/2
)

// ShrinkIdle shrinks the idle rings of the session at once, as the session's timer does after some
// seconds.
func (s *Session) ShrinkIdle() { s.shrinkIdle() }

// ShrinkScheduled reports whether the session's timer is set, which will shrink idle rings.
func (s *Session) ShrinkScheduled() bool {
	s.shrinker.mu.Lock()
	defer s.shrinker.mu.Unlock()
	return s.shrinker.timer != nil
}

// DuringShrinkIdle runs f while another goroutine is in ShrinkIdle and has not checked any stream
// yet, and waits until that goroutine has finished. ShrinkScheduled must be true. f runs with the
// session's mutex held.
func (s *Session) DuringShrinkIdle(f func()) {
	done := make(chan struct{})
	defer func() { <-done }()
	s.mu.Lock()
	defer s.mu.Unlock()
	go func() {
		defer close(done)
		s.shrinkIdle()
	}()
	for begin := time.Now(); s.ShrinkScheduled() && time.Since(begin) < testwait.Limit; {
		runtime.Gosched()
	}
	f()
}

// GrowthBytes returns a copy of the bytes in all but the first region of the first ring. It leaves
// out partial pages at the ends of a region, which are never released.
func (s *Session) GrowthBytes() []byte {
	const pages = 8 << 10 // more than a partial page
	var all []byte
	for _, region := range s.localSlots[0].fromOpener.regions[1:] {
		all = append(all, region[pages:len(region)-pages]...)
	}
	return all
}

// FirstLevel returns the field of the first ring's header, in shared memory, with the level of the
// current region.
func (s *Session) FirstLevel() *atomic.Uint32 {
	h := headerOf(s.localSlots[0].fromOpener.header)
	return h.level
}

// FirstWriterBlocked returns the field of the first ring's header, in shared memory, that is 1
// while the writer is blocked.
func (s *Session) FirstWriterBlocked() *atomic.Uint32 {
	h := headerOf(s.localSlots[0].fromOpener.header)
	return h.writerBlocked
}

// FirstReaderIsBlocked reports whether the reader of the first ring has requested a doorbell.
func (s *Session) FirstReaderIsBlocked() bool {
	h := headerOf(s.localSlots[0].fromOpener.header)
	return h.readerBlocked.Load() != 0
}

// ShouldWakeWriter reports whether a reader wakes a blocked writer, if the counters of the ring are
// written and read. It changes the header of the ring.
func ShouldWakeWriter(of ring, written, read uint64) bool {
	h := headerOf(of.header)
	h.writerBlocked.Store(1)
	h.head.Store(written)
	r := readerOf(of)
	r.tail = read
	return r.shouldWakeWriter()
}

// CreateLaterSegment creates a segment with one slot, as a session does for a stream that its first
// segment has no slot for. The caller closes it.
func CreateLaterSegment(kind RingKind) (*segment.Segment, error) {
	return createSegment([]ringKind{kind})
}

// Segments returns the number of segments that the session has mapped, its own and the peer's.
func (s *Session) Segments() int { return len(s.segments) }

// NewStarvedNotifier returns a function that sends a doorbell through sock, while the first writes,
// as many as failures, fail for lack of memory. The function returns nil if the doorbell was sent,
// and otherwise the reason with which the session has ended. It closes sock.
func NewStarvedNotifier(sock *net.UnixConn, failures int) (notify func() error, err error) {
	p := &peerSocket{}
	if err := p.init(sock); err != nil {
		return nil, err
	}
	p.trySend = func(fd uintptr) bool {
		if failures--; failures >= 0 {
			p.sendErr = unix.ENOBUFS
			return true
		}
		return p.write(fd)
	}
	return func() error {
		p.notify(doorbellWritable)
		err := p.failure()
		p.end(transport.ErrClosed)
		return err
	}, nil
}

// HandleDoorbell handles a doorbell of the peer for the first stream of the peer: there are bytes
// (doorbellReadable, which is 0).
func (s *Session) HandleDoorbell() error { return s.handleDoorbell(doorbellOwn) }
