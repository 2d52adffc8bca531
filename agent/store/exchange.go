package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// clientConn is a connection with what has come on it.
type clientConn struct {
	net.Conn
	from *decoder
}

// expect reads one byte that must be this one.
func (d *decoder) expect(want byte) error {
	got, err := d.r.ReadByte()
	if err == nil && got != want {
		return fmt.Errorf("%w: an answer of %d instead of %d", ErrProtocol, got, want)
	}
	return err
}

// ask sends a request on a connection of its own and reads the answer.
func (c *Client) ask(ctx context.Context, request []byte, answer func(*decoder) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	conn, err := c.take(ctx)
	if err != nil {
		return c.cause(ctx, err)
	}
	err = conn.exchange(ctx, request, answer)
	if err != nil {
		c.drop(conn)
		return c.cause(ctx, err)
	}
	c.release(conn)
	return nil
}

// past is a deadline that ends a blocked call at once.
var past = time.Unix(1, 0)

// exchange fails if ctx ends, and also where it ended just when all was done: the
// connection cannot be used any more.
func (c *clientConn) exchange(ctx context.Context, request []byte, answer func(*decoder) error) error {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(past) })
	_, err := c.Write(request)
	if err == nil {
		err = answer(c.from)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	return err
}

// cause says why a call failed, by what has happened besides.
func (c *Client) cause(ctx context.Context, err error) error {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	switch {
	case closed:
		return ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return context.DeadlineExceeded // of ctx; the dialer's clock was ahead
	}
	return lost(err)
}

// lost tells connections that the peer has ended from other errors.
func lost(err error) error {
	for _, sign := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, sign) {
			return ErrDisconnected
		}
	}
	return err
}

// take returns a connection that nobody else uses.
func (c *Client) take(ctx context.Context) (*clientConn, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	if last := len(c.idle) - 1; last >= 0 {
		conn := c.idle[last]
		c.idle = c.idle[:last]
		c.busy[conn] = struct{}{}
		c.mu.Unlock()
		return conn, nil
	}
	c.mu.Unlock()
	return c.dial(ctx)
}

// dial makes a busy connection.
func (c *Client) dial(ctx context.Context) (*clientConn, error) {
	dialer := net.Dialer{KeepAliveConfig: keepAlive}
	raw, err := dialer.DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return nil, err
	}
	conn := &clientConn{Conn: raw, from: newDecoder(raw, c.limits)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		raw.Close()
		return nil, ErrClosed
	}
	c.busy[conn] = struct{}{}
	return conn, nil
}

// release keeps a connection for later, if there are not too many.
func (c *Client) release(conn *clientConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, conn)
	if c.closed || len(c.idle) == maxIdle {
		conn.Close()
		return
	}
	c.idle = append(c.idle, conn)
}

func (c *Client) drop(conn *clientConn) {
	conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, conn)
}
