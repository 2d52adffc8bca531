package mux

import (
	"bufio"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/turn"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// readAhead takes some small messages with one read. Bodies that are longer
	// bypass it.
	readAhead = 4 << 10

	// linger is how long a connection that cannot be written to is read on: what
	// the peer sent before it went is worth having.
	linger = time.Second

	// patience is how long closing a session waits for a message to leave whole,
	// and closing a stream for its end to leave.
	patience = 250 * time.Millisecond

	// lastWords is how long closing a session waits for all that was written to
	// leave. A machine that is busy may need that long to run those who write.
	lastWords = time.Second
)

// watcher learns from the link what passes by.
type watcher interface {
	arrived(stream uint32) // the peer opened a stream, yamux will see it next
	refused(stream uint32) // a reset leaves
	end(err error)         // nothing will arrive any more
}

// link is the connection as yamux sees it: one that never fails and never ends
// of its own.
type link struct {
	transport.Stream
	watcher watcher
	windows *windows
	judge   judge

	// Of the reading goroutine.
	src    *bufio.Reader
	header header
	served int    // bytes of the header that yamux has
	left   uint32 // bytes of the body that it has not

	writing  turn.Turn             // for each message
	own      header                // one that is not yamux's
	silent   bool                  // nothing is written any more
	failure  atomic.Pointer[error] // of a write, once
	released chan struct{}         // closed by Close
	release  func()
	parted   chan struct{} // closed when yamux's farewell has left, or cannot
	part     func()
}

func newLink(conn transport.Stream, client bool, w watcher, ws *windows) *link {
	l := &link{
		Stream:   conn,
		watcher:  w,
		windows:  ws,
		judge:    judge{client: client},
		src:      bufio.NewReaderSize(conn, readAhead),
		served:   headerSize,
		writing:  turn.New(),
		released: make(chan struct{}),
	}
	l.parted = make(chan struct{})
	l.part = sync.OnceFunc(func() { close(l.parted) })
	l.release = sync.OnceFunc(func() { close(l.released) })
	return l
}

// Read gives yamux the next bytes of a message that was found good. When yamux
// asks for the next message it has dealt with the one before.
func (l *link) Read(p []byte) (int, error) {
	if l.served == headerSize && l.left == 0 {
		if err := l.next(); err != nil {
			return l.hold(err)
		}
	}
	if l.served < headerSize {
		n := copy(p, l.header[l.served:])
		l.served += n
		return n, nil
	}
	n, err := l.src.Read(p[:min(len(p), int(l.left))])
	l.left -= uint32(n)
	if n > 0 || err == nil {
		return n, nil
	}
	return l.hold(whole(err))
}

// whole is the error where a connection ends within a message.
func whole(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// next reads the header of the next message that is for yamux, and judges all
// that come by. Answers are not for yamux, which has no question out.
func (l *link) next() error {
	h := &l.header
	for {
		if _, err := io.ReadFull(l.src, h[:]); err != nil {
			return err
		}
		if err := l.judge.admit(h); err != nil {
			return err
		}
		if !h.isAnswer() {
			break
		}
		l.windows.answered(h.length())
	}
	if h.opens() {
		l.windows.enter(h.stream())
		l.watcher.arrived(h.stream())
	}
	if err := l.account(h); err != nil {
		return err
	}
	l.served, l.left = 0, h.body()
	return nil
}

// account holds a message against the window of its stream, before yamux takes
// memory for it. What is for nobody does not reach yamux, whose windows have no
// bounds.
func (l *link) account(h *header) error {
	n := h.body()
	if n > 0 {
		wanted, err := l.windows.arrive(h.stream(), n)
		if err != nil {
			return err
		}
		if !wanted {
			h.setLength(0)
			if _, err := l.src.Discard(int(n)); err != nil {
				return whole(err)
			}
		}
	}
	if h.ends() {
		l.windows.finish(h.stream())
	}
	return nil
}

// hold ends the session and keeps yamux waiting, which would empty the streams.
// Only where this process closed the connection there is nothing to wait for.
func (l *link) hold(err error) (int, error) {
	if errors.Is(err, transport.ErrClosed) {
		l.watcher.end(transport.ErrClosed)
		return 0, transport.ErrClosed
	}
	if failure := l.failure.Load(); failure != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		err = *failure
	}
	l.watcher.end(err)
	<-l.released
	return 0, transport.ErrClosed
}

// Write writes one message of yamux. The credit that it grants, and its
// questions for the round trip, are dropped: see windows. A new stream has its
// window before it leaves, as the peer may answer before Open has returned.
func (l *link) Write(message []byte) (int, error) {
	l.writing.Take()
	defer l.writing.Give()
	h := (*header)(message)
	switch {
	case h.isFarewell():
		defer l.part()
	case h.resets():
		l.windows.leave(h.stream())
		l.watcher.refused(h.stream())
	case h.opens():
		l.windows.enter(h.stream())
	}
	switch {
	case h.isQuestion() || h.isCredit() && h.flags() == 0:
	case h.isCredit():
		l.own = *h
		l.own.setLength(0)
		l.put(l.own[:])
	default:
		l.put(message)
	}
	return len(message), nil
}

// tell writes what the windows have to say.
func (l *link) tell() {
	for l.tellOne() {
	}
}

// tellOne waits for its turn first, and so learns of what came up meanwhile.
func (l *link) tellOne() (ok bool) {
	l.writing.Take()
	defer l.writing.Give()
	if l.own, ok = l.windows.next(); ok {
		l.put(l.own[:])
	}
	return ok
}

// put writes a message, in the turn of the caller. After a failure it takes
// messages and drops them: the reading side finds out how the connection ended,
// and is given a moment to do so.
func (l *link) put(message []byte) {
	if l.silent {
		return
	}
	if _, err := l.Stream.Write(message); err != nil {
		failure := err // err itself would live on the heap, for each message
		l.silent = true
		l.failure.Store(&failure)
		l.SetReadDeadline(time.Now().Add(linger))
	}
}

// SetWriteDeadline does nothing: yamux sets deadlines to end sessions whose
// peer is slow.
func (l *link) SetWriteDeadline(time.Time) error { return nil }

// finish ends writing behind a whole message, if the connection takes it
// within moments. It comes before Close.
func (l *link) finish() {
	l.Stream.SetWriteDeadline(time.Now().Add(patience))
	l.writing.Take()
	defer l.writing.Give()
	if !l.silent {
		l.silent = true
		l.CloseWrite()
	}
}

// Close lets go of yamux. Yamux has no reason to call it while the session
// lives, as all that could make it give up is judged before.
func (l *link) Close() error {
	l.watcher.end(errGaveUp)
	err := l.Stream.Close()
	l.release()
	return err
}
