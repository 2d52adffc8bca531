// Package thirdparty is a transport as an application writes one: over TCP, with none of the optional
// interfaces of package transport.
package thirdparty

import (
	"context"
	"io"
	"net"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/netconn"
)

// Transport carries frames over TCP on the loopback interface.
type Transport struct {
	// NewConn returns a connection that owns c. If it is nil, connections have only the methods
	// of [transport.Conn].
	NewConn func(c net.Conn) transport.Conn
}

const descriptor = "thirdparty:loopback"

func (Transport) Viable() error                     { return nil }
func (Transport) DomainDescriptor() string          { return descriptor }
func (Transport) CanCommunicate(remote string) bool { return remote == descriptor }
func (Transport) IsLocal(addr string) bool          { return true }

// Listen implements [transport.Transport]. addr is a host and a port. The error is that of the
// socket or of ctx.
func (t Transport) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return netconn.NewListener(l, t.conn), nil
}

// Dial implements [transport.Transport]. The error is that of the socket or of ctx.
func (t Transport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	return t.conn(c), nil
}

// conn returns a connection that owns c: the result of t.NewConn, or one without optional
// interfaces if t.NewConn is nil.
func (t Transport) conn(c net.Conn) transport.Conn {
	if t.NewConn != nil {
		return t.NewConn(c)
	}
	return &conn{socket: c.(*net.TCPConn), frames: frame.NewReader(c)}
}

// conn implements transport.Conn, and nothing else, with the framing of package frame.
type conn struct {
	socket   *net.TCPConn
	frames   *frame.Reader
	header   []byte
	closed   atomic.Bool // Close was called
	finished atomic.Bool // CloseWrite or Close was called
}

func (c *conn) WriteFrames(frames ...transport.Frame) error {
	for _, f := range frames {
		if c.finished.Load() {
			return transport.ErrClosed
		}
		c.header = frame.AppendHeader(c.header[:0], frame.Size(f))
		pieces := append(net.Buffers{c.header}, f...)
		if _, err := pieces.WriteTo(c.socket); err != nil {
			return c.cause(err, &c.finished)
		}
	}
	return nil
}

func (c *conn) NextFrame() (int64, error) {
	n, err := c.frames.Next()
	return n, c.cause(err, &c.closed)
}

func (c *conn) ReadBody(dst ...[]byte) error {
	return c.cause(c.frames.Body(dst...), &c.closed)
}

// cause returns ErrClosed if err is not nil and by is true, and otherwise err.
func (c *conn) cause(err error, by *atomic.Bool) error {
	if err != nil && by.Load() {
		return transport.ErrClosed
	}
	return err
}

func (c *conn) CloseWrite() error {
	c.finished.Store(true)
	return c.socket.CloseWrite()
}

func (c *conn) Close() error {
	c.finished.Store(true)
	if c.closed.Swap(true) {
		return nil
	}
	return c.socket.Close()
}

func (c *conn) LocalAddr() string  { return c.socket.LocalAddr().String() }
func (c *conn) RemoteAddr() string { return c.socket.RemoteAddr().String() }

// DialRaw connects to addr and returns the socket, without framing.
func DialRaw(addr string) (io.WriteCloser, error) { return net.Dial("tcp", addr) }
