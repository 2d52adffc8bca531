package mux

import (
	"bufio"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// maxForYamux is the number of messages that may wait for yamux.
const maxForYamux = 16

// receiving is the reading half of a link. The goroutine that holds mu receives messages, step by
// step. The bytes of streams go to the buffers of the streams, and the headers that yamux must see
// to forYamux.
type receiving struct {
	mu        sync.Mutex
	src       *bufio.Reader
	validator validator
	header    header         // of the message that is being received
	body      *receiveBuffer // for the rest of its body; nil: the rest is discarded
	left      int            // bytes of the body that follow
	goAway    bool           // the peer has announced the end of the session
	err       error          // why nothing more is received

	unread    atomic.Bool // src has bytes that can be received
	delivered bool        // something was received for another goroutine, since mu was locked
	forYamux  chan header

	// stalled is set while only the goroutine of yamux can receive, because it may block. That
	// goroutine closes the channel.
	stalled atomic.Pointer[chan struct{}]
}

// receive receives a message, or the rest of one. Over a Pollable it returns errNoData if bytes are
// missing, and the next call continues. If wait is false it returns errMustWait instead of blocking
// for the quota or for yamux, and makes the goroutine of yamux receive. After any other error
// nothing more is received. The caller holds mu of l.in.
func (l *link) receive(wait bool) error {
	in := &l.in
	if in.err != nil {
		return in.err
	}
	err := l.receiveBody(wait)
	if err == nil {
		err = l.nextMessage()
	}
	switch err {
	case nil, errNoData:
		return err
	case errMustWait:
		if l.stall() {
			l.watch.want()
			l.watch.conn.Wake() // so that the goroutine of yamux has its turn
		}
		return err
	case errRefused:
		in.err = err // the owner of the quota closes the session
		l.stall()
		return err
	}
	return l.end(err)
}

// end ends the session because of err, the error of the connection or a [ProtocolError], unless
// receiving has ended already. It returns the error of receive from then on. The caller holds mu of
// l.in.
func (l *link) end(err error) error {
	in := &l.in
	if in.err != nil {
		return in.err
	}
	in.err = l.endOf(err)
	l.observer.end(in.err)
	if l.watch != nil {
		l.watch.want()
		l.watch.conn.Wake()
	}
	return in.err
}

// stall makes goroutines in Wait wait for that of yamux, and reports whether they did not yet.
func (l *link) stall() bool {
	if l.in.stalled.Load() != nil {
		return false
	}
	stalled := make(chan struct{})
	return l.in.stalled.CompareAndSwap(nil, &stalled)
}

// unlock releases mu of l.in. It returns true if a goroutine that waits for the connection must be
// woken, because a message for which it waits may have been received.
func (l *link) unlock() (mustWake bool) {
	in := &l.in
	n := in.src.Buffered()
	unread := in.err == nil && in.stalled.Load() == nil && (n >= headerSize || n > 0 && in.left > 0)
	mustWake = unread || in.delivered
	in.delivered = false
	in.unread.Store(unread)
	in.mu.Unlock()
	return mustWake
}

// unlockAndWake is unlock for a goroutine that does not have the turn.
func (l *link) unlockAndWake() {
	if l.unlock() && len(l.watch.turn) > 0 {
		l.watch.conn.Wake()
	}
}

// receiveBody receives the rest of a body, if there is any. Errors are those of receive.
func (l *link) receiveBody(wait bool) error {
	in := &l.in
	for in.left > 0 {
		var p []byte
		if in.body != nil {
			var err error
			if p, err = in.body.reserve(in.left, wait); err != nil {
				return err
			}
		}
		var n int
		var err error
		if p == nil {
			n, err = in.src.Discard(in.left)
		} else {
			n, err = in.src.Read(p[:min(len(p), in.left)])
			in.body.filled(n)
			in.delivered = in.delivered || n > 0
		}
		if l.received(n); err != nil {
			return unexpectedEOF(err)
		}
	}
	return nil
}

// received records that n more bytes of the body were received, and ends the stream if the message
// has the flag for that.
func (l *link) received(n int) {
	in := &l.in
	if in.left -= n; in.left > 0 {
		return
	}
	in.body = nil
	switch h := &in.header; {
	case h.ofStream(fin):
		l.endStream(h.stream(), io.EOF)
	case h.ofStream(rst):
		l.endStream(h.stream(), errReset)
	}
	in.header = header{}
}

func (l *link) endStream(stream uint32, err error) {
	if b := l.windows.end(stream); b != nil {
		b.end(err)
		l.in.delivered = true
	}
}

// unexpectedEOF returns io.ErrUnexpectedEOF if err is io.EOF, because the connection has ended
// within a message. Otherwise it returns err.
func unexpectedEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// nextMessage receives the header of a message and checks it. It handles what yamux need not see:
// the bytes of streams, credit, replies to pings, since yamux sends no pings, and requests, unless
// the reply would have to wait. The rest goes to forYamux, without a body and without credit. The
// error is that of receive, a [ProtocolError] or that of the connection; after a GoAway of the peer,
// ECONNRESET instead of a header becomes io.EOF.
//
// The windows of yamux are unlimited. So nextMessage counts the body of a message against the
// window of its stream. If the stream is no longer read, the body will be discarded.
func (l *link) nextMessage() error {
	in := &l.in
	if len(in.forYamux) == cap(in.forYamux) {
		return errMustWait
	}
	p, err := in.src.Peek(headerSize)
	switch {
	case err == nil:
	case in.goAway && errors.Is(err, syscall.ECONNRESET):
		return io.EOF // a Unix socket reports that the peer has closed with bytes unread
	case len(p) > 0:
		return unexpectedEOF(err)
	default:
		return err
	}
	h := header(p)
	_, _ = in.src.Discard(headerSize)
	if err := in.validator.check(&h); err != nil {
		return err
	}
	switch {
	case h.isPingRequest():
		reply := pingMessage(ack, h.length())
		if ok, _ := l.out.tryEnqueue(&reply, nil); ok {
			return nil
		}
	case h.kind() == ping:
		l.windows.pingReplied(h.length())
		l.flush.replied(h.length())
		return nil
	}
	if h.ofStream(syn) {
		l.windows.open(h.stream())
		l.sendWindows.open(h.stream())
		l.observer.addWaiting(h.stream())
	}
	in.goAway = in.goAway || h.kind() == goAway
	if h.kind() == credit {
		l.sendWindows.grant(h.stream(), h.length())
	}
	if h.ofStream(rst) {
		l.sendWindows.update(h.stream(), func(w *sendWindow) { w.reset = true })
	}
	in.header, in.left = h, int(h.body())
	if in.left > 0 {
		if in.body, err = l.windows.arrive(h.stream(), h.body()); err != nil {
			return err
		}
	}
	if h.kind() > credit || h.flags() != 0 {
		if h.kind() <= credit {
			h.setLength(0)
		}
		in.forYamux <- h
		in.delivered = true
	}
	l.received(0)
	return nil
}

// endOf returns the reason for the end of the session after err, an error of receiving: err or, if
// reading was stopped because a write had failed, the error of that write.
func (l *link) endOf(err error) error {
	if errors.Is(err, transport.ErrClosed) {
		return transport.ErrClosed
	}
	if failure := l.out.failure.Load(); failure != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return *failure
	}
	return err
}

// Read copies the next bytes of a header for yamux to p and returns their number. At the end of the
// session it returns 0 and ErrClosed; unless this process has closed the connection it first blocks
// until Close, because yamux would discard its streams. Only yamux's reading goroutine calls it.
// That goroutine receives for all streams.
func (l *link) Read(p []byte) (int, error) {
	if l.headerRead == headerSize {
		h, err := l.awaitMessage()
		if err != nil {
			if err != transport.ErrClosed {
				<-l.released
			}
			return 0, transport.ErrClosed
		}
		l.header, l.headerRead = h, 0
	}
	n := copy(p, l.header[l.headerRead:])
	l.headerRead += n
	return n, nil
}

// awaitMessage receives until there is a message for yamux and returns it. Errors are those of
// receive.
func (l *link) awaitMessage() (header, error) {
	if l.watch != nil {
		return l.awaitPolled()
	}
	for {
		select {
		case h := <-l.in.forYamux:
			return h, nil
		default:
		}
		l.in.mu.Lock()
		err := l.receive(true)
		l.in.mu.Unlock()
		if err != nil {
			return header{}, err
		}
	}
}
