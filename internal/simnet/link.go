package simnet

import (
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Link is one connection of a Network. Its methods may be called at any time
// from any goroutine.
type Link struct {
	number int

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change of state
	inner   [2]writer
	ways    [2]way
	cut     bool
}

// writer is the writing side of the wrapped connection of an end.
type writer interface{ CloseWrite() error }

func newLink(number int, rules []Rule) *Link {
	l := &Link{number: number, changed: make(chan struct{})}
	for i := range l.ways {
		l.ways[i].header = frame.HeaderSize
	}
	for _, rule := range rules {
		rule(l)
	}
	return l
}

// Number is the position of the link among all of its network.
func (l *Link) Number() int { return l.number }

// Sent is how much an end has written so far.
func (l *Link) Sent(from End) Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ways[from].sent
}

// Cut breaks the link, as a reset does: both ends read what was written before
// and get a [*ResetError] then; writing fails at once. It is for good.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sever(Dialled, Accepted)
}

// HalfOpen makes the link swallow what is written from now on, both ways and
// without an error, as when a cable was pulled: no frame arrives, no end and
// no reset by the peer. As with TCP, writing blocks once the buffers of the
// wrapped transport are full, and Heal brings all of it.
func (l *Link) HalfOpen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stall(Dialled, l.ways[Dialled].here())
}

// Heal undoes HalfOpen: what was held back arrives.
func (l *Link) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.ways {
		l.ways[i].held = nil
	}
	l.announce()
}

func (l *Link) has(end End) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inner[end] != nil
}

// join adds an end. The first one meets the faults that wait for no frame.
func (l *Link) join(end End, inner transport.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inner[end] = inner
	for i := range l.ways {
		for kind := range l.ways[i].dueHere() {
			l.happen(kind, End(i))
		}
	}
	if l.cut {
		inner.CloseWrite()
	}
}

// unframe has an end write bare bytes from now on, each Write as a frame
// without a header.
func (l *Link) unframe(end End, inner writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inner[end] = inner
	l.ways[end].header = 0
}

// unsend takes back the end of what an end sent last.
func (l *Link) unsend(from End, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ways[from].unsend(bytes)
}

// wakeReaders has those that wait for bytes look again.
func (l *Link) wakeReaders() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.announce()
}

// happen lets a fault come true behind what one end has sent.
func (l *Link) happen(kind faultKind, from End) {
	if kind == cut {
		l.sever(1 - from)
		return
	}
	l.stall(from, l.ways[from].here())
}

// sever cuts the link. The writers among the ends given are done: their
// streams end, so that the readers get what is under way, and then a reset.
func (l *Link) sever(writers ...End) {
	l.cut = true
	for _, end := range writers {
		if c := l.inner[end]; c != nil {
			c.CloseWrite()
		}
	}
	l.announce()
}

// stall holds back what one end writes beyond a place, and what the other
// writes beyond the place that it has got to.
func (l *Link) stall(from End, at place) {
	l.ways[from].holdBack(at)
	l.ways[1-from].holdBack(l.ways[1-from].here())
	l.announce()
}

func (l *Link) announce() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// reset is nil, or the error of a link that was cut.
func (l *Link) reset() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return &ResetError{Link: l.number}
	}
	return nil
}

// admit decides how many of frames go onto the wire, the last one perhaps in
// part. If the link is cut behind them the caller ends its stream there; the
// other end is cut off already, so that nothing it does from now on counts.
func (l *Link) admit(from End, frames []transport.Frame) (pass []transport.Frame, thenEnd bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, false, &ResetError{Link: l.number}
	}
	for i, f := range frames {
		if there := l.send(from, frame.Size(f)); l.cut {
			return append(frames[:i:i], head(f, there)), true, nil
		}
	}
	return frames, false, nil
}

// send sends one frame and lets happen what waits within and behind it. It
// returns how many bytes of the body go onto the wire.
func (l *Link) send(from End, size int64) (there int64) {
	w := &l.ways[from]
	for kind, offset := range w.dueInside(size) {
		if kind == cut {
			w.send(size, offset)
			l.happen(cut, from)
			return offset
		}
		l.stall(from, place{frame: w.sent.Frames, offset: offset})
	}
	w.send(size, size)
	for kind := range w.dueHere() {
		l.happen(kind, from)
	}
	return size
}

// receive takes the parcel of the next frame that an end wrote.
func (l *Link) receive(from End, size int64) *parcel {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ways[from].receive(size)
}

// finish notes that an end writes no more.
func (l *Link) finish(from End) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := &l.ways[from]; w.end.IsZero() {
		w.end = w.arrival(0)
	}
}

// end is when the end of what an end wrote arrives.
func (l *Link) end(from End) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ways[from].end
}

// swallows reports whether what an end writes now does not arrive.
func (l *Link) swallows(from End) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ways[from].held != nil
}

// held reports whether a place of what an end wrote is held back, and gives a
// channel that closes when that may have changed.
func (l *Link) held(from End, at place) (<-chan struct{}, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	stall := l.ways[from].held
	return l.changed, stall != nil && at.behind(*stall)
}
