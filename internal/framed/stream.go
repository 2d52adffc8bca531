package framed

import (
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// streamConn is a stream with the framing of package frame.
type streamConn struct {
	stream   transport.Stream
	frames   *frame.Reader
	buf      []byte // of the writing goroutine
	closed   atomic.Bool
	finished atomic.Bool // closed, or CloseWrite was called
}

// Over returns the connection of a channel that has the stream s of a session to
// itself, and closes it.
func Over(s transport.Stream) transport.Conn {
	return &streamConn{stream: s, frames: frame.NewReader(s)}
}

// WriteFrames joins the frames: channels in a session only say small things.
func (c *streamConn) WriteFrames(frames ...transport.Frame) error {
	if c.finished.Load() {
		return transport.ErrClosed
	}
	c.buf = c.buf[:0]
	for _, f := range frames {
		c.buf = frame.AppendHeader(c.buf, frame.Size(f))
		for _, part := range f {
			c.buf = append(c.buf, part...)
		}
	}
	_, err := c.stream.Write(c.buf)
	return c.explain(err)
}

func (c *streamConn) NextFrame() (int64, error) {
	n, err := c.frames.Next()
	return n, c.explain(err)
}

func (c *streamConn) ReadBody(dst ...[]byte) error { return c.explain(c.frames.Body(dst...)) }

// explain hides how the end that this process caused looks to the session.
func (c *streamConn) explain(err error) error {
	if err != nil && c.closed.Load() {
		return transport.ErrClosed
	}
	return err
}

func (c *streamConn) CloseWrite() error {
	c.finished.Store(true)
	return c.stream.CloseWrite()
}

func (c *streamConn) Close() error {
	c.finished.Store(true)
	if c.closed.Swap(true) {
		return nil
	}
	return c.stream.Close()
}

func (c *streamConn) LocalAddr() string  { return c.stream.LocalAddr().String() }
func (c *streamConn) RemoteAddr() string { return c.stream.RemoteAddr().String() }
