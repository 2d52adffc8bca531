package simnet

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// conn is one end of a link.
type conn struct {
	inner  transport.Conn
	link   *Link
	end    End
	closed chan struct{}
	shut   func() error

	// Of the reading goroutine.
	frames int     // announced so far
	body   *parcel // the last of them
	read   int64   // bytes of it that were read
}

func newConn(l *Link, end End, inner transport.Conn) *conn {
	c := &conn{inner: inner, link: l, end: end, closed: make(chan struct{}), body: &parcel{}}
	c.shut = sync.OnceValue(func() error {
		l.finish(end)
		close(c.closed)
		return inner.Close()
	})
	return c
}

func (c *conn) WriteFrames(frames ...transport.Frame) error {
	if c.isClosed() {
		return transport.ErrClosed
	}
	pass, thenEnd, err := c.link.admit(c.end, frames)
	if err != nil {
		return err
	}
	if err := c.inner.WriteFrames(pass...); err != nil {
		return c.writeFailed(err)
	}
	if !thenEnd {
		return nil
	}
	c.inner.CloseWrite()
	if len(pass) == len(frames) && frame.Size(pass[len(pass)-1]) == frame.Size(frames[len(frames)-1]) {
		return nil
	}
	return c.link.reset()
}

func (c *conn) NextFrame() (int64, error) {
	if left := c.body.size - c.read; left > 0 {
		return 0, fmt.Errorf("%w: next frame asked for with %d bytes of the last one unread", transport.ErrFrame, left)
	}
	at := place{frame: c.frames}
	size, err := c.inner.NextFrame()
	if err != nil {
		return 0, c.readFailed(err, at, never)
	}
	body := c.link.receive(1-c.end, size)
	if err := c.await(body.arrives, at, never); err != nil {
		return 0, err
	}
	c.frames++
	c.body, c.read = body, 0
	return body.size, nil
}

func (c *conn) ReadBody(dst ...[]byte) error {
	if c.isClosed() {
		return transport.ErrClosed
	}
	want := frame.Size(dst)
	if left := c.body.size - c.read; want > left {
		return fmt.Errorf("%w: %d bytes asked for with %d left of the frame", transport.ErrFrame, want, left)
	}
	if want == 0 {
		return nil
	}
	to := place{frame: c.frames - 1, offset: c.read + want}
	if err := c.await(time.Time{}, to, never); err != nil {
		return err
	}
	if to.offset > c.body.there {
		return &ResetError{Link: c.link.number}
	}
	if err := c.inner.ReadBody(dst...); err != nil {
		return c.readFailed(err, to, never)
	}
	c.read = to.offset
	return nil
}

func (c *conn) CloseWrite() error {
	c.link.finish(c.end)
	return c.inner.CloseWrite()
}

func (c *conn) Close() error { return c.shut() }

func (c *conn) LocalAddr() string  { return c.inner.LocalAddr() }
func (c *conn) RemoteAddr() string { return c.inner.RemoteAddr() }

func (c *conn) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// never is the deadline of calls that have none.
func never() time.Time { return time.Time{} }

// await returns when it is time and the peer's bytes up to a place are not
// held back, or an error when that cannot be or the deadline has passed.
func (c *conn) await(at time.Time, p place, deadline func() time.Time) error {
	for {
		changed, held := c.link.held(1-c.end, p)
		now, by := time.Now(), deadline()
		switch late := !by.IsZero() && !now.Before(by); {
		case c.isClosed():
			return transport.ErrClosed
		case late:
			return os.ErrDeadlineExceeded
		case now.Before(at):
			by = earlier(at, by)
		case !held:
			return nil
		default:
			if err := c.link.reset(); err != nil {
				return err
			}
		}
		c.sleep(changed, by)
	}
}

func earlier(at, by time.Time) time.Time {
	if by.IsZero() || at.Before(by) {
		return at
	}
	return by
}

// sleep returns when something has changed or, unless it is zero, at a time.
func (c *conn) sleep(changed <-chan struct{}, until time.Time) {
	var expired <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-expired:
	case <-changed:
	case <-c.closed:
	}
}

// writeFailed hides a peer that went away behind a half-open link: nothing
// tells this end.
func (c *conn) writeFailed(err error) error {
	err = c.broken(err)
	if errors.Is(err, transport.ErrClosed) || !c.link.swallows(c.end) {
		return err
	}
	return c.link.reset()
}

// readFailed lets an end of the stream arrive like any byte at that place.
func (c *conn) readFailed(err error, p place, deadline func() time.Time) error {
	if awaited := c.await(c.link.end(1-c.end), p, deadline); awaited != nil {
		return awaited
	}
	return c.broken(err)
}

// broken turns what a cut did to the wrapped connection into a reset.
func (c *conn) broken(err error) error {
	if c.isClosed() {
		return transport.ErrClosed
	}
	if reset := c.link.reset(); reset != nil {
		return reset
	}
	return err
}
