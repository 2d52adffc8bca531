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

// stream implements transport.Stream. Reading and writing each take turns:
// yamux overdraws the window under two writers, and wakes one of two readers.
type stream struct {
	*yamux.Stream
	session *session

	window *window

	reading turn.Turn
	writing turn.Turn

	mu       sync.Mutex
	closed   bool // Close was called
	finished bool // CloseWrite or Close was called
	ended    bool // the session has
}

func newStream(s *session, inner *yamux.Stream) *stream {
	return &stream{
		Stream:  inner,
		session: s,
		window:  s.windows.enter(inner.StreamID()),
		reading: turn.New(),
		writing: turn.New(),
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

func (s *stream) Write(p []byte) (int, error) {
	s.writing.Take()
	defer s.writing.Give()
	if s.isFinished() {
		return 0, transport.ErrClosed
	}
	n, err := s.Stream.Write(p)
	if err != nil && s.isFinished() {
		return n, transport.ErrClosed
	}
	return n, s.cause(err)
}

// cause turns an error of yamux into one that says what happened.
func (s *stream) cause(err error) error {
	switch {
	case err == nil || err == io.EOF:
		return err
	case s.isClosed():
		return transport.ErrClosed
	case errors.Is(err, yamux.ErrStreamReset) && !s.Session().IsClosed():
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
	s.Stream.SetWriteDeadline(past)
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
	s.Stream.SetDeadline(past)
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
	return s.Stream.SetWriteDeadline(t)
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
