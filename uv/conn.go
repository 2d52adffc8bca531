package uv

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// readAhead is the size of the read buffer: a header and a small body, or several frames, are read
// with one system call. Larger bodies bypass it.
const readAhead = 8 << 10

// conn is one end of a connection over plain TCP. It implements transport.Conn and
// transport.Multiplexer.
type conn struct {
	tcp                *net.TCPConn
	spin               time.Duration // of a session that the connection becomes
	local, remote      string
	closed             atomic.Bool // Close was called
	finished           atomic.Bool // CloseWrite or Close was called
	firstHeaderChecked bool
	src                *bufio.Reader // nil after Stream or Multiplex
	frames             *frame.Reader // of src
	batch              batch         // of the writing goroutine
}

// newConn returns a connection over tcp, which the connection owns. It reads from bytes: tcp, or a
// reader of tcp that decrypts. spin is that of a session which the connection becomes.
func newConn(tcp *net.TCPConn, bytes io.Reader, spin time.Duration) *conn {
	disablePacing(tcp)
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
	failpoint.Here()
	return c.writeError(c.batch.write(c.tcp, frames))
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
			return 0, c.readError(fmt.Errorf("%w: %w: the first bytes look like TLS (one end is configured with TLS, this one is not?)",
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

// CloseWrite implements transport.Conn. A blocked WriteFrames returns ErrClosed. The error is that
// of shutdown(2).
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

const (
	// copyLimit is the size, headers included, up to which a batch is copied to one buffer. That
	// costs less than a write of several buffers.
	copyLimit = 4 << 10

	// keepParts is the number of parts, and of frames, for which a batch keeps its memory. Larger
	// batches are rare enough to allocate.
	keepParts = 1024
)

// batch encodes the frames of one call of WriteFrames and writes them with as few system calls as
// it can. It keeps its own memory between calls, so that writing small frames allocates nothing,
// but none of the caller's. One goroutine at a time uses it.
type batch struct {
	buf     []byte   // a small batch in one piece, or the headers of a large one
	parts   [][]byte // buffers to write, in order
	pending net.Buffers
}

// write writes frames to w, with writev if they are large and w is a *net.TCPConn. It returns w's
// error, and keeps no reference to the memory of frames.
func (b *batch) write(w io.Writer, frames []transport.Frame) error {
	total := int64(len(frames)) * frame.HeaderSize
	for _, f := range frames {
		total += frame.Size(f)
	}
	b.buf = b.buf[:0]
	if total > copyLimit {
		return b.writeParts(w, frames)
	}
	for _, f := range frames {
		b.buf = frame.AppendHeader(b.buf, frame.Size(f))
		for _, p := range f {
			b.buf = append(b.buf, p...)
		}
	}
	if len(b.buf) == 0 {
		return nil
	}
	_, err := w.Write(b.buf)
	return err
}

// writeParts writes headers and the memory of frames to w without copying it, and leaves out empty
// parts. The slices of frames stay unchanged: writing consumes pending and the elements of parts.
// Afterwards it drops the references to the caller's memory, and memory of b itself that has become
// too large to keep.
func (b *batch) writeParts(w io.Writer, frames []transport.Frame) error {
	for _, f := range frames { // all headers first, because buf may move when it grows
		b.buf = frame.AppendHeader(b.buf, frame.Size(f))
	}
	headers := b.buf
	for _, f := range frames {
		b.parts = append(b.parts, headers[:frame.HeaderSize])
		headers = headers[frame.HeaderSize:]
		for _, p := range f {
			if len(p) > 0 {
				b.parts = append(b.parts, p)
			}
		}
	}
	b.pending = b.parts
	_, err := b.pending.WriteTo(w)
	clear(b.parts)
	b.parts, b.pending = b.parts[:0], nil
	if cap(b.parts) > keepParts {
		b.parts = nil
	}
	if cap(b.buf) > keepParts*frame.HeaderSize {
		b.buf = nil
	}
	return err
}
