package uv

import (
	"bytes"
	"io"
	"net"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Stream makes the connection a stream of bytes, from the next byte on in both directions, and
// returns it. The stream first returns the bytes that the connection has read ahead. It also
// implements [transport.Gatherer] and [transport.BulkReader]. Closing the stream closes the
// connection, and the reverse. The error is ErrClosed, or ErrHandedOver if the connection is already a
// stream or a session.
func (c *conn) Stream() (transport.Stream, error) {
	socket, err := wait.NewStreamReader(c.tcp)
	if err != nil {
		return nil, c.readError(err)
	}
	s, err := c.stream(socket)
	if err != nil {
		return nil, err
	}
	return &rawStream{s, socket}, nil
}

// rawStream is a stream of the raw bytes of a connection.
type rawStream struct {
	*stream
	socket *wait.StreamReader
}

var _ transport.BulkReader = (*rawStream)(nil)

// ReadBulk implements [transport.BulkReader].
func (s *rawStream) ReadBulk(p []byte) (int, error) {
	if s.conn.closed.Load() {
		return 0, transport.ErrClosed
	}
	n, err := s.bufferedReader.read(p, s.socket.ReadBulk)
	failpoint.Here()
	return n, s.conn.readError(err)
}

// PrepareSession does nothing and returns nil: a session over TCP needs no memory or descriptors of
// the system that could be acquired in advance.
func (c *conn) PrepareSession(transport.SessionConfig) error { return nil }

// stream makes the connection a stream of bytes. The stream first returns the bytes that the
// connection has read ahead, then those that it reads from socket: the connection's TCP socket, or
// a reader that polls it. The error is ErrClosed, or ErrHandedOver if the connection is already a
// stream or a session.
func (c *conn) stream(socket io.Reader) (*stream, error) {
	writer, err := wait.NewWriter(c.tcp)
	if err != nil {
		return nil, err
	}
	buffered, err := c.takeBuffered()
	if err != nil {
		return nil, err
	}
	return &stream{end{conn: c, bufferedReader: bufferedReader{buffered: buffered, socket: socket}}, writer}, nil
}

// takeBuffered returns a copy of the bytes that the connection has read ahead, or nil if there are
// none. The connection drops its buffers, because many connections are idle, and its calls for
// frames return ErrHandedOver from then on. The error is ErrClosed after Close, or ErrHandedOver if
// takeBuffered was called before. No other call may be in progress on c.
func (c *conn) takeBuffered() (*bytes.Reader, error) {
	if c.closed.Load() {
		return nil, transport.ErrClosed
	}
	if c.src == nil {
		return nil, ErrHandedOver
	}
	src := c.src
	c.src, c.frames, c.batch = nil, nil, frame.Batch[transport.Frame]{}
	if src.Buffered() == 0 {
		return nil, nil
	}
	buffered := make([]byte, src.Buffered())
	_, err := io.ReadFull(src, buffered)
	return bytes.NewReader(buffered), err
}

// bufferedReader is the reading half of a stream: it returns first the bytes that were read ahead,
// then those of the socket. Its Read may be called concurrently.
type bufferedReader struct {
	mu       sync.Mutex
	buffered *bytes.Reader // bytes that were read ahead; nil once they are read
	socket   io.Reader
}

func (s *bufferedReader) Read(p []byte) (int, error) { return s.read(p, s.socket.Read) }

// read is Read with fromSocket in place of the Read of the socket.
func (s *bufferedReader) read(p []byte, fromSocket func(p []byte) (int, error)) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buffered != nil && len(p) > 0 {
		n, _ := s.buffered.Read(p)
		if s.buffered.Len() == 0 {
			s.buffered = nil
		}
		return n, nil
	}
	return fromSocket(p)
}

// end is the common part of streams with and without TLS: reading, addresses and deadlines.
// Deadlines are those of the socket.
type end struct {
	conn           *conn
	bufferedReader bufferedReader
}

func (e *end) Read(p []byte) (int, error) {
	if e.conn.closed.Load() {
		return 0, transport.ErrClosed
	}
	n, err := e.bufferedReader.Read(p)
	failpoint.Here()
	return n, e.conn.readError(err)
}

func (e *end) LocalAddr() net.Addr                { return e.conn.tcp.LocalAddr() }
func (e *end) RemoteAddr() net.Addr               { return e.conn.tcp.RemoteAddr() }
func (e *end) SetDeadline(t time.Time) error      { return e.conn.tcp.SetDeadline(t) }
func (e *end) SetReadDeadline(t time.Time) error  { return e.conn.tcp.SetReadDeadline(t) }
func (e *end) SetWriteDeadline(t time.Time) error { return e.conn.tcp.SetWriteDeadline(t) }

// stream implements transport.Stream and transport.Gatherer on a connection over plain TCP. Closing
// it closes the connection.
type stream struct {
	end
	writer *wait.Writer // of TryWrite
}

var _ transport.Gatherer = (*stream)(nil)

func (s *stream) Write(p []byte) (int, error) {
	failpoint.Here()
	n, err := s.conn.tcp.Write(p)
	return n, s.conn.writeError(err)
}

// WriteBuffers writes pieces in order with writev, and returns the number of bytes written. It
// blocks until all are written, the write deadline passes, or the stream fails. It removes the
// written bytes from pieces, also after an error, so that after a deadline another call can go on.
// The error is ErrClosed after CloseWrite or Close, and otherwise that of the socket.
func (s *stream) WriteBuffers(pieces *net.Buffers) (int64, error) {
	failpoint.Here()
	n, err := pieces.WriteTo(s.conn.tcp)
	return n, s.conn.writeError(err)
}

// TryWrite writes pieces in order, as much as the socket accepts without blocking, and returns the
// number of bytes written. It returns 0 and nil if the socket accepts none, and always on systems
// other than Linux. The error is ErrClosed after CloseWrite or Close, and otherwise that of the
// socket. pieces are not kept.
func (s *stream) TryWrite(pieces ...[]byte) (int, error) {
	failpoint.Here()
	n, err := s.writer.TryWrite(pieces...)
	return n, s.conn.writeError(err)
}

func (s *stream) CloseWrite() error { return s.conn.CloseWrite() }
func (s *stream) Close() error      { return s.conn.Close() }
