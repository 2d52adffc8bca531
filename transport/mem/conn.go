package mem

import (
	"errors"
	"os"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// conn is one end of a connection. Frames travel as on TCP, headers and all,
// so that the bound of a ring holds for empty ones too.
type conn struct {
	local, remote string
	out           *ring
	in            *ring
	frames        *frame.Reader // reads from in
	header        []byte        // scratch of the writing goroutine
}

// pair returns the two ends of a new connection.
func pair(dialAddr, acceptAddr string, buffer int) (dial, accept *conn) {
	there, back := newRing(buffer), newRing(buffer)
	return newConn(dialAddr, acceptAddr, there, back), newConn(acceptAddr, dialAddr, back, there)
}

func newConn(local, remote string, out, in *ring) *conn {
	return &conn{local: local, remote: remote, out: out, in: in, frames: frame.NewReader(in)}
}

func (c *conn) WriteFrames(frames ...transport.Frame) error {
	for _, f := range frames {
		if err := c.writeFrame(f); err != nil {
			return c.writeError(err)
		}
	}
	return nil
}

func (c *conn) writeFrame(f transport.Frame) error {
	c.header = frame.AppendHeader(c.header[:0], frame.Size(f))
	if _, err := c.out.Write(c.header); err != nil {
		return err
	}
	for _, part := range f {
		if _, err := c.out.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// writeError names the peer where it is to blame.
func (c *conn) writeError(err error) error {
	if err == nil || errors.Is(err, transport.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return &Error{Op: "write", Addr: c.remote, Err: err}
}

func (c *conn) NextFrame() (int64, error) { return c.frames.Next() }

func (c *conn) ReadBody(dst ...[]byte) error { return c.frames.Body(dst...) }

func (c *conn) CloseWrite() error {
	c.out.finish()
	return nil
}

func (c *conn) Close() error {
	c.out.finish()
	c.in.abandon()
	return nil
}

func (c *conn) LocalAddr() string  { return c.local }
func (c *conn) RemoteAddr() string { return c.remote }
