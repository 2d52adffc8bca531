package uv

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// readAhead is the size of the read buffer: a header and a small body, or
// several, come with one system call. Larger bodies bypass it.
const readAhead = 8 << 10

type conn struct {
	tcp           *net.TCPConn
	spin          time.Duration // of a session
	local, remote string
	closed        atomic.Bool   // Close was called
	finished      atomic.Bool   // CloseWrite or Close was called
	begun         bool          // the first header is one
	src           *bufio.Reader // nil once the framing was given up
	frames        *frame.Reader // of src
	batch         batch         // of the writing goroutine
}

func newConn(tcp *net.TCPConn, spin time.Duration) *conn { return newConnFrom(tcp, tcp, spin) }

// newConnFrom reads frames from bytes, which come through tcp.
func newConnFrom(tcp *net.TCPConn, bytes io.Reader, spin time.Duration) *conn {
	unpace(tcp)
	src := bufio.NewReaderSize(bytes, readAhead)
	return &conn{
		tcp:    tcp,
		spin:   spin,
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
	step.Here()
	return c.writeError(c.batch.write(c.tcp, frames))
}

func (c *conn) NextFrame() (int64, error) {
	if c.closed.Load() {
		return 0, transport.ErrClosed
	}
	if c.src == nil {
		return 0, ErrHandedOver
	}
	if !c.begun {
		if err := c.begin(); err != nil {
			return 0, c.readError(err)
		}
	}
	n, err := c.frames.Next()
	step.Here()
	return n, c.readError(err)
}

// begin looks at the first header before it counts as one: a peer that speaks
// TLS would pass for one that announces a frame of petabytes. An early end is
// left to the reading of the header.
func (c *conn) begin() error {
	header, err := c.src.Peek(frame.HeaderSize)
	if looksLikeTLS(header) {
		return fmt.Errorf("%w: %w: the first bytes look like TLS (one end is configured with TLS, this one is not?)",
			transport.ErrFrame, ErrTLSMismatch)
	}
	if err != nil && err != io.EOF {
		return err
	}
	c.begun = err == nil
	return nil
}

func (c *conn) ReadBody(dst ...[]byte) error {
	if c.closed.Load() {
		return transport.ErrClosed
	}
	if c.src == nil {
		return ErrHandedOver
	}
	step.Here()
	return c.readError(c.frames.Body(dst...))
}

// readError hides how the end that this process caused looks in the kernel.
func (c *conn) readError(err error) error {
	if err != nil && c.closed.Load() {
		return transport.ErrClosed
	}
	return err
}

// writeError does so for the direction that CloseWrite ends.
func (c *conn) writeError(err error) error {
	if err != nil && c.finished.Load() {
		return transport.ErrClosed
	}
	return err
}

// CloseWrite makes the kernel refuse more bytes, which ends a blocked
// WriteFrames too.
func (c *conn) CloseWrite() error {
	c.finished.Store(true)
	step.Here()
	return c.tcp.CloseWrite()
}

func (c *conn) Close() error {
	c.finished.Store(true)
	if c.closed.Swap(true) {
		return nil
	}
	step.Here()
	return c.tcp.Close()
}

func (c *conn) LocalAddr() string  { return c.local }
func (c *conn) RemoteAddr() string { return c.remote }
