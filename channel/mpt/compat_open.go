package mpt

import (
	"cmp"
	"context"
	"io"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// dialLimit is how long opening the lanes may take the end that dials them.
	dialLimit = 10 * time.Second

	// awaitLimit is how long the other end waits for them.
	awaitLimit = 2 * dialLimit
)

// within returns a context that ends with the life, and after d with [ErrLate].
func (e *compatEnd) within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(e.life.Context(), d, ErrLate)
}

// run has the lanes opened and sets them going.
func (e *compatEnd) run(open func() error) {
	if err := open(); err != nil {
		e.life.Fail(e.explain(err))
		for _, l := range e.lanes {
			l.drop(e.life.Err())
		}
		return
	}
	for _, l := range e.lanes {
		l.Run(l.conn)
	}
	close(e.opened)
}

// await is the listening end's part: it says where, and waits.
func (e *compatEnd) await() error {
	ctx, cancel := e.within(awaitLimit)
	defer cancel()
	x, err := e.factory.expect(ctx, e.via, len(e.lanes))
	if err != nil {
		return err
	}
	defer x.release()
	if err := e.control.WriteFrames(transport.Frame{x.hello.Append(nil)}); err != nil {
		select { // who reads from the connection finds out what has become of it
		case <-e.quiet:
			return io.EOF
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for i, l := range e.lanes {
		conn, err := x.lane(ctx, i)
		if err == nil {
			err = l.adopt(conn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// dial is the other end's part. The lanes may be used at once, for the peer
// reads them in order.
func (e *compatEnd) dial(hello <-chan []byte) error {
	ctx, cancel := e.within(dialLimit)
	defer cancel()
	var text []byte
	select {
	case text = <-hello:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	lanes, err := decodeServerHello(text, len(e.lanes))
	if err != nil {
		return err
	}
	if len(lanes) != len(e.lanes) {
		return protocolError("the peer announces %d lanes, want %d", len(lanes), len(e.lanes))
	}
	conns, err := e.factory.dial(ctx, e.via, lanes, nil)
	if err != nil {
		return e.unlessQuiet(ctx, err)
	}
	for i, l := range e.lanes {
		err = cmp.Or(err, l.adopt(conns[i]))
	}
	return err
}

// listen hands over the one thing that the peer says on the control connection. An
// end before that means that there will be no lanes.
func (e *compatEnd) listen(hello chan<- []byte) {
	text, err := readFrame(e.control, nil, maxServerHello)
	if err != nil {
		e.life.Fail(e.explain(err))
		return
	}
	hello <- text
	e.attend()
}

// watch notices the end of the control connection, on which nothing is said.
func (e *compatEnd) watch() error {
	n, err := e.control.NextFrame()
	if err != nil {
		return err
	}
	return protocolError("a frame of %d bytes on the control connection", n)
}
