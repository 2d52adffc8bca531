package ringnet

import (
	"fmt"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// A ring begins with a part of its bytes. When that is full, and some has gone through
// it, the writer waits until all of it has been read, and then uses the whole: what one core
// has written is slow to reach another one as long as it is in the first one's own
// cache, which a large ring is not. Where nothing was written for a while, the writer
// gives the memory back.
//
// Both ends have the memory, and the writer's budget pays for it: he sets it aside, and
// alone can do without. The other end's pays for what it writes itself.

// startRing is how many bytes a ring begins with, if it has as many.
const startRing = 512 << 10

// muchTraffic is how many bytes go through a ring before it grows.
const muchTraffic = 4 << 20

func startOf(ring []byte) uint64 { return min(uint64(len(ring)), startRing) }

// growth is what the writer knows of it.
type growth struct {
	due     bool             // as soon as the ring is empty
	refused bool             // the system gives no memory, or cannot set it aside
	mark    uint64           // bytes written when idleness was looked for
	since   uint64           // bytes written when the ring was last made small, or the budget asked
	noted   func()           // is told that the ring has grown
	budget  transport.Budget // nil: without bounds
	paid    bool             // it has given what the ring grows by
}

// grow uses the whole ring if what it has is full, and then when it is empty.
func (w *writerEnd) grow() {
	full := w.head-w.seen == w.size && w.head-w.growth.since >= muchTraffic
	if full && !w.growth.due && !w.whole() && !w.growth.refused {
		w.growth.due = w.pay()
	}
	if !w.growth.due || w.head != w.seen {
		return
	}
	w.growth.due = false
	if segment.Reserve(w.data[w.size:]) != nil {
		_ = segment.Release(w.data[w.size:]) // what there was
		w.growth.refused = true
		w.repay()
		return
	}
	w.use(uint64(len(w.data)), 1)
	w.growth.noted()
}

// more is what the ring grows by.
func (w *writerEnd) more() int { return len(w.data) - int(startOf(w.data)) }

// pay takes from the budget what the ring grows by, and reports whether it was there.
// Where it was not the ring asks again when much has gone through it once more.
func (w *writerEnd) pay() bool {
	g := &w.growth
	if g.budget == nil {
		return true
	}
	g.paid = g.budget.Acquire(w.more())
	g.since = w.head
	return g.paid
}

// repay gives back what was taken from the budget, if anything was.
func (w *writerEnd) repay() {
	if w.growth.paid {
		w.growth.paid = false
		w.growth.budget.Release(w.more())
	}
}

func (w *writerEnd) whole() bool { return w.size == uint64(len(w.data)) }

// use changes the size of an empty ring, of which the reader hears with the next
// bytes.
func (w *writerEnd) use(size uint64, grown uint32) {
	w.size = size
	step.Here()
	w.words.grown.Store(grown)
	step.Here()
}

// shrink gives memory back if nothing was written since the last call, and reports
// whether another call may be of use.
func (w *writerEnd) shrink() (again bool) {
	if w.size == startOf(w.data) {
		return false
	}
	if w.growth.mark != w.head || w.words.tail.Load() != w.head {
		w.growth.mark = w.head
		return true
	}
	w.seen, w.growth.since = w.head, w.head
	w.use(startOf(w.data), 0)
	_ = segment.Release(w.data[w.size:]) // or it is kept, which harms nobody
	w.repay()
	return false
}

// free gives back what rings have grown by, as a stream of this end leaves them. One that
// the other end may still read from, or write to, that end sees to when it leaves: each
// says that it leaves before it looks whether the other has said so.
func (e ends) free() {
	if e.out.words.tail.Load() == e.out.head || e.out.gone.Load() != 0 {
		release(e.out.words, e.out.data)
	}
	if e.in.finished.Load() != running {
		release(e.in.words, e.in.data)
	}
}

// release may be of no use, which harms nobody.
func release(w words, data []byte) {
	if w.grown.Load() != 0 {
		_ = segment.Release(data[startOf(data):])
	}
}

// resize follows the writer, for bytes that were not there at the last look.
func (r *readerEnd) resize() error {
	grown := r.words.grown.Load() != 0
	switch {
	case grown == (r.size != startOf(r.data)):
		return nil
	case !grown:
		r.size = startOf(r.data)
		return nil
	case r.size == uint64(len(r.data)):
		return fmt.Errorf("%w: a ring of %d bytes grew", ErrCorrupt, r.size)
	}
	if err := setAside(r.data[r.size:]); err != nil {
		return err
	}
	r.size = uint64(len(r.data))
	return nil
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
