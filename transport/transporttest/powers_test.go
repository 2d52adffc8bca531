package transporttest_test

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// bentPowers is a connection with some of its powers replaced.
type bentPowers struct {
	transport.Conn
	stream  func(transport.Stream) transport.Stream
	session func(transport.Session) transport.Session
}

func bendStreams(f func(transport.Stream) transport.Stream) func(bent) bent {
	return bendConn(func(c transport.Conn) transport.Conn {
		return bentPowers{c, f, func(s transport.Session) transport.Session { return s }}
	})
}

func bendSessions(f func(transport.Session) transport.Session) func(bent) bent {
	return bendConn(func(c transport.Conn) transport.Conn {
		return bentPowers{c, func(s transport.Stream) transport.Stream { return s }, f}
	})
}

func (c bentPowers) Stream() (transport.Stream, error) {
	s, err := c.Conn.(transport.Streamer).Stream()
	if err != nil {
		return nil, err
	}
	return c.stream(s), nil
}

func (c bentPowers) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	s, err := c.Conn.(transport.Multiplexer).Multiplex(cfg)
	if err != nil {
		return nil, err
	}
	return c.session(s), nil
}

type endlessStream struct{ transport.Stream }

func (s endlessStream) CloseWrite() error { return s.Stream.Close() }

// garbler changes the first bytes that it reads.
type garbler struct {
	transport.Stream
	once sync.Once
}

func (s *garbler) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	s.once.Do(func() { clear(p[:n]) })
	return n, err
}

// pretender has the end of the session look like that of its streams.
type pretender struct{ transport.Session }

func (s pretender) Accept(ctx context.Context) (transport.Stream, error) {
	st, err := s.Session.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return pretending{st}, nil
}

type pretending struct{ transport.Stream }

func (s pretending) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	if errors.Is(err, io.EOF) {
		return n, io.EOF
	}
	return n, err
}

// shuffler gives out the second stream first.
type shuffler struct {
	transport.Session
	held transport.Stream
}

func (s *shuffler) Accept(ctx context.Context) (transport.Stream, error) {
	if st := s.held; st != nil {
		s.held = nil
		return st, nil
	}
	first, err := s.Session.Accept(ctx)
	if err != nil {
		return nil, err
	}
	s.held = first
	return s.Session.Accept(ctx)
}

type mute struct{ transport.Session }

func (s mute) Err() error {
	if s.Session.Err() != nil {
		return transport.ErrClosed
	}
	return nil
}
