package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// compatControl is the control connection, which two ends of this library have in addition to
// TensorPipe's connections. It carries confirmations of read messages and the close frame. With a
// C++ peer Conn is nil, and nothing is sent or received.
type compatControl struct {
	pipe *compat
	namedConn
	closeFrames
}

// init sets up c. conn is nil with a C++ peer; both directions then count as ended.
func (c *compatControl) init(p *compat, conn transport.Conn) {
	c.pipe = p
	c.namedConn = namedConn{conn, "control"}
	c.closeFrames.init(p.Pipe)
	if conn == nil {
		c.abandon()
	}
}

// exists reports whether there is a control connection.
func (c *compatControl) exists() bool { return c.Conn != nil }

// run handles the peer's frames until its close frame or the end of the connection, queues the
// close frame of this end, closes ended, and then waits until the peer has ended the connection. It
// fails the pipe if the peer has broken the protocol. It drops other errors: the other connections
// end too, and report why. Without a control connection it returns at once.
func (c *compatControl) run() {
	if !c.exists() {
		return
	}
	var buf []byte
	for {
		frame, err := readFrame(c, buf, wire.MaxControl, nil)
		if err == nil {
			buf = frame
			err = c.handle(frame)
		}
		if err = classify(err); errors.Is(err, ErrProtocol) {
			c.pipe.fail(c.pipe.errorFor("connection", c.name, err))
		}
		if err != nil {
			break
		}
	}
	c.pipe.sendClose(cmp.Or(c.pipe.Err(), ErrClosed)) // the peer requests nothing any more
	close(c.ended)
	c.NextFrame() // reads the end: closing with unread bytes, as of TLS, would discard frames being sent
}

// handle handles a frame of the peer. It returns io.EOF for the close frame, and an error that
// matches ErrProtocol for an invalid frame.
func (c *compatControl) handle(frame []byte) error {
	m, err := wire.DecodeControl(frame)
	if err != nil {
		return protocolError("%w", err)
	}
	switch m.Kind {
	case wire.WantRead:
		return c.handleRequest(m.Number)
	case wire.HaveRead:
		c.handleConfirmation(m.Number)
	case wire.Goodbye:
		c.receiveClose(m.Reason)
		return io.EOF
	}
	return nil
}

// write sends queued frames until it has sent the close frame or sending fails, and closes
// wrote. Without a control connection it returns at once.
func (c *compatControl) write() {
	if !c.exists() {
		return
	}
	defer close(c.wrote)
	var buf []byte
	for {
		m, ok := c.take()
		if !ok {
			<-c.wake
			continue
		}
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

// take returns the next frame to send; false if there is none. It holds closeMu throughout: a close
// frame that was queued between the checks would otherwise be sent before confirmations that must
// precede it.
func (c *compatControl) take() (wire.Control, bool) {
	c.closeMu.Lock()
	defer c.closeMu.Unlock()
	if n, ok := c.nextConfirmation(); ok {
		return wire.Control{Kind: wire.HaveRead, Number: n}, true
	}
	if n, ok := c.nextQuery(); ok {
		return wire.Control{Kind: wire.WantRead, Number: n}, true
	}
	if c.closeReason != nil {
		return wire.Control{Kind: wire.Goodbye, Reason: *c.closeReason}, true
	}
	return wire.Control{}, false
}

// explainEnd adds the reason of the peer's close frame to err, if err means that the peer is gone;
// it returns other errors unchanged. It waits for the close frame, for closeFrameTimeout at most.
// Without one an orderly end becomes ErrPeerLost, since TCP connections also end in an orderly way
// when a process is killed.
func (c *compatControl) explainEnd(err error) error {
	if !isPeerGone(err) {
		return err
	}
	if errors.Is(err, ErrPeerLost) {
		c.pipe.sendClose(err) // the peer may also wait for a close frame
	}
	t := time.NewTimer(closeFrameTimeout)
	defer t.Stop()
	select {
	case <-c.ended:
	case <-c.pipe.down:
	case <-t.C:
	}
	ended := isClosed(c.ended) // also if the pipe failed for the same reason
	peerClosed, reason := c.peerClose()
	if c.exists() && ended && !peerClosed && errors.Is(err, ErrPeerClosed) {
		return fmt.Errorf("%w: it ended without a close frame", ErrPeerLost)
	}
	return withReason(err, reason)
}

func (p *compat) awaitRead(ctx context.Context, number uint64) error {
	c := &p.control
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
		return c.pipe.unconfirmed(c.name, c.explainEnd(ErrPeerClosed))
	}
}
