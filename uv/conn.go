package uv

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// readAhead is the size of the read buffer: a header and a small body, or several frames, are read
// with one system call. Larger bodies bypass it.
const readAhead = 8 << 10

// conn is one end of a connection over plain TCP. It implements transport.Conn and
// transport.Multiplexer.
type conn struct {
	tcp                *net.TCPConn
	waits              wait.Config // of a session that the connection becomes
	local, remote      string
	closed             atomic.Bool // Close was called
	finished           atomic.Bool // CloseWrite or Close was called
	firstHeaderChecked bool
	src                *bufio.Reader                // nil after Stream or Multiplex
	frames             *frame.Reader                // of src
	batch              frame.Batch[transport.Frame] // of the writing goroutine
}

// newConn returns a connection that owns tcp. The connection reads frames from bytes, which is tcp
// itself or a reader that decrypts the bytes of tcp. waits determines how the reader of a
// session waits, if Multiplex makes the connection a session. newConn also
// disables pacing on tcp if both ends are on this machine.
func newConn(tcp *net.TCPConn, bytes io.Reader, waits wait.Config) *conn {
	disablePacing(tcp)
	src := bufio.NewReaderSize(bytes, readAhead)
	return &conn{
		tcp:    tcp,
		waits:  waits,
		local:  tcp.LocalAddr().String(),
		remote: tcp.RemoteAddr().String(),
		src:    src,
		frames: frame.NewReader(src),
	}
}

func (c *conn) WriteFrames(frames ...transport.Frame) error {
	if c.finished.Load() {
		return transport.ErrClosed
	}
	if c.src == nil {
		return ErrHandedOver
	}
	failpoint.Here()
	return c.writeError(c.batch.Write(c.tcp, frames))
}

func (c *conn) NextFrame() (int64, error) {
	if c.closed.Load() {
		return 0, transport.ErrClosed
	}
	if c.src == nil {
		return 0, ErrHandedOver
	}
	if !c.firstHeaderChecked {
		header, err := c.src.Peek(frame.HeaderSize)
		if looksLikeTLS(header) { // as a header it would announce a frame of petabytes
			return 0, c.readError(fmt.Errorf("%w: %w: the first bytes of the peer look like TLS",
				transport.ErrFrame, ErrTLSMismatch))
		}
		if err != nil && err != io.EOF { // frames reports an end within the header
			return 0, c.readError(err)
		}
		c.firstHeaderChecked = err == nil
	}
	n, err := c.frames.Next()
	failpoint.Here()
	return n, c.readError(err)
}

func (c *conn) ReadBody(dst ...[]byte) error {
	if c.closed.Load() {
		return transport.ErrClosed
	}
	if c.src == nil {
		return ErrHandedOver
	}
	failpoint.Here()
	return c.readError(c.frames.Body(dst...))
}

// readError returns ErrClosed if Close was called, and otherwise err, the error of a read from the
// socket: Close makes reads fail. It returns nil if err is nil.
func (c *conn) readError(err error) error {
	if err != nil && c.closed.Load() {
		return transport.ErrClosed
	}
	return err
}

// writeError returns ErrClosed if CloseWrite or Close was called, and otherwise err, the error of a
// write to the socket: both calls make writes fail. It returns nil if err is nil.
func (c *conn) writeError(err error) error {
	if err != nil && c.finished.Load() {
		return transport.ErrClosed
	}
	return err
}

// CloseWrite closes the writing half of the socket: the peer reads the bytes that were written,
// then io.EOF. Reading goes on. WriteFrames returns ErrClosed from then on, also a call that is
// blocked. The error is that of shutdown(2), or matches ErrClosed after Close.
func (c *conn) CloseWrite() error {
	c.finished.Store(true)
	failpoint.Here()
	return c.tcp.CloseWrite()
}

func (c *conn) Close() error {
	c.finished.Store(true)
	if c.closed.Swap(true) {
		return nil
	}
	failpoint.Here()
	return c.tcp.Close()
}

func (c *conn) LocalAddr() string  { return c.local }
func (c *conn) RemoteAddr() string { return c.remote }
