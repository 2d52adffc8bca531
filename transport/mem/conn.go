package mem

import (
	"errors"
	"net"
	"os"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/chanmutex"
	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// conn is one end of a connection. It implements transport.Conn and transport.Multiplexer. Frames
// have headers as on TCP, so that empty frames count for the limit of a ring too.
type conn struct {
	local, remote string
	out           *ring
	in            *ring
	frames        *frame.Reader // reads from in
	header        []byte        // memory of WriteFrames
}

// pair returns the two ends of a new connection: dial, whose local address is dialAddr, and accept,
// whose local address is acceptAddr. In each direction the connection holds up to buffer bytes that
// were written and not read; further writes block.
func pair(dialAddr, acceptAddr string, buffer int) (dial, accept *conn) {
	there, back := newRing(buffer), newRing(buffer)
	dial = &conn{local: dialAddr, remote: acceptAddr, out: there, in: back, frames: frame.NewReader(back)}
	accept = &conn{local: acceptAddr, remote: dialAddr, out: back, in: there, frames: frame.NewReader(there)}
	return dial, accept
}

func (c *conn) WriteFrames(frames ...transport.Frame) error {
	for _, f := range frames {
		c.header = frame.AppendHeader(c.header[:0], frame.Size(f))
		_, err := c.out.Write(c.header)
		for i := 0; err == nil && i < len(f); i++ {
			_, err = c.out.Write(f[i])
		}
		if err != nil {
			return c.writeError(err)
		}
	}
	return nil
}

// writeError wraps err, the error of a write to the ring, in an *Error with the peer's address, as
// for EPIPE after the peer has closed. It returns ErrClosed, os.ErrDeadlineExceeded and nil
// unchanged.
func (c *conn) writeError(err error) error {
	if err == nil || errors.Is(err, transport.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return &Error{Op: "write", Addr: c.remote, Err: err}
}

func (c *conn) NextFrame() (int64, error) { return c.frames.Next() }

func (c *conn) ReadBody(dst ...[]byte) error { return c.frames.Body(dst...) }

func (c *conn) CloseWrite() error {
	c.out.closeWriting()
	return nil
}

func (c *conn) Close() error {
	c.out.closeWriting()
	c.in.closeReading()
	return nil
}

func (c *conn) LocalAddr() string  { return c.local }
func (c *conn) RemoteAddr() string { return c.remote }

// Stream returns a stream of the connection's bytes, from the next one on in both directions.
// Closing the stream closes the connection. The error is always nil, also after Close: the calls on
// the stream fail then.
func (c *conn) Stream() (transport.Stream, error) { return newStream(c), nil }

// PrepareSession does nothing and returns nil: a session needs no descriptors or shared memory.
func (c *conn) PrepareSession(transport.SessionConfig) error { return nil }

// Multiplex returns a session of streams over the connection, from the next byte on in both
// directions. The session owns the connection and closes it. The error means that cfg is invalid;
// the connection is then unchanged.
func (c *conn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	return mux.New(newStream(c), cfg)
}

// stream implements transport.Stream on a connection. Its methods may be called concurrently, and
// closing it closes the connection.
type stream struct {
	conn             *conn
	reading, writing chanmutex.Mutex
}

func newStream(c *conn) *stream {
	return &stream{conn: c, reading: chanmutex.New(), writing: chanmutex.New()}
}

func (s *stream) Read(p []byte) (int, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	return s.conn.in.Read(p)
}

func (s *stream) Write(p []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	n, err := s.conn.out.Write(p)
	return n, s.conn.writeError(err)
}

// TryWrite writes nothing and returns 0 and nil, which means that the stream can be written only by
// Write.
func (s *stream) TryWrite(...[]byte) (int, error) { return 0, nil }

func (s *stream) CloseWrite() error { return s.conn.CloseWrite() }
func (s *stream) Close() error      { return s.conn.Close() }

func (s *stream) LocalAddr() net.Addr  { return addr(s.conn.local) }
func (s *stream) RemoteAddr() net.Addr { return addr(s.conn.remote) }

func (s *stream) SetDeadline(t time.Time) error {
	s.conn.in.readDeadline.Set(t)
	s.conn.out.writeDeadline.Set(t)
	return nil
}

func (s *stream) SetReadDeadline(t time.Time) error {
	s.conn.in.readDeadline.Set(t)
	return nil
}

func (s *stream) SetWriteDeadline(t time.Time) error {
	s.conn.out.writeDeadline.Set(t)
	return nil
}

// addr is the address of one end of a stream.
type addr string

func (addr) Network() string  { return "mem" }
func (a addr) String() string { return string(a) }
