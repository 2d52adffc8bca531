// Package netconn makes connections of a transport out of connections of package net. With it a
// transport of an application's own consists of Listen, Dial and Accept: [New] does the rest,
// including the sessions that the native dialect needs.
//
// A transport that has frames of its own, such as one over a message queue, implements
// [transport.Conn] itself. If it has an ordered byte stream too, [NewSession] makes a session over
// that stream, with which the transport implements [transport.Multiplexer].
package netconn

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// HalfCloser is a net.Conn whose writing half can be closed separately, such as a [*net.TCPConn] or
// a [*net.UnixConn].
type HalfCloser interface {
	net.Conn

	// CloseWrite closes the writing half: the peer reads the bytes written before, then io.EOF.
	// Reading goes on.
	CloseWrite() error
}

// Conn is a [transport.Conn] and a [transport.Multiplexer] over a connection of package net. A frame
// is its length, as eight little-endian bytes, and then its body.
type Conn struct {
	stream *stream
	frames *frame.Reader
	batch  frame.Batch[transport.Frame]
}

var _ transport.Multiplexer = (*Conn)(nil)

// New returns a Conn over c, from the next byte on in both directions. The Conn owns c and closes
// it. New reads and writes nothing. If c itself is a *net.TCPConn or a *net.UnixConn, large frames
// are written with fewer system calls than over another HalfCloser.
func New(c HalfCloser) *Conn {
	s := newStream(c)
	s.closeWrite = c.CloseWrite
	return &Conn{stream: s, frames: frame.NewReader(s)}
}

// WriteFrames implements [transport.Conn]: it writes the frames in order, each as its length and
// its body. If frames and lengths have at most 4 KiB in all, it copies them and writes them at
// once; otherwise it copies no bodies. The error is ErrClosed after CloseWrite or Close, and
// otherwise that of the connection.
func (c *Conn) WriteFrames(frames ...transport.Frame) error {
	if c.stream.finished.Load() {
		return transport.ErrClosed
	}
	return c.stream.writeError(c.batch.Write(c.stream.writer(), frames))
}

// NextFrame implements [transport.Conn]: it blocks until the next frame arrives, and returns the
// length of its body, or 0 with an error. The error is io.EOF if the peer has closed between two
// frames, io.ErrUnexpectedEOF if within a length, and ErrClosed after Close. It matches
// [transport.ErrFrame] if the body of the last frame was not read or a length exceeds
// math.MaxInt64. Any other error is that of the connection.
func (c *Conn) NextFrame() (int64, error) {
	if c.stream.closed.Load() {
		return 0, transport.ErrClosed
	}
	return c.frames.Next()
}

// ReadBody implements [transport.Conn]: it fills dst with the next bytes of the frame's body. The
// error is io.ErrUnexpectedEOF if the connection ends first, and ErrClosed after Close. It matches
// [transport.ErrFrame] if the body has fewer bytes left than dst. Any other error is that of the
// connection.
func (c *Conn) ReadBody(dst ...[]byte) error {
	if c.stream.closed.Load() {
		return transport.ErrClosed
	}
	return c.frames.Body(dst...)
}

// CloseWrite implements [transport.Conn] with the CloseWrite of the connection, whose error it
// returns. WriteFrames returns ErrClosed from then on, also a call that is blocked.
func (c *Conn) CloseWrite() error { return c.stream.CloseWrite() }

// Close implements [transport.Conn] with the Close of the connection, whose error it returns. It
// returns nil if Close was called before.
func (c *Conn) Close() error { return c.stream.Close() }

// LocalAddr returns the text of the connection's local address. It may be empty, as that of a Unix
// socket without a name.
func (c *Conn) LocalAddr() string { return c.stream.LocalAddr().String() }

// RemoteAddr returns the text of the connection's remote address. It may be empty, as that of a Unix
// socket without a name.
func (c *Conn) RemoteAddr() string { return c.stream.RemoteAddr().String() }

// Stream implements [transport.Multiplexer]: it returns a stream of the connection's bytes. The error
// is always nil, also after Close: the calls on the stream fail then.
func (c *Conn) Stream() (transport.Stream, error) { return c.stream.public(), nil }

// PrepareSession does nothing and returns nil: a session needs no descriptors or shared memory.
func (c *Conn) PrepareSession(transport.SessionConfig) error { return nil }

// Multiplex implements [transport.Multiplexer]: it returns a session of streams over the connection.
// The session owns the connection and closes it. The error means that cfg is invalid; the connection
// is then unchanged.
func (c *Conn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	return mux.New(c.stream, cfg)
}

