package mux

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/libp2p/go-yamux/v4"

	"github.com/tensorpipe-go/tensorpipe/internal/turn"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

var _ transport.TryWriter = (*stream)(nil)

// stream implements transport.Stream. Reading and writing each take turns:
// yamux overdraws the window under two writers, and wakes one of two readers.
type stream struct {
	*yamux.Stream
	session *session

	window    *window
	allowance *allowance
	giveUp    *deadline // of writing

	reading turn.Turn
	writing turn.Turn

	mu       sync.Mutex
	closed   bool // Close was called
	finished bool // CloseWrite or Close was called
	ended    bool // the session has
}

func newStream(s *session, inner *yamux.Stream) *stream {
	return &stream{
		Stream:    inner,
		session:   s,
		window:    s.windows.enter(inner.StreamID()),
		allowance: s.link.sending.enter(inner.StreamID()),
		giveUp:    newDeadline(),
		reading:   turn.New(),
		writing:   turn.New(),
	}
}

// past is a deadline that wakes a call and keeps later ones from waiting. A
// read that need not wait goes through.
var past = time.Unix(1, 0)

func (s *stream) Read(p []byte) (int, error) {
	s.reading.Take()
	defer s.reading.Give()
	if s.isClosed() {
		return 0, transport.ErrClosed
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := s.Stream.Read(p)
	if n == 0 && s.hasEnded() {
		n, err = s.Stream.Read(p) // what came just before the end of the session goes first
	}
	if n == 0 {
		return 0, s.cause(err)
	}
	s.session.windows.consume(s.window, uint32(n))
	return n, nil
}

func (s *stream) Write(p []byte) (n int, err error) {
	s.writing.Take()
	defer s.writing.Give()
	if s.isFinished() {
		return 0, transport.ErrClosed
	}
	over := s.giveUp.wait()
	for err == nil && n < len(p) {
		var k int
		k, err = s.writeOne(p[n:], over)
		n += k
	}
	if err != nil && s.isFinished() {
		return n, transport.ErrClosed
	}
	return n, s.cause(err)
}

// TryWrite implements [transport.TryWriter].
func (s *stream) TryWrite(pieces ...[]byte) (n int, err error) {
	if !s.writing.TryTake() {
		return 0, nil
	}
	defer s.writing.Give()
	if s.isFinished() {
		return 0, transport.ErrClosed
	}
	if s.hasEnded() {
		return 0, s.cause(os.ErrDeadlineExceeded)
	}
	for _, p := range pieces {
		k, err := s.tryPiece(p)
		if n += k; err != nil || k < len(p) {
			return n, s.cause(err)
		}
	}
	return n, nil
}

func (s *stream) tryPiece(p []byte) (n int, err error) {
	for n < len(p) {
		k, err := s.allowance.take(min(len(p)-n, messageSize-headerSize))
		if k == 0 {
			return n, err
		}
		h := dataMessage(s.StreamID(), uint32(k))
		if !s.session.link.out.putNow(&h, p[n:n+k]) {
			s.allowance.giveBack(k)
			return n, nil
		}
		n += k
	}
	return n, nil
}

// writeOne sends as much of p as one message takes, once the peer has allowed it and
// there is room for it.
func (s *stream) writeOne(p []byte, over <-chan struct{}) (int, error) {
	n, err := s.claim(p, over)
	if err != nil {
		return 0, err
	}
	h := dataMessage(s.StreamID(), uint32(n))
	if !s.session.link.out.put(&h, p[:n], over) {
		s.allowance.giveBack(n)
		return 0, os.ErrDeadlineExceeded
	}
	return n, nil
}

// claim waits until the peer allows some of p.
func (s *stream) claim(p []byte, over <-chan struct{}) (int, error) {
	for {
		if isClosed(over) {
			return 0, os.ErrDeadlineExceeded
		}
		n, err := s.allowance.take(min(len(p), messageSize-headerSize))
		if n > 0 || err != nil {
			return n, err
		}
		select {
		case <-s.allowance.more:
		case <-over:
		}
	}
}

// cause turns an error of yamux into one that says what happened.
func (s *stream) cause(err error) error {
	switch {
	case err == nil || err == io.EOF:
		return err
	case s.isClosed():
		return transport.ErrClosed
	case err == errReset, errors.Is(err, yamux.ErrStreamReset) && !s.Session().IsClosed():
		return &ResetError{Stream: s.StreamID()}
	}
	if ended := s.session.Err(); ended != nil {
		return &EndError{Err: ended}
	}
	return os.ErrDeadlineExceeded
}

// CloseWrite wakes a writer, and lets the end leave when the queue has room for
// it: mostly before it returns.
func (s *stream) CloseWrite() error {
	if s.finish(false) {
		s.session.promptly(s.sendEnd)
	}
	return nil
}

// Close has the peer read what was written and then the end; what it writes
// from now on fails, as nobody would read it.
func (s *stream) Close() error {
	if s.finish(true) {
		s.session.promptly(func() {
			s.sendEnd()
			s.Reset()
			s.session.forget(s)
		})
	}
	return nil
}

// finish ends writing, and reading too if all is set. It is false where that
// was done before.
func (s *stream) finish(all bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.finished && !all {
		return false
	}
	s.finished = true
	s.giveUp.set(past)
	if all {
		s.closed = true
		s.Stream.SetReadDeadline(past)
	}
	return true
}

func (s *stream) sendEnd() {
	s.writing.Take()
	defer s.writing.Give()
	s.Stream.CloseWrite()
}

// wake ends the waiting of calls because the session has ended.
func (s *stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.giveUp.set(past)
	s.Stream.SetReadDeadline(past)
}

func (s *stream) SetDeadline(t time.Time) error {
	s.SetReadDeadline(t)
	return s.SetWriteDeadline(t)
}

func (s *stream) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return transport.ErrClosed
	}
	if s.ended {
		return nil
	}
	return s.Stream.SetReadDeadline(t)
}

func (s *stream) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished {
		return transport.ErrClosed
	}
	if s.ended {
		return nil
	}
	s.giveUp.set(t)
	return nil
}

func (s *stream) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func (s *stream) hasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

func (s *stream) isFinished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.finished
}
