package framed

import (
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// streamConn implements transport.Conn on a stream of a session, with the framing of package frame.
type streamConn struct {
	stream   transport.Stream
	frames   *frame.Reader
	buf      []byte // used by the writing goroutine
	closed   atomic.Bool
	finished atomic.Bool // closed, or CloseWrite was called
}

// OverStream returns a connection whose frames are sent over s, a stream of a session. The
// connection owns s: nothing else may use s, and closing the connection closes s.
func OverStream(s transport.Stream) transport.Conn {
	return &streamConn{stream: s, frames: frame.NewReader(s)}
}

// WriteFrames implements [transport.Conn]: it writes the frames, one after the other, with their
// lengths. It copies them into one write of the stream, since channels send only short frames over
// a session, and keeps no reference to them. After Close or CloseWrite it returns
// transport.ErrClosed. Otherwise the error is that of the stream.
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
	return c.wrapError(err)
}

func (c *streamConn) NextFrame() (int64, error) {
	n, err := c.frames.Next()
	return n, c.wrapError(err)
}

func (c *streamConn) ReadBody(dst ...[]byte) error { return c.wrapError(c.frames.Body(dst...)) }

// wrapError returns transport.ErrClosed if err is not nil and Close was called on this connection.
// Otherwise it returns err, which may be nil.
func (c *streamConn) wrapError(err error) error {
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