// NewSession returns a session of streams over c, from the next byte on in both directions, with the
// protocol of yamux. c is any connection that carries ordered bytes, such as one of TLS, of SSH or
// of net.Pipe, and whose Close and deadlines end blocked calls. Both ends of c must call NewSession,
// with cfg.Client set at one of them. The session owns c and closes it; NewSession itself reads and
// writes nothing. It has no streams for bulk data of their own: see [transport.Session.OpenBulk].
//
// cfg.Window bounds the bytes of one stream that the peer has sent and this end has not read: 0
// stands for 4 MiB, and other values below 256 KiB for 256 KiB. After an error, which means that a
// limit of cfg is negative or exceeds math.MaxInt32, the caller keeps c.
func NewSession(c net.Conn, cfg transport.SessionConfig) (transport.Session, error) {
	return mux.New(newStream(c), cfg)
}

// stream implements transport.Stream on a net.Conn. Its methods may be called concurrently.
type stream struct {
	net.Conn
	closeWrite       func() error // nil if the writing half cannot be closed
	socket           wait.Socket  // the net.Conn, if it is a socket itself and no wrapper of one
	try              *wait.Writer // of socket; nil if bytes cannot be written without blocking
	closed, finished atomic.Bool  // Close was called; CloseWrite or Close was called
}

// newStream returns a stream over c. If c itself is a *net.TCPConn or a *net.UnixConn, the stream
// may write to the socket directly. If c only embeds one, the stream writes with c.Write.
func newStream(c net.Conn) *stream {
	s := &stream{Conn: c}
	switch c := c.(type) {
	case *net.TCPConn:
		s.socket = c
	case *net.UnixConn:
		s.socket = c
	}
	if s.socket != nil {
		s.try, _ = wait.NewWriter(s.socket) // fails if the socket is closed, as later calls do
	}
	return s
}

// public returns s in the form for users: if its net.Conn is a socket, it is also a
// transport.Gatherer.
func (s *stream) public() transport.Stream {
	if s.socket != nil {
		return socketStream{s}
	}
	return s
}

// writer returns the writer for frames: the socket, which can write several buffers at once, or else
// only the Write of the net.Conn. Package net would otherwise write to a socket that the net.Conn
// embeds, not to the net.Conn.
func (s *stream) writer() plainWriter {
	if s.socket != nil {
		return s.socket
	}
	return onlyWriter{s.Conn}
}

type plainWriter interface{ Write(p []byte) (int, error) }

// onlyWriter hides all methods of a connection but Write.
type onlyWriter struct{ plainWriter }

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if err != nil && s.closed.Load() {
		err = transport.ErrClosed
	}
	return n, err
}

func (s *stream) Write(p []byte) (int, error) {
	if s.finished.Load() {
		return 0, transport.ErrClosed
	}
	n, err := s.Conn.Write(p)
	return n, s.writeError(err)
}

// writeError returns ErrClosed if CloseWrite or Close was called, and otherwise err, the error of a
// write. It returns nil if err is nil.
func (s *stream) writeError(err error) error {
	if err != nil && s.finished.Load() {
		return transport.ErrClosed
	}
	return err
}

// TryWrite implements transport.Stream. It writes nothing if the net.Conn is not a socket.
func (s *stream) TryWrite(pieces ...[]byte) (int, error) {
	if s.finished.Load() {
		return 0, transport.ErrClosed
	}
	if s.try == nil {
		return 0, nil
	}
	n, err := s.try.TryWrite(pieces...)
	return n, s.writeError(err)
}

// CloseWrite implements transport.Stream. If the net.Conn has no writing half of its own, CloseWrite
// only makes later writes fail, and returns nil.
func (s *stream) CloseWrite() error {
	s.finished.Store(true)
	if s.closeWrite == nil {
		return nil
	}
	_ = s.Conn.SetWriteDeadline(past) // shutdown of a Unix socket does not wake a blocked Write
	return s.closeWrite()
}

// past is a deadline that ends a write that is blocked.
var past = time.Unix(1, 0)

func (s *stream) Close() error {
	s.finished.Store(true)
	if s.closed.Swap(true) {
		return nil
	}
	return s.Conn.Close()
}

// socketStream is a stream over a socket.
type socketStream struct{ *stream }

var _ transport.Gatherer = socketStream{}

// WriteBuffers implements transport.Gatherer with writev. The error is ErrClosed after CloseWrite or
// Close, and otherwise that of the socket.
func (s socketStream) WriteBuffers(pieces *net.Buffers) (int64, error) {
	n, err := pieces.WriteTo(s.socket)
	return n, s.writeError(err)
}
