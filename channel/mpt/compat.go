package mpt

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/framed"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

var (
	_ channel.Discarder = (*compatEnd)(nil)
	_ channel.Fitter    = (*compatEnd)(nil)
	_ channel.Ender     = (*compatEnd)(nil)
)

// compatEnd is this process's end of a channel in the compatible dialect.
// Transfers queue at the lanes, also before those are open.
type compatEnd struct {
	factory *Factory
	control transport.Conn // says nothing once the lanes are open
	via     transport.Conn
	peer    string
	life    *transfer.Life
	lanes   []*compatLane
	stripes stripes
	quiet   chan struct{} // closed when the peer has ended control
	opened  chan struct{} // closed when all lanes are open
	left    atomic.Int64  // lanes, and control, that the peer has not ended
}

func newCompatEnd(f *Factory, link channel.Link, role channel.Role) *compatEnd {
	e := &compatEnd{factory: f, control: link.Conns[0], via: first(link), peer: link.Peer}
	e.quiet, e.opened = make(chan struct{}), make(chan struct{})
	e.life = transfer.NewLife(e.release, link.Broken)
	e.stripes.hopeless = e.life.Fail
	e.lanes = make([]*compatLane, f.lanes())
	for i := range e.lanes {
		e.lanes[i] = newCompatLane(e, link.Arrived)
	}
	e.left.Store(int64(len(e.lanes)) + 1)
	if role == channel.RoleListen {
		e.life.Go(e.attend)
		e.life.Go(func() { e.run(e.await) })
	} else {
		hello := make(chan []byte, 1)
		e.life.Go(func() { e.listen(hello) })
		e.life.Go(func() { e.run(func() error { return e.dial(hello) }) })
	}
	return e
}

// first is the connection that knows the way to the peer.
func first(link channel.Link) transport.Conn {
	if link.First != nil {
		return link.First
	}
	return link.Conns[0]
}

func (e *compatEnd) Send(id uint64, src device.Buffer, done func(error)) {
	e.begin((*framed.Line).Send, id, src, done)
}

func (e *compatEnd) Recv(id uint64, dst device.Buffer, done func(error)) {
	e.begin((*framed.Line).Recv, id, dst, done)
}

// begin queues a piece at each lane. A transfer that cannot take place leaves a
// gap that the wire form has no word for.
func (e *compatEnd) begin(push func(*framed.Line, transfer.Transfer) bool, id uint64, buf device.Buffer, done func(error)) {
	if !buf.IsHost() {
		err := e.explain(device.ErrMemory)
		e.life.Fail(err)
		e.life.Later(done, err)
		return
	}
	if buf.Len() == 0 {
		e.life.Later(done, e.life.Err())
		return
	}
	e.spread(done, func(i int, s *stripe) error {
		from, n := e.part(buf.Len(), i)
		return e.queue(push, e.lanes[i], id, buf.Slice(from, n), s)
	})
}

// Discard implements [channel.Discarder]: each lane throws away its part.
func (e *compatEnd) Discard(id uint64, n int, done func(error)) {
	if n == 0 {
		e.life.Later(done, e.life.Err())
		return
	}
	e.spread(done, func(i int, s *stripe) error {
		l := e.lanes[i]
		if _, n := e.part(n, i); !l.Discard(id, n, s.piece) {
			return l.life.Err()
		}
		return nil
	})
}

// EndRecv implements [channel.Ender].
func (e *compatEnd) EndRecv() {
	for _, l := range e.lanes {
		l.EndRecv()
	}
}

// Fits implements [channel.Fitter]: what a lane carries of a tensor is one frame.
func (e *compatEnd) Fits(src device.Buffer) error {
	part := (int64(src.Len()) + int64(len(e.lanes)) - 1) / int64(len(e.lanes)) // the largest
	for _, g := range e.factory.groups {
		if err := transport.CheckFrame(g.Transport, part); err != nil {
			return err
		}
	}
	return nil
}

// spread begins a transfer, of which push gives each lane its piece.
func (e *compatEnd) spread(done func(error), push func(lane int, s *stripe) error) {
	s := e.stripes.begin(len(e.lanes), done)
	for i := range e.lanes {
		if err := push(i, s); err != nil {
			s.through(err)
		}
	}
	if done, err := s.through(nil); done != nil {
		e.life.Later(done, err)
	}
}

// part is what lane i carries of size bytes.
func (e *compatEnd) part(size, i int) (from, n int) {
	from = bound(size, i, len(e.lanes))
	return from, bound(size, i+1, len(e.lanes)) - from
}

func (e *compatEnd) queue(push func(*framed.Line, transfer.Transfer) bool, l *compatLane, id uint64, part device.Buffer, s *stripe) error {
	t, err := transfer.New(l.life.Context(), id, part, s.piece)
	if err != nil {
		err = e.explain(err)
		e.life.Fail(err)
		return err
	}
	if !push(l.Line, t) {
		t.GiveUp()
		return l.life.Err()
	}
	return nil
}

func (e *compatEnd) Abort(id uint64, cause error) {
	for _, l := range e.lanes {
		if l.Has(id) {
			e.life.Fail(cause)
			return
		}
	}
}

// Close waits for the lanes behind the channel, which sets the last of them going.
func (e *compatEnd) Close(cause error) error {
	err := e.life.Close(cause)
	for _, l := range e.lanes {
		_ = l.life.Close(cause)
	}
	return err
}

// release ends all connections there are. None is added later.
func (e *compatEnd) release() error {
	var ends sync.WaitGroup
	for _, l := range e.lanes {
		ends.Go(func() { l.life.Fail(e.life.Err()) }) // with TLS it may take a moment
	}
	ends.Wait()
	return e.control.Close()
}

// explain puts a name to an error. A lane on which nothing can be sent any more, since
// the peer has ended the control connection, is the peer's end and not this one's.
func (e *compatEnd) explain(err error) error {
	if errors.Is(err, transport.ErrClosed) && e.hushed() {
		err = io.EOF
	}
	return explain(e.peer, err)
}

// hushed reports whether the peer has ended the control connection.
func (e *compatEnd) hushed() bool {
	select {
	case <-e.quiet:
		return true
	default:
		return false
	}
}
