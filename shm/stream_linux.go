package shm

import (
	"errors"
	"net"
	"os"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Stream implements [transport.Streamer]. Nothing is read ahead.
func (c *conn) Stream() (transport.Stream, error) { return c.handOver() }

func (c *conn) handOver() (*stream, error) {
	if c.closed.Load() {
		return nil, transport.ErrClosed
	}
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.in.handed {
		return nil, ErrHandedOver
	}
	c.in.handed, c.out.handed = true, true
	return &stream{c}, nil
}

// stream is a conn without its framing.
type stream struct{ conn *conn }

var _ transport.Gatherer = (*stream)(nil)

func (s *stream) Read(p []byte) (int, error) {
	in := &s.conn.in
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	n, err := in.read(p)
	if err == nil {
		err = in.settle()
	}
	if n > 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil // what was read was read in time
	}
	return n, s.conn.failure("read", err)
}

func (s *stream) Write(p []byte) (int, error) {
	out := &s.conn.out
	out.mu.Lock()
	defer out.mu.Unlock()
	out.whole[0] = p
	pieces := net.Buffers(out.whole[:])
	n, err := out.writePieces(&pieces)
	out.whole[0] = nil
	return n, s.conn.failure("write", err)
}

// WriteBuffers implements [transport.Gatherer].
func (s *stream) WriteBuffers(pieces *net.Buffers) (int64, error) {
	out := &s.conn.out
	out.mu.Lock()
	defer out.mu.Unlock()
	n, err := out.writePieces(pieces)
	return int64(n), s.conn.failure("write", err)
}

func (s *stream) CloseWrite() error { return s.conn.CloseWrite() }
func (s *stream) Close() error      { return s.conn.Close() }

func (s *stream) LocalAddr() net.Addr  { return addr(s.conn.local) }
func (s *stream) RemoteAddr() net.Addr { return addr(s.conn.remote) }

func (s *stream) SetDeadline(t time.Time) error {
	s.conn.in.deadline.set(t, s.conn.in.bell)
	s.conn.out.deadline.set(t, s.conn.out.bell)
	return nil
}

func (s *stream) SetReadDeadline(t time.Time) error {
	s.conn.in.deadline.set(t, s.conn.in.bell)
	return nil
}

func (s *stream) SetWriteDeadline(t time.Time) error {
	s.conn.out.deadline.set(t, s.conn.out.bell)
	return nil
}

// addr is one end of a connection.
type addr string

func (addr) Network() string  { return Name }
func (a addr) String() string { return string(a) }
