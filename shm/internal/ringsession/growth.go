package ringsession

import (
	"fmt"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// # How a ring grows and shrinks
//
// A ring has three or four regions, each several times larger than the one before. The writer
// writes to one region at a time, the current one. All of them are mapped by both ends from the
// beginning, but only the initial region has pages: a stream sooner or later touches every page
// of the region that it uses, however little it carries at a time, and an idle pipe must take
// little memory. The level of a region is its index. The initial level is 0, or higher where
// pages cannot be reserved later (see createSegment).
//
// Growing. A writer that finds the current region full may continue in the next larger one, while
// the reader still reads the old one. It does so
//   - if enough bytes have passed through the ring since it last shrank or failed to grow
//     (regionSpec.minTraffic),
//   - if a single write has more than that left to write, or
//   - if it would have to block otherwise.
//
// It first reserves pages for the next region, 1 to 3 µs a page. In the header it publishes the
// stream position of the region's first byte (starts) and then the level of the region. The reader
// stays in its region until it has read all bytes before that position.
//
// The last region of a large ring (chargedLevel) is larger than the cache of a core, which makes
// large transfers faster: bytes that one core has written reach another one slowly as long as
// they are in the cache of the first. The writer's budget is charged for it, so only the first
// condition leads there. The budget of each end is charged for the rings that it writes to.
//
// Shrinking. After some seconds without writes, once the reader has read everything, the writer
// returns to the initial region and releases the pages of the others.

// chargedLevel is the level of the region that is charged to the budget.
const chargedLevel = 3

// growth is the writer's state for growing and shrinking its ring. Positions count the bytes
// written to the ring. The goroutine that uses the ringWriter uses it.
type growth struct {
	first    int    // initial level
	level    int    // of the current region
	base     uint64 // position from which minTraffic counts: of the last shrinking, or of the last failure to grow
	idleMark uint64 // position at the last call of shrink

	onGrow  func()           // called when the ring has grown
	budget  transport.Budget // nil: unlimited
	charged int              // bytes that were acquired from budget
}

// grow makes the next larger region the current one, to which w writes, if there is one, the
// current region is full, and one of two conditions holds. Either at least minTraffic bytes, a
// number of the next region's regionSpec, were written since growth.base. Or remaining, the number
// of bytes left of the current write, is larger than minTraffic, and the next region is not charged
// to the budget. The current region stays if enterNextRegion fails.
func (w *ringWriter) grow(remaining int) {
	level := w.growth.level + 1
	if w.knownSpace() > 0 || level == len(w.regions) {
		return
	}
	minTraffic := regionSpecs[w.kind][level].minTraffic
	if w.head-w.growth.base >= uint64(minTraffic) || (remaining > minTraffic && level < chargedLevel) {
		w.enterNextRegion()
	}
}

// growUncharged makes the next larger region the current one, to which w writes, if the current one
// is full and there is a next one that is not charged to the budget. It reports whether it did; it
// returns false also if enterNextRegion fails. A writer calls it before it blocks.
func (w *ringWriter) growUncharged() bool {
	level := w.growth.level + 1
	return w.knownSpace() == 0 && level < min(len(w.regions), chargedLevel) && w.enterNextRegion()
}

// enterNextRegion makes the next larger region, which must exist, the current one, and calls
// onGrow. Before that it charges the budget, if the region requires that and there is a budget, and
// then reserves pages for the region. It returns true if it succeeds. If the budget or the system
// has no memory it returns false: the current region stays, the charge is returned, and growth.base
// becomes the current position, so that grow requires minTraffic further bytes.
func (w *ringWriter) enterNextRegion() bool {
	g := &w.growth
	level := g.level + 1
	region := w.regions[level]
	if level >= chargedLevel && g.budget != nil {
		if !g.budget.Acquire(len(region)) {
			return w.growthFailed(region)
		}
		g.charged = len(region)
	}
	if segment.Reserve(region) != nil {
		return w.growthFailed(region)
	}
	w.start = w.head
	w.header.starts[level].Store(w.start)
	w.switchTo(level)
	g.onGrow()
	return true
}

// growthFailed releases the pages and the charge that enterNextRegion has acquired for region, and
// sets growth.base to the current position, from which grow counts the bytes written. It always
// returns false, as the result of enterNextRegion.
func (w *ringWriter) growthFailed(region []byte) bool {
	_ = segment.Release(region) // some of its pages may have been reserved
	w.releaseCharge()
	w.growth.base = w.head
	return false
}

// releaseCharge returns to the budget the bytes that the ring has acquired from it. It does nothing
// if there are none.
func (w *ringWriter) releaseCharge() {
	if w.growth.charged > 0 {
		w.growth.budget.Release(w.growth.charged)
		w.growth.charged = 0
	}
}

// switchTo makes the region with that level (its index) the one that w writes to, and then
// publishes the level to the reader.
func (w *ringWriter) switchTo(level int) {
	w.growth.level, w.region = level, w.regions[level]
	failpoint.Here()
	w.header.level.Store(uint32(level))
	failpoint.Here()
}

// shrink makes the initial region of a grown ring the current one again, and releases the pages and
// the budget of the larger ones, if nothing was written since the last call and the reader has read
// everything. Then the traffic after which the ring grows counts from the current position. It
// returns true if the ring stays grown, so that it must be called again later, and false if the
// ring is not grown or no longer.
func (w *ringWriter) shrink() (again bool) {
	g := &w.growth
	if g.level == g.first {
		return false
	}
	if g.idleMark != w.head || w.header.tail.Load() != w.head {
		g.idleMark = w.head
		return true
	}
	w.seenTail, w.start, g.base = w.head, w.head, w.head
	w.switchTo(g.first)
	w.regions.releaseAbove(g.first)
	w.releaseCharge()
	return false
}

// releaseAbove releases the pages of the regions whose level (index) is above level, so that their
// bytes become zero. Neither end may be using those regions. Errors are ignored: pages that are not
// released only take memory.
func (r regions) releaseAbove(level int) {
	for _, region := range r[level+1:] {
		_ = segment.Release(region) // if that fails they only take memory
	}
}

// releaseGrown releases the pages of all regions above the initial one of a stream's two rings,
// after this end has closed the stream. It leaves out a ring that the peer may still use; the peer
// releases the pages of that ring when it closes the stream. Each end publishes that it has closed
// before it checks whether the other one has.
func (p ringPair) releaseGrown() {
	if p.out.header.tail.Load() == p.out.head || p.out.header.readerClosed.Load() != 0 {
		p.out.regions.releaseAbove(p.out.growth.first)
	}
	if p.in.header.writerState.Load() != writing {
		p.in.regions.releaseAbove(p.in.first)
	}
}

// locate makes the region that contains the next byte the one that r reads from and, if that is
// another one than before, reserves pages for it. head is the number of bytes that the writer has
// published. locate returns the position up to which bytes can be read from that region, at most
// head. The error matches ErrCorrupt if the level in the header is invalid; other errors are those
// of reserving pages.
func (r *ringReader) locate(head uint64) (uint64, error) {
	last := r.header.level.Load()
	if last >= uint32(len(r.regions)) {
		return 0, fmt.Errorf("%w: region %d of a ring that has %d", ErrCorrupt, last, len(r.regions))
	}
	level, end := int(last), head
	for ; level > 0; level-- {
		start := r.header.starts[level].Load()
		if start <= r.tail {
			break
		}
		end = min(start, head) // the next byte is in a smaller region, which ends here
	}
	if level != r.level {
		r.region = r.regions[level]
		if err := ignoreUnsupported(segment.ReserveForReading(r.region)); err != nil {
			return 0, err
		}
		r.level = level
	}
	return end, nil
}

// shrinkIdle shrinks the rings of the session that this end has not written to for a while. If a
// ring stays grown, or is being written to, it schedules another call of itself. The timer of
// s.shrinker calls it.
func (s *Session) shrinkIdle() {
	s.shrinker.mu.Lock()
	s.shrinker.timer = nil // rings that grow from now on need another call
	s.shrinker.mu.Unlock()
	for _, st := range s.openStreams() {
		if st.shrink() {
			s.shrinker.schedule(s.shrinkIdle)
		}
	}
}

// shrink shrinks the ring to which the stream writes, if that is idle. It returns true if it must
// be called again later: another call holds write.mu, for which it does not wait, or the ring stays
// grown.
func (s *stream) shrink() (again bool) {
	if !s.write.mu.TryLock() {
		return true // a write is in progress
	}
	defer s.write.mu.Unlock()
	return s.rings.out != nil && s.rings.out.shrink()
}

// shrinkInterval is the time between two calls of shrinkIdle. A ring shrinks after one to two
// intervals without writes. That is long compared to the 0.2 ms that growing again takes.
const shrinkInterval = 4 * time.Second

// shrinker schedules the calls of shrinkIdle of a session, at most one at a time. The zero value is
// ready.
type shrinker struct {
	mu      sync.Mutex
	timer   *time.Timer // nil while no call is scheduled
	stopped bool
}

// schedule calls f on a goroutine of its own after shrinkInterval, if no call is scheduled (timer
// is nil) and the shrinker was not stopped. f must set timer to nil when it begins.
func (r *shrinker) schedule(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer == nil && !r.stopped {
		r.timer = time.AfterFunc(shrinkInterval, f)
	}
}

func (r *shrinker) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	if r.timer != nil {
		r.timer.Stop()
	}
}
