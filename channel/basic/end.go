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

// newEnd returns an end for the compatible dialect and starts its goroutines. link must have one
// connection, which the end owns. The end retains the functions Broken and Arrived of link.
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

// begin queues a transfer of buf by calling push, which is Send or Recv of e.mover. If buf is not
// host memory, or no event can be recorded on its stream, begin ends the channel, because the wire
// form cannot skip a tensor, and the transfer completes with the error. If buf is empty or the
// channel has ended, the transfer is not queued, and completes with the error of the channel, or
// nil if the channel has not ended. A transfer that is not queued completes by a call of done on
// another goroutine. While a transfer is queued, e.mover retains buf and done.
func (e *end) begin(push func(transfer.Transfer) bool, id uint64, buf device.Buffer, done func(error)) {
	if buf.IsHost() && buf.Len() == 0 {
		e.lifecycle.CompleteAsync(done, e.lifecycle.Err())
		return
	}
	var t transfer.Transfer
	err := error(device.ErrMemory)
	if buf.IsHost() {
		t, err = transfer.New(e.lifecycle.Context(), id, buf, done)
	}
	if err != nil {
		err = e.wrapError(err)
		e.lifecycle.Fail(err)
		e.lifecycle.CompleteAsync(done, err)
		return
	}
	if !push(t) {
		t.CancelWait()
		e.lifecycle.CompleteAsync(done, e.lifecycle.Err())
	}
}

// Fits implements [channel.Compatible]. It returns an error if src is larger than one frame of the
// connection may be, and otherwise nil.
func (e *end) Fits(src device.Buffer) error { return transport.CheckFrame(e.conn, int64(src.Len())) }

// Discard implements [channel.Compatible]. It queues the peer's tensor of n bytes to be received
// and dropped. done is called with nil once all bytes have arrived, or with the error of the
// channel. If n is 0 or the channel has ended, nothing is queued, and done is called on another
// goroutine.
func (e *end) Discard(id uint64, n int, done func(error)) {
	if n == 0 || !e.mover.Discard(id, n, done) {
		e.lifecycle.CompleteAsync(done, e.lifecycle.Err())
	}
}

// EndRecv implements [channel.Compatible]. After this call a frame that arrives when no transfer is
// queued for it ends the channel with io.EOF, as the end of the connection does.
func (e *end) EndRecv() { e.mover.EndRecv() }

func (e *end) Abort(id uint64, cause error) {
	if e.mover.Has(id) {
		e.lifecycle.Fail(cause)
	}
}

func (e *end) Close(cause error) error { return e.lifecycle.Close(cause) }

// wrapError returns err, which must not be nil, as a [*channel.Error] with the channel's name and
// the peer. If err matches transport.ErrFrame, the result also matches channel.ErrProtocol.
func (e *end) wrapError(err error) error {
	if errors.Is(err, transport.ErrFrame) {
		err = fmt.Errorf("%w: %w", channel.ErrProtocol, err)
	}
	return &channel.Error{Channel: Name, Peer: e.peer, Err: err}
}
