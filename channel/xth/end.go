package xth

import (
	"cmp"
	"errors"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// end is this process's end of a channel in the compatible dialect; its peer is
// another one in the same process. Three goroutines serve it: one announces, one
// copies, and one takes in completions.
type end struct {
	announcements transport.Conn // both ways
	completions   transport.Conn // both ways
	peer          string
	life          *transfer.Life

	sends     *transfer.Queue // not announced yet
	recvs     *transfer.Queue
	announced chan struct{} // closed when nothing more will be announced

	mu        sync.Mutex
	pending   fifo.Queue[pending] // announced, not completed
	receiving receipt
	spare     []*offer

	announcer announcer
	copier    copier
}

func newEnd(link channel.Link) *end {
	e := &end{
		announcements: link.Conns[0],
		completions:   link.Conns[1],
		peer:          link.Peer,
		life:          transfer.NewLife(func() error { return channel.CloseLink(link) }, link.Broken),
		sends:         transfer.NewQueue(),
		recvs:         transfer.NewQueue(),
		announced:     make(chan struct{}),
	}
	here, there := link.Conns[0].LocalAddr(), link.Conns[0].RemoteAddr()
	e.announcer.route = routes.joinSender(ends{from: here, to: there})
	e.copier.route = routes.joinReceiver(ends{from: there, to: here})
	e.life.Go(e.serveSends)
	e.life.Go(e.serveRecvs)
	e.life.Go(e.serveCompletions)
	return e
}

func (e *end) serveSends() {
	e.fail(e.announce())
	e.life.Drain(e.sends)
	close(e.announced)
}

func (e *end) serveRecvs() {
	e.fail(e.receive())
	e.life.Drain(e.recvs)
	routes.leaveReceiver(e.copier.route)
}

func (e *end) serveCompletions() {
	e.fail(e.complete())
	<-e.announced
	e.withdrawAll()
	routes.leaveSender(e.announcer.route)
}

func (e *end) Send(id uint64, src device.Buffer, done func(error)) { e.begin(e.sends, id, src, done) }

func (e *end) Recv(id uint64, dst device.Buffer, done func(error)) { e.begin(e.recvs, id, dst, done) }

// begin queues a transfer. One that cannot take place is queued all the same,
// without done, because the peer counts on it.
func (e *end) begin(q *transfer.Queue, id uint64, buf device.Buffer, done func(error)) {
	if buf.Len() == 0 {
		e.life.Later(done, e.life.Err())
		return
	}
	t, err := transfer.New(e.life.Context(), id, buf, done)
	if !buf.IsHost() {
		err = device.ErrMemory
	}
	if err != nil {
		t.Done = nil
		e.life.Later(done, e.explain(err))
	}
	if !q.Push(t) && t.Done != nil {
		e.life.Later(done, e.life.Err())
	}
}

func (e *end) Abort(id uint64, cause error) {
	cause = cmp.Or(cause, channel.ErrClosed)
	e.abortSend(id, cause)
	e.abortRecv(id, cause)
}

func (e *end) Close(cause error) error { return e.life.Close(cause) }

func (e *end) fail(err error) { e.life.Fail(e.explain(err)) }

func (e *end) explain(err error) error { return explain(e.peer, err) }

// explain puts a name to an error. What the transport finds wrong with a frame is
// the peer's doing.
func explain(peer string, err error) error {
	if errors.Is(err, transport.ErrFrame) {
		err = protocolError("%w", err)
	}
	return &channel.Error{Channel: Name, Peer: peer, Err: err}
}

// protocolError says what the peer did that it must not.
func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{channel.ErrProtocol}, args...)...)
}
