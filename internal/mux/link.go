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
	judge   judge

	// Of the reading goroutine.
	src    *bufio.Reader
	header header
	served int    // bytes of the header that yamux has
	left   uint32 // bytes of the body that it has not

	writing  turn.Turn             // for each message
	silent   bool                  // nothing is written any more
	failure  atomic.Pointer[error] // of a write, once
	released chan struct{}         // closed by Close
	release  func()
	wanted   atomic.Bool   // Close is to be called
	parted   chan struct{} // closed when yamux's farewell has left, or cannot
	part     func()
}

func newLink(conn transport.Stream, client bool, w watcher) *link {
	l := &link{
		Stream:   conn,
		watcher:  w,
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
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return l.hold(err)
}

// next reads the header of the next message and judges it.
func (l *link) next() error {
	if _, err := io.ReadFull(l.src, l.header[:]); err != nil {
		return err
	}
	if err := l.judge.admit(&l.header); err != nil {
		return err
	}
	if l.header.opens() {
		l.watcher.arrived(l.header.stream())
	}
	l.served, l.left = 0, l.header.body()
	return nil
}

// hold ends the session and keeps yamux waiting, which would empty the streams.
// Only where this process closed the connection there is nothing to wait for.
func (l *link) hold(err error) (int, error) {
	if errors.Is(err, transport.ErrClosed) {
		l.wanted.Store(true)
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

// Write writes one message. After a failure it takes messages and drops them:
// the reading side finds out how the connection ended, and is given a moment to
// do so. Questions for the round trip are dropped too, nobody wants to know.
func (l *link) Write(message []byte) (int, error) {
	l.writing.Take()
	defer l.writing.Give()
	h := (*header)(message)
	if h.isFarewell() {
		defer l.part()
	}
	if h.resets() {
		l.watcher.refused(h.stream())
	}
	if l.silent || h.isQuestion() {
		return len(message), nil
	}
	if _, err := l.Stream.Write(message); err != nil {
		failure := err // err itself would live on the heap, for each message
		l.silent = true
		l.failure.Store(&failure)
		l.SetReadDeadline(time.Now().Add(linger))
	}
	return len(message), nil
}

// SetWriteDeadline does nothing: yamux sets deadlines to end sessions whose
// peer is slow.
func (l *link) SetWriteDeadline(time.Time) error { return nil }

// finish ends writing behind a whole message, if the connection takes it
// within moments. It comes before Close.
func (l *link) finish() {
	l.wanted.Store(true)
	l.Stream.SetWriteDeadline(time.Now().Add(patience))
	l.writing.Take()
	defer l.writing.Give()
	if !l.silent {
		l.silent = true
		l.CloseWrite()
	}
}

// Close lets go of yamux. Without finish it is yamux that gave up, which it
// does for one reason alone: everything else is judged before.
func (l *link) Close() error {
	if !l.wanted.Load() {
		l.watcher.end(violation("more bytes on stream %d than its window allows", l.header.stream()))
	}
	err := l.Stream.Close()
	l.release()
	return err
}
