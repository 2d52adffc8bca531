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

// Number returns the index of the link in the result of Network.Links.
func (l *Link) Number() int { return l.number }

// Sent returns how many frames and body bytes the end from has written so far, including those that
// have not arrived.
func (l *Link) Sent(from End) Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.directions[from].sent
}

// Cut breaks the link permanently, as a TCP reset does. At both ends reads return the bytes that
// were written before and then a [*ResetError]; writes fail with a *ResetError at once.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cutNow(Dialled, Accepted)
}

// HalfOpen makes the link hold back all bytes that are written later, in both directions and
// without an error, as if a cable were pulled. Neither a frame nor the end of a stream nor a reset
// arrives then. As with TCP, writes block once the buffers of the wrapped transport are full. Heal
// ends this and delivers the bytes.
func (l *Link) HalfOpen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stall(Dialled, l.directions[Dialled].sentPosition())
}

// Heal ends the effect of HalfOpen, in both directions, and delivers the bytes that were held back.
// It has no effect on a link that was cut.
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

// attach makes inner the connection of an end of the link. Faults at the very beginning of the
// traffic happen then. If the link is already cut, attach closes the writing half of inner. It
// takes l.mu.
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

// removeFraming makes inner, a stream of bytes, the connection of an end of the link. From then on
// each Write of that end counts as a frame without a header. It takes l.mu.
func (l *Link) removeFraming(end End, inner writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inner[end] = inner
	l.directions[end].header = 0
}

// unsend subtracts the given number of bytes, the last that the end from has sent, from the counts
// of that end, because their write has failed. It takes l.mu.
func (l *Link) unsend(from End, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.directions[from].unsend(bytes)
}

// wakeReaders wakes the readers of both ends that are blocked in waitUntil, which then check their
// deadlines again. It takes l.mu.
func (l *Link) wakeReaders() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notifyChange()
}

// apply makes a fault of the given kind happen directly after the bytes that the end from has sent:
// it cuts the link or makes it half-open. A cut closes the writing half only of the other end; the
// caller must close that of from, after it has written. The caller holds l.mu.
func (l *Link) apply(kind faultKind, from End) {
	if kind == cut {
		l.cutNow(1 - from)
		return
	}
	l.stall(from, l.directions[from].sentPosition())
}

// cutNow marks the link as cut, closes the writing halves of the ends in writers, and wakes blocked
// readers. The readers at the other ends get the bytes in flight before the reset. The caller holds
// l.mu.
func (l *Link) cutNow(writers ...End) {
	l.cut = true
	for _, end := range writers {
		if c := l.inner[end]; c != nil {
			c.CloseWrite()
		}
	}
	l.notifyChange()
}

// stall holds back the bytes of the end from after the position at, and all bytes that the other
// end writes from now on, until Heal. The caller holds l.mu.
func (l *Link) stall(from End, at position) {
	l.directions[from].holdBack(at)
	l.directions[1-from].holdBack(l.directions[1-from].sentPosition())
	l.notifyChange()
}

func (l *Link) notifyChange() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// reset returns a *ResetError if the link was cut, and otherwise nil. It takes l.mu.
func (l *Link) reset() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return &ResetError{Link: l.number}
	}
	return nil
}

// admit counts the frames that the end from is about to write, makes the faults within and after
// them happen, and returns the frames to write. These share the memory of frames. If thenEnd is
// true, the link is cut after them and the last one may be shortened: the caller must write them,
// close the writing half of its end and write no more. If the link was cut before, admit returns no
// frames and a *ResetError. It takes l.mu.
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
// frame and directly after it happen. It returns how many bytes of the body the caller must write:
// all, or fewer if the link is cut within the frame. The caller holds l.mu.
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

// receive removes the oldest frame that the end from has written and the other end has not
// received, and returns it. If there is none, because the writer is not part of the network, it
// returns a frame whose body of size bytes has arrived. It takes l.mu.
func (l *Link) receive(from End, size int64) *frameInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.directions[from].receive(size)
}

// finish records that the end from writes no more, and when the end of its stream arrives by the
// rules of the link. Only the first call for an end has an effect. It takes l.mu.
func (l *Link) finish(from End) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := &l.directions[from]; w.end.IsZero() {
		w.end = w.arrival(0)
	}
}

// end returns the time at which the end of the stream that from writes arrives, or the zero time if
// from has not closed it. It takes l.mu.
func (l *Link) end(from End) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.directions[from].end
}

// holdsBack reports whether bytes that the end from writes now do not arrive, because the link is
// half-open. It takes l.mu.
func (l *Link) holdsBack(from End) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.directions[from].held != nil
}

// held reports whether the position at, in the bytes that the end from has written, is held back
// because the link is half-open. It also returns a channel that is closed when the state of the
// link changes next. It takes l.mu.
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

// Unwrap returns syscall.ECONNRESET, so that the error matches it.
func (e *ResetError) Unwrap() error { return syscall.ECONNRESET }
