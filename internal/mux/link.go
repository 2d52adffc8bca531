package mux

import (
	"bufio"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// readAhead is the size of the read buffer: several small messages arrive with one read. Longer
	// bodies bypass it.
	readAhead = 4 << 10

	// readAfterWriteError is how long a connection is read on after a write has failed, to receive
	// what the peer has sent.
	readAfterWriteError = time.Second

	// closeTimeout bounds how long Close of a session waits for a message to be written completely,
	// and Close of a stream for its end to be sent.
	closeTimeout = 250 * time.Millisecond

	// drainTimeout bounds how long Close of a session waits for queued bytes to be written. A busy
	// machine may need that long to run the writers.
	drainTimeout = time.Second
)

// linkObserver is notified by the link of messages that pass and of the end of the connection. Its
// methods may be called concurrently and must not block.
type linkObserver interface {
	addWaiting(stream uint32)    // the peer has opened a stream; yamux will see the message next
	removeWaiting(stream uint32) // a reset is being sent
	end(err error)               // no more messages will arrive
}

// link is the connection that yamux reads from and writes to. It handles some messages itself, and
// hides the connection's errors and end from yamux: Read then blocks until Close.
type link struct {
	transport.Stream
	observer    linkObserver
	windows     *windows
	sendWindows *sendWindows
	validator   validator
	out         *writeQueue
	flush       flushPing

	src           *bufio.Reader
	header        header
	headerRead    int    // bytes of the header that yamux has read
	goAwayRead    bool   // the peer has announced the end of the session
	bodyRemaining uint32 // bytes of the body that yamux has not read

	released       chan struct{} // closed by Close
	release        func()
	goAwaySent     chan struct{} // closed when yamux's GoAway was sent, or cannot be
	markGoAwaySent func()
}

func newLink(conn transport.Stream, cfg transport.SessionConfig, w linkObserver, ws *windows) *link {
	l := &link{
		Stream:      conn,
		observer:    w,
		windows:     ws,
		sendWindows: newSendWindows(),
		validator:   validator{client: cfg.Client},
		out:         newWriteQueue(conn, cfg.Quota),
		src:         bufio.NewReaderSize(conn, readAhead),
		headerRead:  headerSize,
		released:    make(chan struct{}),
	}
	l.goAwaySent = make(chan struct{})
	l.markGoAwaySent = sync.OnceFunc(func() { close(l.goAwaySent) })
	l.release = sync.OnceFunc(func() { close(l.released) })
	return l
}

// Read copies the next bytes for yamux to p, of a header that was checked or of its body, and
// returns their number. At the end of the connection, after a violation of the protocol, or if the
// quota refuses the body, it returns 0 and ErrClosed; before that it blocks until Close, unless
// this process has closed the connection. A call for the next message shows that yamux has
// processed the one before. Only yamux's reading goroutine calls it.
func (l *link) Read(p []byte) (int, error) {
	if l.headerRead == headerSize && l.bodyRemaining == 0 {
		if err := l.nextMessage(); err != nil {
			return l.endAndBlock(err)
		}
		if !l.windows.charge(l.header.stream(), l.bodyRemaining) {
			<-l.released // the owner of the quota closes the session
			return 0, transport.ErrClosed
		}
	}
	if l.headerRead < headerSize {
		n := copy(p, l.header[l.headerRead:])
		l.headerRead += n
		return n, nil
	}
	n, err := l.src.Read(p[:min(len(p), int(l.bodyRemaining))])
	l.bodyRemaining -= uint32(n)
	if n > 0 || err == nil {
		return n, nil
	}
	return l.endAndBlock(unexpectedEOF(err))
}

// unexpectedEOF returns io.ErrUnexpectedEOF if err is io.EOF, because the connection has ended
// within a message. Otherwise it returns err.
func unexpectedEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// nextMessage blocks until a message for yamux arrives, checks its header, and stores the header in
// l.header, for Read. It handles the messages that yamux need not see: replies to pings, since
// yamux sends no pings; credit without flags, since yamux sends no data; and ping requests, unless
// the reply would have to wait. The error is a [ProtocolError] or that of the connection; after a
// GoAway of the peer, ECONNRESET instead of a header becomes io.EOF.
//
// The windows of yamux are unlimited. So nextMessage counts the body of a message against the
// window of its stream before yamux allocates memory for it. If the stream is no longer read, it
// discards the body.
func (l *link) nextMessage() error {
	h := &l.header
	for seen := true; seen; {
		if _, err := io.ReadFull(l.src, h[:]); err != nil {
			if l.goAwayRead && errors.Is(err, syscall.ECONNRESET) {
				return io.EOF // a Unix socket reports that the peer has closed with bytes unread
			}
			return err
		}
		if err := l.validator.check(h); err != nil {
			return err
		}
		switch {
		case h.isPingRequest():
			reply := pingMessage(ack, h.length())
			seen, _ = l.out.tryEnqueue(&reply, nil)
		case h.kind() == ping:
			l.windows.pingReplied(h.length())
			l.flush.replied(h.length())
		case h.onlyGrants():
			l.sendWindows.grant(h.stream(), h.length())
		default:
			seen = false
		}
	}
	if h.ofStream(syn) {
		l.windows.open(h.stream())
		l.sendWindows.open(h.stream())
		l.observer.addWaiting(h.stream())
	}
	l.goAwayRead = l.goAwayRead || h.kind() == goAway
	if h.kind() == credit {
		l.sendWindows.grant(h.stream(), h.length())
		h.setLength(0) // yamux must not see the credit
	}
	if h.ofStream(rst) {
		l.sendWindows.update(h.stream(), func(w *sendWindow) { w.reset = true })
	}
	if n := h.body(); n > 0 {
		wanted, err := l.windows.arrive(h.stream(), n)
		if err != nil {
			return err
		}
		if !wanted {
			h.setLength(0)
			if _, err := l.src.Discard(int(n)); err != nil {
				return unexpectedEOF(err)
			}
		}
	}
	if h.ofStream(fin | rst) {
		l.windows.stopGranting(h.stream())
	}
	l.headerRead, l.bodyRemaining = 0, h.body()
	return nil
}

