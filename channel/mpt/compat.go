package mpt

import (
	"sync"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/framed"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// compatEnd is this process's end of a channel in the compatible dialect.
// Transfers queue at the lanes, also before those are open.
type compatEnd struct {
	factory *Factory
	control transport.Conn // says nothing once the lanes are open
	via     transport.Conn
	peer    string
	life    *transfer.Life
	lines   []*framed.Line
	stripes stripes

	mu    sync.Mutex
	ended bool
	conns []transport.Conn // of the lanes
}

func newCompatEnd(f *Factory, link channel.Link, role channel.Role) *compatEnd {
	e := &compatEnd{factory: f, control: link.Conns[0], via: first(link), peer: link.Peer}
	e.life = transfer.NewLife(e.release, link.Broken)
	e.lines = make([]*framed.Line, f.lanes())
	for i := range e.lines {
		e.lines[i] = framed.New(e.life, e.explain)
	}
	if role == channel.RoleListen {
		e.life.Go(func() { e.life.Fail(e.explain(e.watch())) })
		e.life.Go(func() { e.run(e.await) })
	} else {
		hello := make(chan []byte, 1)
		e.life.Go(func() { e.life.Fail(e.explain(e.listen(hello))) })
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
	s := e.stripes.begin(len(e.lines), done)
	for i, l := range e.lines {
		if err := e.queue(push, l, id, e.part(buf, i), s); err != nil {
			e.life.Fail(err)
			s.through(err)
		}
	}
	if done, err := s.through(nil); done != nil {
		e.life.Later(done, err)
	}
}

// part is what lane i carries of buf.
func (e *compatEnd) part(buf device.Buffer, i int) device.Buffer {
	from, to := bound(buf.Len(), i, len(e.lines)), bound(buf.Len(), i+1, len(e.lines))
	return buf.Slice(from, to-from)
}

func (e *compatEnd) queue(push func(*framed.Line, transfer.Transfer) bool, l *framed.Line, id uint64, part device.Buffer, s *stripe) error {
	t, err := transfer.New(e.life.Context(), id, part, s.piece)
	if err != nil {
		return e.explain(err)
	}
	if !push(l, t) {
		t.GiveUp()
		return e.life.Err()
	}
	return nil
}

func (e *compatEnd) Abort(id uint64, cause error) {
	for _, l := range e.lines {
		if l.Has(id) {
			e.life.Fail(cause)
			return
		}
	}
}

func (e *compatEnd) Close(cause error) error { return e.life.Close(cause) }

// release closes all connections there are. None is added later.
func (e *compatEnd) release() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	closeAll(e.conns)
	return e.control.Close()
}

// adopt puts lanes under the care of e, or closes them if the end has come.
func (e *compatEnd) adopt(conns ...transport.Conn) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		closeAll(conns)
		return e.life.Err()
	}
	e.conns = append(e.conns, conns...)
	return nil
}

func (e *compatEnd) explain(err error) error { return explain(e.peer, err) }
