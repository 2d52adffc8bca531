package mux

import (
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-yamux/v4"

	"github.com/tensorpipe-go/tensorpipe/internal/chanmutex"
	"github.com/tensorpipe-go/tensorpipe/internal/deadline"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// stream implements transport.Stream. Its opening and its end are those of a stream of yamux. Calls
// that read are serialized, and so are calls that write, since the bytes of one Write must stay
// together.
type stream struct {
	*yamux.Stream
	session *session

	window        *window
	received      *receiveBuffer // of window
	sendWindow    *sendWindow
	readDeadline  deadline.Deadline
	writeDeadline deadline.Deadline

	reading chanmutex.Mutex
	writing chanmutex.Mutex
	body    [][]byte // memory of gather

	polled atomic.Bool // it is read by polling

	mu           sync.Mutex  // held while the fields below or a deadline change
	closed       atomic.Bool // Close was called
	finished     atomic.Bool // CloseWrite or Close was called
	sessionEnded atomic.Bool
}

// past is a deadline that wakes a call and keeps later ones from blocking. A read that need not
// block succeeds.
var past = time.Unix(1, 0)

func (s *stream) Read(p []byte) (int, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	for {
		late := s.sessionEnded.Load() || s.readDeadline.Passed() // bytes that have arrived before are still read
		n, err := 0, error(nil)
		if !s.closed.Load() && len(p) > 0 {
			n, err = s.received.take(p)
		}
		switch {
		case n > 0:
			s.session.windows.consume(s.window, uint32(n))
			return n, nil
		case err != nil || len(p) == 0 && !s.closed.Load():
			return 0, s.cause(err)
		case late || s.closed.Load():
			return 0, s.cause(os.ErrDeadlineExceeded)
		}
		s.session.link.watch.expect()
		<-s.received.changed
	}
}

func (s *stream) Write(p []byte) (n int, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.finished.Load() {
		return 0, transport.ErrClosed
	}
	defer s.expectReply()
	expired := s.writeDeadline.Done()
	for err == nil && n < len(p) {
		var k int
		k, err = s.writeMessage(p[n:], expired)
		n += k
	}
	if err != nil && s.finished.Load() {
		return n, transport.ErrClosed
	}
	return n, s.cause(err)
}

// SendWindow implements [transport.WindowedStream].
func (s *stream) SendWindow() int { return s.sendWindow.available() }

// GrowWindow implements [transport.WindowedStream].
func (s *stream) GrowWindow(n int) { s.session.windows.enlarge(s.window, n) }

// TryWrite implements transport.Stream: it writes the pieces in order as far as the window and the
// queue permit, without blocking, and returns the number of bytes written, possibly 0, also with an
// error. It does not keep the pieces. While another goroutine is writing it returns 0 and nil. The
// error is ErrClosed after CloseWrite or Close, and otherwise that of cause. A write deadline that
// has passed is ignored.
func (s *stream) TryWrite(pieces ...[]byte) (n int, err error) {
	if !s.writing.TryLock() {
		return 0, nil
	}
	defer s.writing.Unlock()
	if s.finished.Load() {
		return 0, transport.ErrClosed
	}
	if s.sessionEnded.Load() {
		return 0, s.cause(os.ErrDeadlineExceeded)
	}
	defer s.expectReply()
	left, skip := 0, 0 // bytes that are not written yet, and those of pieces[0] that are
	for _, p := range pieces {
		left += len(p)
	}
	for left > 0 {
		most := messageSize - headerSize
		if left > most && s.session.link.out.isIdle() {
			most = maxBody
		}
		k, err := s.sendWindow.claim(min(left, most))
		if k == 0 {
			return n, s.cause(err)
		}
		body := s.gather(pieces, skip, k)
		h := streamMessage(data, s.StreamID(), uint32(k))
		ok, _ := s.session.link.out.tryEnqueue(&h, body...)
		clear(body)
		if !ok {
			s.sendWindow.refund(k)
			return n, nil
		}
		n += k
		left -= k
		for skip += k; len(pieces) > 0 && skip >= len(pieces[0]); pieces = pieces[1:] {
			skip -= len(pieces[0])
		}
	}
	return n, nil
}

// expectReply makes the goroutine of yamux wait for the connection, if no other one does, unless the
// stream is polled: its reader then waits itself.
func (s *stream) expectReply() {
	if !s.polled.Load() {
		s.session.link.watch.expect()
	}
}

// gather returns the n bytes of pieces that follow the first skip bytes, as pieces of the same memory.
// The result is valid until the next call. The caller holds s.writing.
func (s *stream) gather(pieces [][]byte, skip, n int) [][]byte {
	s.body = s.body[:0]
	for _, p := range pieces {
		p = p[skip:min(skip+n, len(p))]
		skip, n = 0, n-len(p)
		if s.body = append(s.body, p); n == 0 {
			break
		}
	}
	return s.body
}

// writeMessage queues as much of p, which must not be empty, as one message carries and returns how
// much that is. It does not keep p. It blocks until the peer has granted credit and the queue has
// space. It returns os.ErrDeadlineExceeded if the write deadline has passed or expired is closed,
// and errReset if the peer has reset the stream; then it has queued nothing. The caller holds
// s.writing.
func (s *stream) writeMessage(p []byte, expired <-chan struct{}) (int, error) {
	n, err := s.claim(min(len(p), messageSize-headerSize), expired)
	if err != nil {
		return 0, err
	}
	h := streamMessage(data, s.StreamID(), uint32(n))
	if !s.session.link.out.enqueue(&h, p[:n], expired) {
		s.sendWindow.refund(n)
		return 0, os.ErrDeadlineExceeded
	}
	return n, nil
}

// claim takes up to n bytes of credit from the window, which the caller sends or refunds. It blocks
// until there is some. It returns os.ErrDeadlineExceeded if the write deadline has passed or expired is
// closed, and errReset if the peer has reset the stream. The caller holds s.writing.
func (s *stream) claim(n int, expired <-chan struct{}) (int, error) {
	for {
		if s.writeDeadline.Passed() {
			return 0, os.ErrDeadlineExceeded
		}
		if k, err := s.sendWindow.claim(n); k > 0 || err != nil {
			return k, err
		}
		s.session.link.watch.expect()
		select {
		case <-s.sendWindow.changed:
		case <-expired:
			return 0, os.ErrDeadlineExceeded
		}
	}
}

// cause returns the error that a call on s reports for err. nil and io.EOF are returned unchanged.
// Otherwise the result is ErrClosed after Close, a *ResetError
// if the peer has reset the stream, an *EndError if the session has ended, and else
// os.ErrDeadlineExceeded.
func (s *stream) cause(err error) error {
	switch {
	case err == nil || err == io.EOF:
		return err
	case s.closed.Load():
		return transport.ErrClosed
	case err == errReset:
		return &ResetError{Stream: s.StreamID()}
	}
	if sessionEnded := s.session.Err(); sessionEnded != nil {
		return &EndError{Err: sessionEnded}
	}
	return os.ErrDeadlineExceeded
}

// CloseWrite implements transport.Stream. It makes blocked and later writes fail with ErrClosed,
// and sends the end of the stream, after which the peer reads io.EOF. If the end cannot be sent
// within closeTimeout, CloseWrite returns, and a goroutine sends it later, if at all. The result is
// nil.
func (s *stream) CloseWrite() error {
	if s.finish(false) {
		s.session.runBriefly(s.sendEnd)
	}
	return nil
}

// Close implements net.Conn and returns nil. It makes blocked and later reads and writes fail with
// ErrClosed, and discards bytes that were not read. The peer reads the written bytes and then the
// end of the stream, and its writes fail. If the end cannot be sent within closeTimeout, Close
// returns, and a goroutine does the rest later, if at all.
func (s *stream) Close() error {
	if s.finish(true) {
		s.session.runBriefly(func() {
			s.sendEnd()
			s.Reset()
			s.session.windows.remove(s.StreamID())
			s.session.link.sendWindows.remove(s.StreamID())
			s.session.mu.Lock()
			defer s.session.mu.Unlock()
			delete(s.session.streams, s)
		})
	}
	return nil
}

// finish makes blocked and later writes fail, and also reads if all is true. It returns true if the
// caller must now send the end of the stream. It returns false, and does nothing, if an earlier
// call has done as much.
func (s *stream) finish(all bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() || s.finished.Load() && !all {
		return false
	}
	s.finished.Store(true)
	s.writeDeadline.Set(past)
	if all {
		s.closed.Store(true)
		s.readDeadline.Set(past)
	}
	return true
}

func (s *stream) sendEnd() {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.Stream.CloseWrite()
}

// wake makes blocked calls return, and later ones not block, because the session has ended. It sets
// both deadlines to the past, after which they cannot be changed. Bytes that have arrived can still
// be read.
func (s *stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessionEnded.Store(true)
	s.writeDeadline.Set(past)
	s.readDeadline.Set(past)
}

func (s *stream) SetDeadline(t time.Time) error {
	s.SetReadDeadline(t)
	return s.SetWriteDeadline(t)
}

func (s *stream) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return transport.ErrClosed
	}
	if s.sessionEnded.Load() {
		return nil
	}
	s.readDeadline.Set(t)
	return nil
}

func (s *stream) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished.Load() {
		return transport.ErrClosed
	}
	if s.sessionEnded.Load() {
		return nil
	}
	s.writeDeadline.Set(t)
	return nil
}
