package transporttest_test

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// wrappedConn is a connection whose streams and sessions are wrapped.
type wrappedConn struct {
	transport.Conn
	transport.Multiplexer
	stream  func(transport.Stream) transport.Stream
	session func(transport.Session) transport.Session
}

func wrapStreams(f func(transport.Stream) transport.Stream) func(flawed) flawed {
	return wrapConns(func(c transport.Conn) transport.Conn {
		return wrappedConn{c, c.(transport.Multiplexer), f, func(s transport.Session) transport.Session { return s }}
	})
}

func wrapSessions(f func(transport.Session) transport.Session) func(flawed) flawed {
	return wrapConns(func(c transport.Conn) transport.Conn {
		return wrappedConn{c, c.(transport.Multiplexer), func(s transport.Stream) transport.Stream { return s }, f}
	})
}

func (c wrappedConn) Stream() (transport.Stream, error) {
	s, err := c.Multiplexer.Stream()
	if err != nil {
		return nil, err
	}
	return c.stream(s), nil
}

func (c wrappedConn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	s, err := c.Multiplexer.Multiplex(cfg)
	if err != nil {
		return nil, err
	}
	return c.session(s), nil
}

type endlessStream struct{ transport.Stream }

func (s endlessStream) CloseWrite() error { return s.Stream.Close() }

// corruptingStream changes the first bytes that it reads.
type corruptingStream struct {
	transport.Stream
	once sync.Once
}

func (s *corruptingStream) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	s.once.Do(func() { clear(p[:n]) })
	return n, err
}

// cleanEOFSession reports the end of the session as the end of its streams.
type cleanEOFSession struct{ transport.Session }

func (s cleanEOFSession) Accept(ctx context.Context) (transport.Stream, error) {
	st, err := s.Session.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return cleanEOFStream{st}, nil
}

type cleanEOFStream struct{ transport.Stream }

func (s cleanEOFStream) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	if errors.Is(err, io.EOF) {
		return n, io.EOF
	}
	return n, err
}

// streamReorderer accepts the second stream before the first.
type streamReorderer struct {
	transport.Session
	first transport.Stream
}

func (s *streamReorderer) Accept(ctx context.Context) (transport.Stream, error) {
	if st := s.first; st != nil {
		s.first = nil
		return st, nil
	}
	first, err := s.Session.Accept(ctx)
	if err != nil {
		return nil, err
	}
	s.first = first
	return s.Session.Accept(ctx)
}

type causeHider struct{ transport.Session }

func (s causeHider) Err() error {
	if s.Session.Err() != nil {
		return transport.ErrClosed
	}
	return nil
}
