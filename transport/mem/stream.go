package mem

import (
	"net"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/internal/turn"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Stream implements [transport.Streamer]. A frame takes no more than its own
// bytes from the ring, so nothing was read ahead.
func (c *conn) Stream() (transport.Stream, error) { return newStream(c), nil }

// Multiplex implements [transport.Multiplexer].
func (c *conn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	return mux.New(newStream(c), cfg)
}

// stream is a connection without its framing.
type stream struct {
	conn             *conn
	reading, writing turn.Turn
}

func newStream(c *conn) *stream {
	return &stream{conn: c, reading: turn.New(), writing: turn.New()}
}

func (s *stream) Read(p []byte) (int, error) {
	s.reading.Take()
	defer s.reading.Give()
	if len(p) == 0 {
		return 0, nil
	}
	return s.conn.in.Read(p)
}

func (s *stream) Write(p []byte) (int, error) {
	s.writing.Take()
	defer s.writing.Give()
	n, err := s.conn.out.Write(p)
	return n, s.conn.writeError(err)
}

func (s *stream) CloseWrite() error { return s.conn.CloseWrite() }
func (s *stream) Close() error      { return s.conn.Close() }

func (s *stream) LocalAddr() net.Addr  { return addr(s.conn.local) }
func (s *stream) RemoteAddr() net.Addr { return addr(s.conn.remote) }

func (s *stream) SetDeadline(t time.Time) error {
	s.conn.in.setReadDeadline(t)
	s.conn.out.setWriteDeadline(t)
	return nil
}

func (s *stream) SetReadDeadline(t time.Time) error {
	s.conn.in.setReadDeadline(t)
	return nil
}

func (s *stream) SetWriteDeadline(t time.Time) error {
	s.conn.out.setWriteDeadline(t)
	return nil
}

// addr is one end of a connection.
type addr string

func (addr) Network() string  { return "mem" }
func (a addr) String() string { return string(a) }
