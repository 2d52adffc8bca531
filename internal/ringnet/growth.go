package ringnet

import (
	"fmt"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// A ring has several regions and begins with the first, which is small: a stream touches
// all of the region that it uses, however little it carries at a time, and an idle pipe
// is to be small. A writer whose region is full goes on in the next one, while the reader
// still reads the old one, after much traffic, for a large write, and before it would
// sleep. It sets the pages aside, which takes one to three microseconds for each. The
// last region of a large ring is larger than the cache of a core: bytes that one core has
// written are slow to reach another one as long as they are in the cache of the first.
// After a while without writes the writer goes back to the first region and releases the
// memory of the others.
//
// Both ends have the memory, and the writer's budget pays for the last region of a large
// ring: the writer sets it aside, and alone can do without. The other end's pays for what
// that end writes.

// paidLevel is the number of the region for which the budget pays.
const paidLevel = 3

// growth is what the writer knows of it.
type growth struct {
	first  int              // level that the ring begins with
	level  int              // of the region that is written to
	mark   uint64           // bytes written when idleness was looked for
	since  uint64           // bytes written when the ring was last small, or could not grow
	noted  func()           // is called when the ring has grown
	budget transport.Budget // nil: without bounds
	paid   int              // bytes that it has given
}

// grow continues in the next region if this one is full and the bytes that regionsOf
// requires have been written, or more than that are left and the budget does not pay.
func (w *writerEnd) grow(left int) {
	level := w.growth.level + 1
	if w.free() > 0 || level == len(w.all) {
		return
	}
	after := regionsOf[w.kind][level].after
	if w.head-w.growth.since >= uint64(after) || (left > after && level < paidLevel) {
		w.next()
	}
}

// growUnpaid does so for a writer that would have to sleep, as long as it needs no budget
// for that, and reports whether it did.
func (w *writerEnd) growUnpaid() bool {
	level := w.growth.level + 1
	return w.free() == 0 && level < min(len(w.all), paidLevel) && w.next()
}

// next goes on in the next region, which there is, if there is memory for it. Otherwise
// grow tries again when much has gone through the ring once more.
func (w *writerEnd) next() bool {
	g := &w.growth
	level := g.level + 1
	if !w.pay(level) || segment.Reserve(w.all[level]) != nil {
		_ = segment.Release(w.all[level]) // some of it may have pages
		w.repay()
		g.since = w.head
		return false
	}
	w.from = w.head
	w.words.from[level].Store(w.from)
	w.use(level)
	g.noted()
	return true
}

// pay takes a region from the budget if that is to pay for it, and reports whether the
// writer may use it.
func (w *writerEnd) pay(level int) bool {
	g, n := &w.growth, len(w.all[level])
	if level < paidLevel || g.budget == nil {
		return true
	}
	if !g.budget.Acquire(n) {
		return false
	}
	g.paid = n
	return true
}

// repay gives back what was taken from the budget, if anything was.
func (w *writerEnd) repay() {
	if w.growth.paid > 0 {
		w.growth.budget.Release(w.growth.paid)
		w.growth.paid = 0
	}
}

// use has the next bytes written to another region, of which the reader hears with them.
func (w *writerEnd) use(level int) {
	w.growth.level, w.region = level, w.all[level]
	step.Here()
	w.words.level.Store(uint32(level))
	step.Here()
}

// shrink gives memory back if nothing was written since the last call, and reports
// whether another call may be of use.
func (w *writerEnd) shrink() (again bool) {
	g := &w.growth
	if g.level == g.first {
		return false
	}
	if g.mark != w.head || w.words.tail.Load() != w.head {
		g.mark = w.head
		return true
	}
	w.seen, w.from, g.since = w.head, w.head, w.head
	w.use(g.first)
	w.all.release(g.first)
	w.repay()
	return false
}

// release gives back the memory of the regions after one. Memory that the system keeps
// does no harm.
func (r regions) release(level int) {
	for _, region := range r[level+1:] {
		_ = segment.Release(region)
	}
}

// free gives back what rings have grown by, as a stream of this end leaves them. One that
// the other end may still read from, or write to, that end sees to when it leaves: each
// says that it leaves before it looks whether the other has said so.
func (e ends) free() {
	if e.out.words.tail.Load() == e.out.head || e.out.gone.Load() != 0 {
		e.out.all.release(e.out.growth.first)
	}
	if e.in.finished.Load() != running {
		e.in.all.release(e.in.first)
	}
}

// follow finds the region of the next byte, and returns how far the reader can go there:
// to head at most.
func (r *readerEnd) follow(head uint64) (uint64, error) {
	last := r.words.level.Load()
	if last >= uint32(len(r.all)) {
		return 0, fmt.Errorf("%w: region %d of a ring that has %d", ErrCorrupt, last, len(r.all))
	}
	level, end := int(last), head
	for ; level > 0; level-- {
		from := r.words.from[level].Load()
		if from <= r.tail {
			break
		}
		end = min(from, head)
	}
	if level != r.level {
		r.region = r.all[level]
		if err := supported(segment.ReserveRead(r.region)); err != nil {
			return 0, err
		}
		r.level = level
	}
	return end, nil
}

// shrink is that of the ring that the stream writes to.
func (s *stream) shrink() (again bool) {
	if !s.write.turn.TryLock() {
		return true // somebody writes
	}
	defer s.write.turn.Unlock()
	return s.ends.out != nil && s.ends.out.shrink()
}

// reduce has the rings shrink that nobody writes to.
func (s *Session) reduce() {
	s.reducer.began()
	for _, st := range s.all() {
		if st.shrink() {
			s.reducer.grew(s.reduce)
		}
	}
}

// idleRing is half of how long at most a ring keeps memory that nothing is written to:
// long beside the 0.2 ms that growing again takes.
const idleRing = 4 * time.Second

// reducer has the rings of a session shrink.
type reducer struct {
	mu    sync.Mutex
	timer *time.Timer // nil while nobody has to look
	over  bool
}

// grew has later called after a while: there is a ring that has grown.
func (r *reducer) grew(later func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer == nil && !r.over {
		r.timer = time.AfterFunc(idleRing, later)
	}
}

// began notes that somebody looks: what grows from now on may escape him.
func (r *reducer) began() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = nil
}

func (r *reducer) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.timer != nil {
		r.timer.Stop()
	}
}
