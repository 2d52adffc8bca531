package simnet

import (
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Link is one connection of a Network. Its methods may be called at any time from any goroutine.
type Link struct {
	number int

	mu         sync.Mutex
	changed    chan struct{} // closed and replaced at each change of state
	inner      [2]writer
	directions [2]direction
	cut        bool
}

// writer is the writing half of the wrapped connection of an end.
type writer interface{ CloseWrite() error }

func newLink(number int, rules []Rule) *Link {
	l := &Link{number: number, changed: make(chan struct{})}
	for i := range l.directions {
		l.directions[i].header = frame.HeaderSize
	}
	for _, rule := range rules {
		rule(l)
	}
	return l
}

// Number returns the index of the link in Network.Links.
func (l *Link) Number() int { return l.number }

// Sent returns how many frames and bytes the end from has written so far.
func (l *Link) Sent(from End) Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.directions[from].sent
}

// Cut breaks the link for good, as a TCP reset does. Both ends read the bytes written before and then
// get a [*ResetError]; their writes fail at once.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cutNow(Dialled, Accepted)
}

// HalfOpen makes the link hold back all later bytes, in both directions and without an error, as if
// a cable were pulled: no frame arrives, nor the end of a stream, nor a reset. As with TCP, writes
// block once the buffers of the wrapped transport are full. Heal delivers the bytes.
func (l *Link) HalfOpen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stall(Dialled, l.directions[Dialled].sentPosition())
}

// Heal undoes HalfOpen and delivers the bytes that were held back.
func (l *Link) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.directions {
		l.directions[i].held = nil
	}
	l.notifyChange()
}

func (l *Link) has(end End) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inner[end] != nil
}

// attach adds the connection inner as an end of the link. Faults at the very beginning of the traffic
// happen when the first end is attached.
func (l *Link) attach(end End, inner transport.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inner[end] = inner
	for i := range l.directions {
		for kind := range l.directions[i].takeBoundaryFaults() {
			l.apply(kind, End(i))
		}
	}
	if l.cut {
		inner.CloseWrite()
	}
}

// removeFraming replaces the connection of an end by inner, a stream of bytes: from now on each Write
// of that end counts as a frame without a header.
func (l *Link) removeFraming(end End, inner writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inner[end] = inner
	l.directions[end].header = 0
}

// unsend removes the given number of bytes, the last that the end from has sent, from its counts,
// because their write failed.
func (l *Link) unsend(from End, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.directions[from].unsend(bytes)
}

// wakeReaders makes readers that are blocked in waitUntil check their deadlines again.
func (l *Link) wakeReaders() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notifyChange()
}

// apply makes a fault happen after what the end from has sent. A cut closes only the writing half of
// the other end; that of from is left to the caller, which may still be writing. The caller holds l.mu.
func (l *Link) apply(kind faultKind, from End) {
	if kind == cut {
		l.cutNow(1 - from)
		return
	}
	l.stall(from, l.directions[from].sentPosition())
}

// cutNow cuts the link and closes the writing halves of the given ends, so that the readers at the
// other ends get the bytes in flight before the reset. The caller holds l.mu.
func (l *Link) cutNow(writers ...End) {
	l.cut = true
	for _, end := range writers {
		if c := l.inner[end]; c != nil {
			c.CloseWrite()
		}
	}
	l.notifyChange()
}

// stall holds back what the end from writes after position at, and everything that the other end writes
// from now on. The caller holds l.mu.
func (l *Link) stall(from End, at position) {
	l.directions[from].holdBack(at)
	l.directions[1-from].holdBack(l.directions[1-from].sentPosition())
	l.notifyChange()
}

func (l *Link) notifyChange() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// reset returns a *ResetError if the link was cut, and otherwise nil.
func (l *Link) reset() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return &ResetError{Link: l.number}
	}
	return nil
}

// admit counts the frames that the end from is about to write, makes their faults happen, and returns
// the frames that go onto the wire, the last one possibly shortened. If thenEnd is set, the link is cut
// after them: the caller must write them, close the writing half of its end and write no more. The
// error is a *ResetError if the link was cut before.
func (l *Link) admit(from End, frames []transport.Frame) (pass []transport.Frame, thenEnd bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, false, &ResetError{Link: l.number}
	}
	for i, f := range frames {
		if bodySent := l.send(from, frame.Size(f)); l.cut {
			return append(frames[:i:i], prefix(f, bodySent)), true, nil
		}
	}
	return frames, false, nil
}

// send counts one frame of the end from, whose body has size bytes, and makes the faults within the
// frame and directly after it happen. It returns how many bytes of the body go onto the wire, less than
// size only after a cut. The caller holds l.mu.
func (l *Link) send(from End, size int64) (bodySent int64) {
	w := &l.directions[from]
	for kind, offset := range w.takeFaultsInFrame(size) {
		if kind == cut {
			w.send(size, offset)
			l.apply(cut, from)
			return offset
		}
		l.stall(from, position{frame: w.sent.Frames, offset: offset})
	}
	w.send(size, size)
	for kind := range w.takeBoundaryFaults() {
		l.apply(kind, from)
	}
	return size
}

// receive removes and returns the oldest frame that the end from has written and the other end has not
// received. size is the size of its body if it was not written through the network.
func (l *Link) receive(from End, size int64) *frameInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.directions[from].receive(size)
}

// finish records that the end from writes no more, and when the end of its stream arrives. Only the
// first call has an effect.
func (l *Link) finish(from End) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := &l.directions[from]; w.end.IsZero() {
		w.end = w.arrival(0)
	}
}

// end returns the time at which the end of the stream that from writes arrives, or the zero time if it
// has not ended.
func (l *Link) end(from End) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.directions[from].end
}

// holdsBack reports whether the link is half-open, so that what the end from writes now does not
// arrive.
func (l *Link) holdsBack(from End) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.directions[from].held != nil
}

// held reports whether position at in what the end from has written is held back. The channel is closed
// at the next change of the link's state.
func (l *Link) held(from End, at position) (<-chan struct{}, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	stall := l.directions[from].held
	return l.changed, stall != nil && at.after(*stall)
}

// ResetError is the error of reads and writes at both ends of a link that was cut. It matches
// syscall.ECONNRESET, as a reset of a TCP connection does.
type ResetError struct {
	Link int // number of the link
}

func (e *ResetError) Error() string {
	return fmt.Sprintf("simnet: link %d was cut: %v", e.Link, syscall.ECONNRESET)
}

// Unwrap returns syscall.ECONNRESET.
func (e *ResetError) Unwrap() error { return syscall.ECONNRESET }
