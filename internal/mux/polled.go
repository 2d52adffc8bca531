package mux

import (
	"os"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// polledStream implements transport.Poller on a stream of a session over a Pollable. Its bytes are
// read from the connection straight to the memory given to TryRead, unless another goroutine has
// received them before.
type polledStream struct {
	*stream
	link *link

	armed       atomic.Bool   // arriving bytes wake Wait
	woken       atomic.Bool   // Wake was called
	interrupted atomic.Bool   // Interrupt was called
	wakeup      chan struct{} // holds a token if Wait is to check again

	// Methods as values.
	stop, ready, readyUnlessInterrupted func() bool
}

var _ transport.Poller = (*polledStream)(nil)

func newPolledStream(st *stream) *polledStream {
	s := &polledStream{stream: st, link: st.session.link, wakeup: make(chan struct{}, 1)}
	s.armed.Store(true)
	s.stop, s.ready = s.mustStop, s.receivable
	s.readyUnlessInterrupted = func() bool { return s.interrupted.Load() || s.receivable() }
	st.readDeadline.Wake = func() { // also at the end of the stream or the session
		st.received.signal()
		s.signal()
		s.link.watch.conn.Wake()
	}
	st.writeDeadline.Wake = func() { s.link.out.interrupt(&st.writeDeadline) }
	return s
}

// TryRead implements transport.Poller.
func (s *polledStream) TryRead(p []byte) (int, error) {
	l := s.link
	l.watch.activity.Add(1)
	mine := l.in.mu.TryLock()
	ended := s.sessionEnded.Load() // nothing is received after that
	n, err := 0, error(nil)
	if !s.closed.Load() {
		n, err = s.received.take(p)
	}
	if mine {
		if n == 0 && err == nil && !ended && !s.closed.Load() {
			n, err = s.receiveTo(p)
		}
		l.unlockAndWake()
	}
	switch {
	case n > 0:
		s.session.windows.consume(s.window, uint32(n))
		return n, nil
	case err != nil:
		return 0, s.cause(err)
	case ended || s.closed.Load():
		return 0, s.cause(os.ErrDeadlineExceeded)
	}
	return 0, nil
}

// receiveTo receives bytes of the stream to p, and the messages that precede them, without blocking.
// It returns the number of bytes, or the error of take. After another error the session has ended.
// The caller holds mu of the link.
func (s *polledStream) receiveTo(p []byte) (n int, err error) {
	l, in := s.link, &s.link.in
	for n < len(p) {
		if in.left > 0 && in.body == s.received {
			if n > 0 && in.src.Buffered() == 0 {
				break // the caller may want the rest elsewhere
			}
			k, err := in.src.Read(p[n:min(len(p), n+in.left)])
			n += k
			if k > 0 {
				l.received(k)
			}
			if err != nil && err != errNoData {
				_ = l.end(unexpectedEOF(err))
			}
			if err != nil {
				break
			}
			continue
		}
		if n > 0 && in.src.Buffered() < headerSize || l.receive(false) != nil {
			break
		}
	}
	if n == 0 {
		return s.received.take(p)
	}
	return n, nil
}

// receivable receives the messages that precede the next bytes of the stream, without blocking, and
// reports whether TryRead has bytes or an error to return.
func (s *polledStream) receivable() bool {
	l, in := s.link, &s.link.in
	if s.received.readable() || s.closed.Load() || s.sessionEnded.Load() {
		return true
	}
	if !in.mu.TryLock() {
		return false
	}
	defer l.unlockAndWake()
	for !s.received.readable() {
		if in.left > 0 && in.body == s.received {
			_, err := in.src.Peek(1)
			if err != nil && err != errNoData {
				_ = l.end(unexpectedEOF(err))
			}
			return err != errNoData
		}
		if err := l.receive(false); err != nil {
			return err != errNoData && err != errMustWait && err != errRefused
		}
	}
	return true
}

// Readable implements transport.Poller.
func (s *polledStream) Readable() bool { return s.receivable() }

// PollReadable implements transport.Poller.
func (s *polledStream) PollReadable(due bool) bool {
	w := s.link.watch
	w.activity.Add(1)
	if s.armed.Load() {
		s.polled.Store(true)
		s.armed.Store(false)
	}
	if s.receivable() {
		return true
	}
	if due {
		s.interrupted.Store(false) // it was meant for an earlier poll
		if w.conn.Spin(s.ready, true) {
			return true
		}
	} else if w.conn.Spin(s.readyUnlessInterrupted, false) && s.receivable() {
		return true
	}
	s.interrupted.Store(false)
	s.Arm()
	return false
}

// Interrupt implements transport.Poller.
func (s *polledStream) Interrupt() { s.interrupted.Store(true) }

// Arm implements transport.Poller.
func (s *polledStream) Arm() {
	if !s.armed.Swap(true) {
		s.signal()
	}
	if s.received.readable() || s.link.in.unread.Load() {
		s.Wake()
	}
}

// Wake implements transport.Poller.
func (s *polledStream) Wake() {
	s.woken.Store(true)
	s.signal()
	s.link.watch.conn.Wake()
}

// ExpectOthers implements transport.Poller.
func (s *polledStream) ExpectOthers() { s.link.watch.expect() }

// Wait implements transport.Poller. While no other goroutine waits for the connection, it does.
func (s *polledStream) Wait() {
	w := s.link.watch
	s.polled.Store(true)
	w.polled.Store(true)
	for !s.woken.Swap(false) && !s.closed.Load() && !s.sessionEnded.Load() {
		if !s.armed.Load() {
			<-s.wakeup
			continue
		}
		if s.mayRead() {
			return
		}
		if stalled := s.link.in.stalled.Load(); stalled != nil {
			select {
			case <-*stalled:
			case <-s.received.changed:
			case <-s.wakeup:
			}
			continue
		}
		w.activity.Add(1)
		select {
		case w.turn <- struct{}{}:
		case <-s.received.changed:
			continue
		case <-s.wakeup:
			continue
		}
		var err error
		if !s.mustStop() {
			err = w.conn.Wait(s.stop)
		}
		w.leave()
		if err != nil {
			_ = s.link.fail(err)
		}
		if s.armed.Load() {
			return
		}
		if w.expected.Swap(false) {
			w.want()
		}
	}
}

// mayRead reports whether TryRead may have bytes or an error to return although the connection has
// no input.
func (s *polledStream) mayRead() bool { return s.received.readable() || s.link.in.unread.Load() }

// mustStop reports whether Wait must not wait for the connection.
func (s *polledStream) mustStop() bool {
	return !s.armed.Load() || s.woken.Load() || s.closed.Load() || s.sessionEnded.Load() ||
		s.mayRead() || s.link.in.stalled.Load() != nil
}

// signal makes Wait check again.
func (s *polledStream) signal() {
	select {
	case s.wakeup <- struct{}{}:
	default:
	}
}
