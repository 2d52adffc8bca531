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

var (
	_ channel.Fitter = (*end)(nil)
	_ channel.Ender  = (*end)(nil)
)

// end is this process's end of a channel.
type end struct {
	conn transport.Conn
	peer string
	life *transfer.Life
	line *framed.Line
}

func newEnd(link channel.Link) *end {
	e := &end{conn: link.Conns[0], peer: link.Peer, life: transfer.NewLife(link.Conns[0].Close, link.Broken)}
	e.line = framed.New(e.life, e.explain, link.Arrived)
	e.line.Run(e.conn)
	return e
}

func (e *end) Send(id uint64, src device.Buffer, done func(error)) {
	e.begin(e.line.Send, id, src, done)
}

func (e *end) Recv(id uint64, dst device.Buffer, done func(error)) {
	e.begin(e.line.Recv, id, dst, done)
}

// begin queues a transfer. One that cannot take place leaves a gap that the wire
// form has no word for.
func (e *end) begin(push func(transfer.Transfer) bool, id uint64, buf device.Buffer, done func(error)) {
	t, err := transfer.New(e.life.Context(), id, buf, done)
	if !buf.IsHost() {
		err = device.ErrMemory
	}
	if err != nil {
		err = e.explain(err)
		e.life.Fail(err)
		e.life.Later(done, err)
		return
	}
	if buf.Len() == 0 || !push(t) {
		e.life.Later(done, e.life.Err())
	}
}

// Fits implements [channel.Fitter]: a tensor is one frame.
func (e *end) Fits(src device.Buffer) error { return transport.CheckFrame(e.conn, int64(src.Len())) }

// EndRecv implements [channel.Ender].
func (e *end) EndRecv() { e.line.EndRecv() }

func (e *end) Abort(id uint64, cause error) {
	if e.line.Has(id) {
		e.life.Fail(cause)
	}
}

func (e *end) Close(cause error) error { return e.life.Close(cause) }

// explain puts a name to an error. What the transport finds wrong with a frame is
// the peer's doing.
func (e *end) explain(err error) error {
	if errors.Is(err, transport.ErrFrame) {
		err = fmt.Errorf("%w: %w", channel.ErrProtocol, err)
	}
	return &channel.Error{Channel: Name, Peer: e.peer, Err: err}
}
