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

// conn is one end of a link: a transport.Conn that applies the rules of the link to the wrapped
// connection inner.
type conn struct {
	inner  transport.Conn
	link   *Link
	end    End
	closed chan struct{}
	shut   func() error

	// Owned by the reading goroutine.
	frames int        // whose headers were read
	body   *frameInfo // the last of them
	read   int64      // bytes read of it
}

func newConn(l *Link, end End, inner transport.Conn) *conn {
	c := &conn{inner: inner, link: l, end: end, closed: make(chan struct{}), body: &frameInfo{}}
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
		return 0, fmt.Errorf("%w: NextFrame called with %d bytes of the last frame unread", transport.ErrFrame, left)
	}
	at := position{frame: c.frames}
	size, err := c.inner.NextFrame()
	if err != nil {
		return 0, c.readFailed(err, at, never)
	}
	body := c.link.receive(1-c.end, size)
	if err := c.waitUntil(body.arrives, at, never); err != nil {
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
	to := position{frame: c.frames - 1, offset: c.read + want}
	if err := c.waitUntil(time.Time{}, to, never); err != nil {
		return err
	}
	if to.offset > c.body.bodySent {
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

// never returns the zero time, as a deadline function for waitUntil without a deadline.
func never() time.Time { return time.Time{} }

// waitUntil blocks until the time at has come and the link does not hold back position p of what
// the peer's end writes, and then returns nil. It returns a *ResetError if the link is cut while it
// holds p back, transport.ErrClosed if c is closed, and os.ErrDeadlineExceeded after the time that
// deadline returns. It calls deadline repeatedly; the zero time means no deadline.
func (c *conn) waitUntil(at time.Time, p position, deadline func() time.Time) error {
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
		c.waitForChange(changed, by)
	}
}

func earlier(at, by time.Time) time.Time {
	if by.IsZero() || at.Before(by) {
		return at
	}
	return by
}

// waitForChange blocks until the channel changed is closed, c is closed, or the time until has
// come. If until is zero, it has no time limit.
func (c *conn) waitForChange(changed <-chan struct{}, until time.Time) {
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

// writeFailed returns the error that a write of c reports when the write of the wrapped connection
// has failed with err. If the link is half-open and c is open, this is a *ResetError if the link
// was cut and otherwise nil, because a half-open link must not show that the peer's end was closed.
// In all other cases it is the error of broken.
func (c *conn) writeFailed(err error) error {
	err = c.broken(err)
	if errors.Is(err, transport.ErrClosed) || !c.link.holdsBack(c.end) {
		return err
	}
	return c.link.reset()
}

// readFailed returns the error that a read of c reports when the read of the wrapped connection has
// failed with err. Before that it blocks until the end of the peer's stream would arrive by the
// rules of the link. p is the position of the read, and deadline is that of waitUntil. The error is
// one of waitUntil or of broken.
func (c *conn) readFailed(err error, p position, deadline func() time.Time) error {
	if awaited := c.waitUntil(c.link.end(1-c.end), p, deadline); awaited != nil {
		return awaited
	}
	return c.broken(err)
}

// broken returns the error that c reports when the wrapped connection has failed with err:
// transport.ErrClosed if c is closed, else a *ResetError if the link was cut, and otherwise err.
func (c *conn) broken(err error) error {
	if c.isClosed() {
		return transport.ErrClosed
	}
	if reset := c.link.reset(); reset != nil {
		return reset
	}
	return err
}
