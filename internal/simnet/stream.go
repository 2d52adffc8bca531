package simnet

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/internal/turn"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// readAhead is how much a stream takes from the wrapped one before the rules
// say what of it has arrived.
const readAhead = 64 << 10

// powerful is a connection whose wrapped one can give up its framing.
type powerful struct{ *conn }

// Stream implements [transport.Streamer]. Each Write of the stream counts as a
// frame whose header has no bytes, so that points can be given as before.
func (c powerful) Stream() (transport.Stream, error) {
	inner, err := c.inner.(transport.Streamer).Stream()
	if err != nil {
		return nil, err
	}
	c.link.unframe(c.end, inner)
	return &stream{
		Stream:  inner,
		conn:    c.conn,
		writing: turn.New(),
		reading: turn.New(),
		at:      cursor{parcel: c.body, frame: c.frames - 1, read: c.body.header + c.read},
	}, nil
}

// Multiplex implements [transport.Multiplexer]. Each message of the session is
// a Write, and so a frame.
func (c powerful) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	s, err := c.Stream()
	if err != nil {
		return nil, err
	}
	return mux.New(s, cfg)
}

// stream is one end of a link that has given up its framing.
type stream struct {
	transport.Stream
	conn *conn

	writing turn.Turn

	reading turn.Turn
	at      cursor
	buf     []byte
	ahead   []byte // of buf: read and not yet arrived

	mu     sync.Mutex
	readBy time.Time
}

func (s *stream) Write(p []byte) (int, error) {
	s.writing.Take()
	defer s.writing.Give()
	c := s.conn
	if c.isClosed() {
		return 0, transport.ErrClosed
	}
	if len(p) == 0 {
		return 0, nil
	}
	pass, thenEnd, err := c.link.admit(c.end, []transport.Frame{{p}})
	if err != nil {
		return 0, err
	}
	whole := len(pass[0][0])
	n, err := s.Stream.Write(pass[0][0])
	if err != nil {
		c.link.unsend(c.end, int64(whole-n))
		return n, s.writeFailed(err)
	}
	if thenEnd {
		s.Stream.CloseWrite()
	}
	if whole < len(p) {
		return n, c.link.reset()
	}
	return n, nil
}

func (s *stream) writeFailed(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return s.conn.writeFailed(err)
}

func (s *stream) Read(p []byte) (int, error) {
	s.reading.Take()
	defer s.reading.Give()
	if len(p) == 0 {
		return 0, nil
	}
	if err := s.fill(); err != nil {
		return 0, s.readFailed(err)
	}
	c := s.conn
	arrives, place := c.link.next(1-c.end, &s.at, int64(len(s.ahead)))
	if err := c.await(arrives, place, s.deadline); err != nil {
		return 0, err
	}
	n := c.link.take(1-c.end, &s.at, int64(min(len(p), len(s.ahead))))
	copy(p, s.ahead[:n])
	s.ahead = s.ahead[n:]
	return int(n), nil
}

// fill reads ahead where nothing is left.
func (s *stream) fill() error {
	if s.buf == nil {
		s.buf = make([]byte, readAhead)
	}
	for len(s.ahead) == 0 {
		n, err := s.Stream.Read(s.buf)
		s.ahead = s.buf[:n]
		if n == 0 && err != nil {
			return err
		}
	}
	return nil
}

func (s *stream) readFailed(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return s.conn.readFailed(err, place{frame: s.at.frame + 1}, s.deadline)
}

func (s *stream) deadline() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readBy
}

func (s *stream) CloseWrite() error {
	s.conn.link.finish(s.conn.end)
	return s.Stream.CloseWrite()
}

func (s *stream) Close() error { return s.conn.Close() }

func (s *stream) LocalAddr() net.Addr  { return s.Stream.LocalAddr() }
func (s *stream) RemoteAddr() net.Addr { return s.Stream.RemoteAddr() }

func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

func (s *stream) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	s.readBy = t
	s.mu.Unlock()
	s.conn.link.wakeReaders()
	return s.Stream.SetReadDeadline(t)
}
