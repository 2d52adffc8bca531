package mux

import (
	"bufio"
	"errors"
	"io"
	"os"
	"sync"
	"time"

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
	sending *sending
	judge   judge
	out     *outgoing

	// Of the reading goroutine.
	src    *bufio.Reader
	header header
	served int    // bytes of the header that yamux has
	left   uint32 // bytes of the body that it has not

	released chan struct{} // closed by Close
	release  func()
	parted   chan struct{} // closed when yamux's farewell has left, or cannot
	part     func()
}

func newLink(conn transport.Stream, cfg transport.SessionConfig, w watcher, ws *windows) *link {
	l := &link{
		Stream:   conn,
		watcher:  w,
		windows:  ws,
		sending:  newSending(),
		judge:    judge{client: cfg.Client},
		out:      newOutgoing(conn, cfg.Quota),
		src:      bufio.NewReaderSize(conn, readAhead),
		served:   headerSize,
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
		if !l.windows.charge(l.header.stream(), l.left) {
			<-l.released // the owner of the quota closes the session
			return 0, transport.ErrClosed
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
// that come by.
func (l *link) next() error {
	h := &l.header
	for {
		if _, err := io.ReadFull(l.src, h[:]); err != nil {
			return err
		}
		if err := l.judge.admit(h); err != nil {
			return err
		}
		if !l.isOurs(h) {
			break
		}
	}
	if h.opens() {
		l.windows.enter(h.stream())
		l.sending.enter(h.stream())
		l.watcher.arrived(h.stream())
	}
	l.heed(h)
	if err := l.account(h); err != nil {
		return err
	}
	l.served, l.left = 0, h.body()
	return nil
}

// isOurs sees to messages that are not for yamux: answers, for it has no question out,
// credit, for it sends nothing on streams, and questions, which measure how long an
// answer takes, unless that has to wait.
func (l *link) isOurs(h *header) bool {
	switch {
	case h.isQuestion():
		answer := answerMessage(h.length())
		return l.out.putNow(&answer, nil)
	case h.isAnswer():
		l.windows.answered(h.length())
	case h.isCredit() && h.flags() == 0:
		l.sending.grant(h.stream(), h.length())
	default:
		return false
	}
	return true
}

// heed takes from a message for yamux what it says about sending.
func (l *link) heed(h *header) {
	if h.isCredit() {
		l.sending.grant(h.stream(), h.length())
		h.setLength(0)
	}
	if h.resets() {
		l.sending.end(h.stream())
	}
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
	if failure := l.out.failure.Load(); failure != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		err = *failure
	}
	l.watcher.end(err)
	<-l.released
	return 0, transport.ErrClosed
}

// Write writes one message of yamux. The credit that it grants, and its
// questions for the round trip, are dropped: see windows. A new stream has its
// windows before it leaves, as the peer may answer before Open has returned.
func (l *link) Write(message []byte) (int, error) {
	h := *(*header)(message)
	switch {
	case h.isFarewell():
		defer l.part()
		defer l.out.flushed()
	case h.resets():
		l.windows.leave(h.stream())
		l.sending.leave(h.stream())
		l.watcher.refused(h.stream())
	case h.opens():
		l.windows.enter(h.stream())
		l.sending.enter(h.stream())
		fallthrough
	case h.accepts():
		defer l.sending.introduce(h.stream())
	}
	if h.isCredit() {
		h.setLength(0)
	}
	if !h.isQuestion() && !(h.isCredit() && h.flags() == 0) {
		l.out.put(&h, message[headerSize:], nil)
	}
	return len(message), nil
}

// tell writes what the windows have to say. It waits for room first, and so learns of
// what came up meanwhile.
func (l *link) tell() {
	for {
		l.out.awaitRoom()
		h, ok := l.windows.next()
		if !ok {
			return
		}
		l.out.put(&h, nil, nil)
	}
}

// SetWriteDeadline does nothing: yamux sets deadlines to end sessions whose
// peer is slow.
func (l *link) SetWriteDeadline(time.Time) error { return nil }

// finish ends writing behind a whole message, if the connection takes it
// within moments. It comes before Close.
func (l *link) finish() {
	l.Stream.SetWriteDeadline(time.Now().Add(patience))
	if l.out.end() {
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
