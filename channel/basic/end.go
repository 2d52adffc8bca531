package basic

import (
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/framed"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

var _ channel.Compatible = (*end)(nil)

// end is this process's end of a channel in the compatible dialect.
type end struct {
	conn      transport.Conn
	peer      string
	lifecycle *transfer.Lifecycle
	mover     *framed.Mover
}

// newEnd returns an end that owns the connection of link, and starts its goroutines.
func newEnd(link channel.Link) *end {
	e := &end{conn: link.Conns[0], peer: link.Peer, lifecycle: transfer.NewLifecycle(link.Conns[0].Close, link.Broken)}
	e.mover = framed.New(e.lifecycle, e.wrapError, link.Arrived)
	e.mover.Run(e.conn)
	return e
}

func (e *end) Send(id uint64, src device.Buffer, done func(error)) {
	e.begin(e.mover.Send, id, src, done)
}

func (e *end) Recv(id uint64, dst device.Buffer, done func(error)) {
	e.begin(e.mover.Recv, id, dst, done)
}

// begin queues a transfer with push, which is Send or Recv of the mover. An invalid transfer completes
// with an error and ends the channel, because the wire form cannot skip it. An empty one, and one after
// the end of the channel, is not queued and completes at once. All of these complete on another
// goroutine.
func (e *end) begin(push func(transfer.Transfer) bool, id uint64, buf device.Buffer, done func(error)) {
	t, err := transfer.New(e.lifecycle.Context(), id, buf, done)
	if !buf.IsHost() {
		err = device.ErrMemory
	}
	if err != nil {
		err = e.wrapError(err)
		e.lifecycle.Fail(err)
		e.lifecycle.CompleteAsync(done, err)
		return
	}
	if buf.Len() == 0 || !push(t) {
		e.lifecycle.CompleteAsync(done, e.lifecycle.Err())
	}
}

// Fits implements [channel.Compatible]. It returns an error if src does not fit into one frame.
func (e *end) Fits(src device.Buffer) error { return transport.CheckFrame(e.conn, int64(src.Len())) }

// Discard implements [channel.Compatible].
func (e *end) Discard(id uint64, n int, done func(error)) {
	if n == 0 || !e.mover.Discard(id, n, done) {
		e.lifecycle.CompleteAsync(done, e.lifecycle.Err())
	}
}

// EndRecv implements [channel.Compatible]. A frame without a queued transfer then ends the channel with
// io.EOF.
func (e *end) EndRecv() { e.mover.EndRecv() }

func (e *end) Abort(id uint64, cause error) {
	if e.mover.Has(id) {
		e.lifecycle.Fail(cause)
	}
}

func (e *end) Close(cause error) error { return e.lifecycle.Close(cause) }

// wrapError returns err as a [*channel.Error] with the channel's name and the peer. An invalid frame
// also matches channel.ErrProtocol.
func (e *end) wrapError(err error) error {
	if errors.Is(err, transport.ErrFrame) {
		err = fmt.Errorf("%w: %w", channel.ErrProtocol, err)
	}
	return &channel.Error{Channel: Name, Peer: e.peer, Err: err}
}
