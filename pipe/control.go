package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// goodbyeWait bounds how long the end of a pipe waits for the peer's reason,
// which travels on a connection of its own and comes at about the same time.
const goodbyeWait = time.Second

// control is the connection that two ends of ours have besides TensorPipe's
// own. It carries what that protocol has no words for: that a message has been
// read, and why a pipe is closed. Without it (a C++ peer) all methods do
// nothing.
type control struct {
	pipe *compat
	link
	ended chan struct{} // closed when the peer says no more

	wake  chan struct{} // has a token when there is something to say
	wrote chan struct{} // closed when nothing more will be said

	confirmer

	byeMu  sync.Mutex
	bye    *wire.Control // this end's goodbye, said last
	parted bool          // the peer said goodbye
	reason string        // and why
}

func (c *control) init(p *compat, conn transport.Conn) {
	c.pipe = p
	c.link = link{conn, "control"}
	c.ended = make(chan struct{})
	c.wake = make(chan struct{}, 1)
	c.wrote = make(chan struct{})
	c.confirmer.init(c.poke, p.account)
	if conn == nil {
		close(c.ended)
		close(c.wrote)
	}
}

// abandon stands in for the loops of a pipe that is not going to start.
func (c *control) abandon() {
	if c.exists() {
		close(c.ended)
		close(c.wrote)
	}
}

func (c *control) exists() bool { return c.Conn != nil }

// run takes what the peer says.
func (c *control) run() {
	if !c.exists() {
		return
	}
	c.listen()
	c.goodbye(cmp.Or(c.pipe.Err(), ErrClosed)) // a peer that is done need not wait for more
	close(c.ended)
	c.NextFrame() // the end: a connection closed with bytes unread, of TLS perhaps, takes back what it was to say
}

// listen returns when the peer says no more.
func (c *control) listen() {
	var buf []byte
	for {
		frame, err := readFrame(c, buf, wire.MaxControl, nil)
		if err == nil {
			buf = frame
			err = c.take(frame)
		}
		if err = classify(err); errors.Is(err, ErrProtocol) {
			c.pipe.fail(c.pipe.errorFor("connection", c.name, err))
		}
		if err != nil {
			return // what it means shows at the other connections
		}
	}
}

func (c *control) take(frame []byte) error {
	m, err := wire.DecodeControl(frame)
	if err != nil {
		return protocolError("%w", err)
	}
	switch m.Kind {
	case wire.WantRead:
		return c.want(m.Number)
	case wire.HaveRead:
		c.confirm(m.Number)
	case wire.Goodbye:
		c.byeMu.Lock()
		defer c.byeMu.Unlock()
		c.parted, c.reason = true, m.Reason
		return io.EOF
	}
	return nil
}

// poke wakes the writer.
func (c *control) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// goodbye tells the peer why the pipe ends, behind what is still to be said.
// Only the first one counts.
func (c *control) goodbye(cause error) {
	if !c.exists() {
		return
	}
	c.tellAll()
	c.byeMu.Lock()
	if c.bye == nil {
		c.bye = &wire.Control{Kind: wire.Goodbye, Reason: goodbyeText(cause)}
	}
	c.byeMu.Unlock()
	c.poke()
}

// awaitGoodbye waits until the goodbye has left, or for as long as it is worth.
func (c *control) awaitGoodbye() {
	t := time.NewTimer(goodbyeWait)
	defer t.Stop()
	select {
	case <-c.wrote:
	case <-t.C:
	}
}

// write says what there is to say, until the goodbye or the end of the
// connection.
func (c *control) write() {
	if !c.exists() {
		return
	}
	defer close(c.wrote)
	var buf []byte
	for {
		m := c.next()
		buf = m.Append(buf[:0])
		if c.WriteFrames(transport.Frame{buf}) != nil {
			return
		}
		if m.Kind == wire.Goodbye {
			c.CloseWrite()
			return
		}
	}
}

// next waits for something to say. The goodbye always comes at last.
func (c *control) next() wire.Control {
	for {
		if m, ok := c.pop(); ok {
			return m
		}
		<-c.wake
	}
}

// pop holds byeMu from the start: a goodbye that came between would overtake what it
// is to go behind.
func (c *control) pop() (wire.Control, bool) {
	c.byeMu.Lock()
	defer c.byeMu.Unlock()
	if n, ok := c.toTell(); ok {
		return wire.Control{Kind: wire.HaveRead, Number: n}, true
	}
	if n, ok := c.toAsk(); ok {
		return wire.Control{Kind: wire.WantRead, Number: n}, true
	}
	if c.bye != nil {
		return *c.bye, true
	}
	return wire.Control{}, false
}

// goodbyeText is what the peer needs to know of a cause: nothing if it is just
// that this end is done, and no names that mean something here only.
func goodbyeText(cause error) string {
	if e, ok := cause.(*Error); ok {
		cause = e.Err
	}
	if cause == ErrClosed {
		return ""
	}
	return strings.ToValidUTF8(cause.Error(), "?")
}

// explain tells an end that the peer announced, adding its reason, from one that
// came over it: TCP ends in the same orderly way when a process is killed.
func (c *control) explain(err error) error {
	if !isGone(err) {
		return err
	}
	if errors.Is(err, ErrPeerLost) {
		c.goodbye(err) // the peer may be waiting for a word just as well
	}
	ended := c.awaitEnd()
	c.byeMu.Lock()
	defer c.byeMu.Unlock()
	switch {
	case c.reason != "":
		return fmt.Errorf("%w: it says: %q", err, c.reason)
	case c.exists() && ended && !c.parted && errors.Is(err, ErrPeerClosed):
		return fmt.Errorf("%w: it ended without a goodbye", ErrPeerLost)
	default:
		return err
	}
}

// awaitEnd waits for the peer's last word and reports whether it has come.
func (c *control) awaitEnd() bool {
	t := time.NewTimer(goodbyeWait)
	defer t.Stop()
	select {
	case <-c.ended:
	case <-c.pipe.down:
	case <-t.C:
	}
	select {
	case <-c.ended: // also where the pipe went down for the same reason
		return true
	default:
		return false
	}
}

// awaitRead waits until the peer has read a message of this end.
func (c *control) awaitRead(ctx context.Context, number uint64) error {
	confirmed, err := c.await(ctx, number, c.ended, c.pipe.down)
	switch {
	case confirmed:
		return nil
	case err != nil:
		return c.pipe.unconfirmed("", err)
	case c.pipe.Err() != nil:
		return c.pipe.unconfirmed("", c.pipe.Err())
	case c.pipe.isClosing():
		return c.pipe.unconfirmed("", ErrClosed)
	default:
		return c.pipe.unconfirmed(c.name, c.explain(ErrPeerClosed))
	}
}
