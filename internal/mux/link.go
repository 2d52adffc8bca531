package mux

import (
	"bufio"
	"sync"
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

// link is the connection that yamux reads from and writes to. It handles the bytes of streams and
// some messages itself, and hides the connection's errors and end from yamux: Read then blocks until
// Close.
type link struct {
	transport.Stream
	observer    linkObserver
	windows     *windows
	sendWindows *sendWindows
	in          receiving
	watch       *watch // nil if the connection is not a Pollable
	out         *writeQueue
	flush       flushPing

	header     header // for yamux
	headerRead int    // bytes of it that yamux has read

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
		out:         newWriteQueue(conn, cfg.Quota),
		headerRead:  headerSize,
		released:    make(chan struct{}),
	}
	l.in.validator = validator{client: cfg.Client}
	l.in.src = bufio.NewReaderSize(conn, readAhead)
	if p, ok := conn.(Pollable); ok {
		l.watch = newWatch(p)
		l.in.src.Reset(pollSource{p})
		l.in.unread.Store(true) // the connection may have read ahead
	}
	l.in.forYamux = make(chan header, maxForYamux)
	l.goAwaySent = make(chan struct{})
	l.markGoAwaySent = sync.OnceFunc(func() { close(l.goAwaySent) })
	l.release = sync.OnceFunc(func() { close(l.released) })
	return l
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
	if l.watch != nil {
		l.watch.timer.Stop()
	}
	err := l.Stream.Close()
	l.release()
	return err
}

// validator checks the peer's messages, in their order, against the protocol, except for the
// windows. The goroutine that receives uses it.
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