// endAndBlock ends the session after err, an error of reading the connection or a [ProtocolError],
// and returns 0 and ErrClosed, as the results of Read. The reason of the end is err or, if reading
// was stopped because a write had failed, the error of that write. endAndBlock first blocks until
// Close, since yamux would discard its streams' contents if it learned of the end. It does not
// block if this process has closed the connection.
func (l *link) endAndBlock(err error) (int, error) {
	if errors.Is(err, transport.ErrClosed) {
		l.observer.end(transport.ErrClosed)
		return 0, transport.ErrClosed
	}
	if failure := l.out.failure.Load(); failure != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		err = *failure
	}
	l.observer.end(err)
	<-l.released
	return 0, transport.ErrClosed
}

// Write sends message, a header and its body, for yamux. It always returns len(message) and nil,
// and does not keep the memory. It blocks while the queue has no space and, for a GoAway, until the
// queue is written.
//
// Write removes the credit from a message, and sends nothing if the message only grants credit or
// is a ping request of yamux: see windows. It creates the windows of a new stream before the
// message is sent, since the peer may answer before Open has returned. After the first message of a
// stream it permits data to be sent. It removes the windows of a stream that yamux resets, and the
// stream from those that wait for Accept.
func (l *link) Write(message []byte) (int, error) {
	h := *(*header)(message)
	switch {
	case h.kind() == goAway:
		defer l.markGoAwaySent()
		defer l.out.flush()
	case h.ofStream(rst):
		l.windows.remove(h.stream())
		l.sendWindows.remove(h.stream())
		l.observer.removeWaiting(h.stream())
	case h.ofStream(syn):
		l.windows.open(h.stream())
		l.sendWindows.open(h.stream())
		fallthrough
	case h.ofStream(ack):
		defer l.sendWindows.update(h.stream(), func(w *sendWindow) { w.announced = true })
	}
	if h.kind() == credit {
		h.setLength(0)
	}
	if !h.isPingRequest() && !h.onlyGrants() {
		l.out.enqueue(&h, message[headerSize:], nil)
	}
	return len(message), nil
}

// sendCredit sends the credit and the pings that l.windows has to send, until there are none. It
// waits for space in the queue before it takes each message from l.windows, so that a message
// contains all credit up to then. It runs on a goroutine of the session.
func (l *link) sendCredit() {
	for {
		l.out.awaitSpace()
		h, ok := l.windows.nextMessage()
		if !ok {
			return
		}
		l.out.enqueue(&h, nil, nil)
	}
}

// SetWriteDeadline does nothing and returns nil: the deadline that yamux sets before its first
// message could replace the deadline that Session.Close sets.
func (l *link) SetWriteDeadline(time.Time) error { return nil }

// Close closes the connection, ends the session if it has not ended, and makes the Read of yamux
// return. Yamux calls it when its session is closed. The error is that of closing the connection.
func (l *link) Close() error {
	l.observer.end(errYamuxClosed)
	err := l.Stream.Close()
	l.release()
	return err
}

// validator checks the peer's messages, in their order, against the protocol, except for the
// windows. Only yamux's reading goroutine uses it.
type validator struct {
	client bool   // this end is the client
	newest uint32 // the last stream that the peer opened
}

// check returns a [ProtocolError] if the version, the kind, the length or the id of a new stream in
// h violates the protocol, and otherwise nil. It records the id of a new stream. The ids of the
// peer's streams must grow, and be even if the peer is the server and odd if it is the client.
func (j *validator) check(h *header) error {
	switch {
	case h.version() != 0:
		return violation("version %d", h.version())
	case h.kind() > goAway:
		return violation("message of kind %d", h.kind())
	case h.body() > maxBody:
		return violation("%d bytes in one message, %d are allowed", h.body(), maxBody)
	case h.kind() == goAway && h.length() != 0:
		return violation("it ends the session with code %d", h.length())
	case h.ofStream(syn) && (h.stream()%2 == 0) != j.client:
		return violation("new stream with number %d of this end", h.stream())
	case h.ofStream(syn) && h.stream() <= j.newest:
		return violation("new stream with number %d after %d", h.stream(), j.newest)
	case h.ofStream(syn):
		j.newest = h.stream()
	}
	return nil
}
