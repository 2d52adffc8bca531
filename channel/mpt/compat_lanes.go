package mpt

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/framed"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// compatLane is a lane of the compatible dialect, created before its connection is open. Its lifecycle
// ends with the channel, or earlier if the peer ends the lane between two frames, because the other
// lanes may still carry frames. If the connection cannot be opened, the lane fails and is drained.
type compatLane struct {
	*framed.Mover
	lifecycle *transfer.Lifecycle

	mu   sync.Mutex
	conn transport.Conn // nil until the lane is open
}

// setConn makes conn the connection of the lane and returns nil; the lane closes conn at its end.
// If the lane has already ended, setConn closes conn and returns the lane's error.
func (l *compatLane) setConn(conn transport.Conn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.lifecycle.Err(); err != nil {
		_ = conn.Close()
		return err
	}
	l.conn = conn
	return nil
}

func (l *compatLane) release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		return nil
	}
	return l.conn.Close()
}

const (
	// dialTimeout is the time limit for the dialling end to open the lanes.
	dialTimeout = 10 * time.Second

	// acceptTimeout is the time limit for the listening end.
	acceptTimeout = 2 * dialTimeout
)

// openLanes calls open, which must give each lane its connection with setConn. If open returns nil,
// openLanes starts the movers of the lanes and closes e.opened. Otherwise it ends the channel with
// the error of open, wrapped, unless the channel has ended, and completes the transfers queued at
// the lanes with the error of the channel.
func (e *compatEnd) openLanes(open func() error) {
	if err := open(); err != nil {
		e.lifecycle.Fail(e.wrapError(err))
		for _, l := range e.lanes {
			l.lifecycle.Fail(e.lifecycle.Err())
			l.Drain()
		}
		return
	}
	for _, l := range e.lanes {
		l.Run(l.conn)
	}
	close(e.opened)
}

// acceptLanes opens the lanes at the listening end: it announces their addresses over the control
// connection, accepts a connection for each lane, and gives it to the lane. It returns ErrLate if
// that takes longer than acceptTimeout, io.EOF if it cannot announce because the peer has ended the
// control connection, and the error of the channel after its end. Other errors match
// channel.ErrUnopened. After an error some lanes may have connections, which close at the end of
// the channel.
func (e *compatEnd) acceptLanes() error {
	ctx, cancel := context.WithTimeoutCause(e.lifecycle.Context(), acceptTimeout, ErrLate)
	defer cancel()
	x, err := e.factory.prepareLanes(ctx, e.pipeConn, len(e.lanes))
	if err != nil {
		return err
	}
	defer x.release()
	if err := e.control.WriteFrames(transport.Frame{x.hello.Append(nil)}); err != nil {
		select { // the reader of the connection determines whether it has ended
		case <-e.controlEnded:
			return io.EOF
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for i, l := range e.lanes {
		conn, err := x.accept(ctx, i)
		if err == nil {
			err = l.setConn(conn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// dialLanes opens the lanes at the dialling end: it waits for the peer's announcement from hello,
// dials the addresses in it, and gives each connection to its lane. The lanes may be used at once,
// without a confirmation from the peer.
//
// It returns ErrLate if that takes longer than dialTimeout, io.EOF if dialling failed and the peer
// has ended the control connection, and the error of the channel after its end. Other errors are a
// *wire.Error, or match channel.ErrProtocol or channel.ErrUnopened.
func (e *compatEnd) dialLanes(hello <-chan []byte) error {
	ctx, cancel := context.WithTimeoutCause(e.lifecycle.Context(), dialTimeout, ErrLate)
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
	conns, err := e.factory.dial(ctx, e.pipeConn, lanes, nil)
	if err != nil {
		return e.preferControlEnd(ctx, err)
	}
	for i, l := range e.lanes {
		err = cmp.Or(err, l.setConn(conns[i]))
	}
	return err
}

// lateLaneTimeout is how long lanes may still connect after the end of the control connection, and how
// long this end waits for that end after lanes were refused. A peer that has failed looks the same
// until then; even on a busy machine it becomes an error within a second.
const lateLaneTimeout = 500 * time.Millisecond

// awaitControlEnd waits until the peer ends the control connection. If the connection fails or
// carries a frame, awaitControlEnd ends the channel with the error and returns.
//
// An orderly end means that both ends have passed all frames to their lanes, but not that all
// frames have arrived, nor that all lanes are open at the peer. awaitControlEnd therefore waits up
// to lateTimeout for the lanes to open, and then closes the write direction of each; the lanes end
// after the frames that they carry. If the lanes do not open in time, it ends the channel with
// io.EOF.
func (e *compatEnd) awaitControlEnd() {
	n, err := e.control.NextFrame()
	if err == nil {
		err = protocolError("a frame of %d bytes on the control connection", n)
	}
	if !errors.Is(err, io.EOF) {
		e.lifecycle.Fail(e.wrapError(err))
		return
	}
	close(e.controlEnded)
	timer := time.NewTimer(e.factory.lateTimeout)
	defer timer.Stop()
	select {
	case <-e.opened:
		for _, l := range e.lanes {
			e.lifecycle.Go(func() { _ = l.conn.CloseWrite() }) // an error shows when the reader reads
		}
		e.connectionEnded()
	case <-timer.C:
		e.lifecycle.Fail(e.wrapError(io.EOF))
	case <-e.lifecycle.Context().Done():
	}
}

// preferControlEnd returns io.EOF if the peer has ended the control connection, and otherwise err,
// the error of dialling the lanes. It waits up to lateTimeout for that end, but not after the end
// of ctx. A peer that has closed refuses its lanes too, and the end of the control connection may
// arrive later than the refusal.
func (e *compatEnd) preferControlEnd(ctx context.Context, err error) error {
	timer := time.NewTimer(e.factory.lateTimeout)
	defer timer.Stop()
	select {
	case <-e.controlEnded:
	case <-timer.C:
	case <-ctx.Done():
	}
	if e.hasControlEnded() {
		return io.EOF
	}
	return err
}

// connectionEnded records that the peer has ended one more connection in an orderly way: a lane or
// the control connection. When all of these have ended, it ends the channel with io.EOF.
func (e *compatEnd) connectionEnded() {
	if e.remaining.Add(-1) == 0 {
		e.lifecycle.Fail(e.wrapError(io.EOF))
	}
}
