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

var _ channel.Compatible = (*compatEnd)(nil)

// compatEnd is this process's end of a channel in the compatible dialect. Transfers are queued at the
// lanes even before these are open.
type compatEnd struct {
	factory      *Factory
	control      transport.Conn // carries nothing once the lanes are open
	pipeConn     transport.Conn
	peer         string
	lifecycle    *transfer.Lifecycle
	lanes        []*compatLane
	stripes      stripes
	controlEnded chan struct{} // closed when the peer has ended the control connection
	opened       chan struct{} // closed when all lanes are open
	remaining    atomic.Int64  // connections that the peer has not ended: lanes and control
}

// newCompatEnd returns an end that owns the connections of link, and opens its lanes in the
// background.
func newCompatEnd(f *Factory, link channel.Link, role channel.Role) *compatEnd {
	e := &compatEnd{factory: f, control: link.Conns[0], pipeConn: pipeConn(link), peer: link.Peer}
	e.controlEnded, e.opened = make(chan struct{}), make(chan struct{})
	e.lifecycle = transfer.NewLifecycle(e.release, link.Broken)
	e.stripes.onAllFailed = e.lifecycle.Fail
	e.lanes = make([]*compatLane, f.lanes())
	for i := range e.lanes {
		l := &compatLane{}
		l.lifecycle = transfer.NewLifecycle(l.release, func(err error) {
			if errors.Is(err, io.EOF) { // the peer has ended the lane: the others continue
				e.connectionEnded()
			} else {
				e.lifecycle.Fail(err)
			}
		})
		l.Mover = framed.New(l.lifecycle, e.wrapError, link.Arrived)
		e.lanes[i] = l
	}
	e.remaining.Store(int64(len(e.lanes)) + 1)
	if role == channel.RoleListen {
		e.lifecycle.Go(e.awaitControlEnd)
		e.lifecycle.Go(func() { e.openLanes(e.acceptLanes) })
	} else {
		hello := make(chan []byte, 1)
		e.lifecycle.Go(func() { // reads the only message of the control connection
			text, err := readFrame(e.control, nil, maxServerHello)
			if err != nil {
				e.lifecycle.Fail(e.wrapError(err))
				return
			}
			hello <- text
			e.awaitControlEnd()
		})
		e.lifecycle.Go(func() { e.openLanes(func() error { return e.dialLanes(hello) }) })
	}
	return e
}

// pipeConn returns the connection of link from which the address of the peer, and whether it has TLS,
// are known. The caller does not own it.
func pipeConn(link channel.Link) transport.Conn {
	if link.First != nil {
		return link.First
	}
	return link.Conns[0]
}

func (e *compatEnd) Send(id uint64, src device.Buffer, done func(error)) {
	e.begin((*framed.Mover).Send, id, src, done)
}

func (e *compatEnd) Recv(id uint64, dst device.Buffer, done func(error)) {
	e.begin((*framed.Mover).Recv, id, dst, done)
}

// begin queues a part of the transfer at each lane with push, which is Mover.Send or Mover.Recv. An
// invalid transfer completes with an error and ends the channel, because the wire form cannot skip it.
// An empty one is not queued and completes at once, on another goroutine.
func (e *compatEnd) begin(push func(*framed.Mover, transfer.Transfer) bool, id uint64, buf device.Buffer, done func(error)) {
	if !buf.IsHost() {
		err := e.wrapError(device.ErrMemory)
		e.lifecycle.Fail(err)
		e.lifecycle.CompleteAsync(done, err)
		return
	}
	if buf.Len() == 0 {
		e.lifecycle.CompleteAsync(done, e.lifecycle.Err())
		return
	}
	e.beginStripe(done, func(i int, s *stripe) error {
		from, n := e.lanePart(buf.Len(), i)
		l := e.lanes[i]
		t, err := transfer.New(l.lifecycle.Context(), id, buf.Slice(from, n), s.piece)
		if err != nil {
			err = e.wrapError(err)
			e.lifecycle.Fail(err)
			return err
		}
		if !push(l.Mover, t) {
			t.CancelWait()
			return l.lifecycle.Err()
		}
		return nil
	})
}

// Discard implements [channel.Compatible]: each lane receives and drops its part of the n bytes.
func (e *compatEnd) Discard(id uint64, n int, done func(error)) {
	if n == 0 {
		e.lifecycle.CompleteAsync(done, e.lifecycle.Err())
		return
	}
	e.beginStripe(done, func(i int, s *stripe) error {
		l := e.lanes[i]
		if _, n := e.lanePart(n, i); !l.Discard(id, n, s.piece) {
			return l.lifecycle.Err()
		}
		return nil
	})
}

// EndRecv implements [channel.Compatible]. It calls EndRecv of each lane.
func (e *compatEnd) EndRecv() {
	for _, l := range e.lanes {
		l.EndRecv()
	}
}

// Fits implements [channel.Compatible]. It returns an error if the largest lane's part of src does not fit
// into one frame.
func (e *compatEnd) Fits(src device.Buffer) error {
	part := (int64(src.Len()) + int64(len(e.lanes)) - 1) / int64(len(e.lanes)) // the largest
	for _, g := range e.factory.groups {
		if err := transport.CheckFrame(g.Transport, part); err != nil {
			return err
		}
	}
	return nil
}

// beginStripe begins a transfer by calling push for each lane. push must begin the piece of that lane,
// which calls s.piece once at its end, or return an error. After the last piece done is called once,
// with the first error or nil.
func (e *compatEnd) beginStripe(done func(error), push func(lane int, s *stripe) error) {
	s := e.stripes.begin(len(e.lanes), done)
	for i := range e.lanes {
		if err := push(i, s); err != nil {
			s.through(err)
		}
	}
	if done, err := s.through(nil); done != nil {
		e.lifecycle.CompleteAsync(done, err)
	}
}

// lanePart returns the offset and length of the part of size bytes that lane i carries.
func (e *compatEnd) lanePart(size, i int) (from, n int) {
	from = laneOffset(size, i, len(e.lanes))
	return from, laneOffset(size, i+1, len(e.lanes)) - from
}

func (e *compatEnd) Abort(id uint64, cause error) {
	for _, l := range e.lanes {
		if l.Has(id) {
			e.lifecycle.Fail(cause)
			return
		}
	}
}

// Close ends the channel with cause, unless it has ended, and waits until its goroutines and those of
// its lanes have ended. It returns the error of closing the control connection.
func (e *compatEnd) Close(cause error) error {
	err := e.lifecycle.Close(cause)
	for _, l := range e.lanes {
		_ = l.lifecycle.Close(cause)
	}
	return err
}

// release ends each lane, which closes its connection, and closes the control connection. The
// lifecycle calls it at its end. A lane whose connection is opened later closes it, see setConn.
func (e *compatEnd) release() error {
	var ends sync.WaitGroup
	for _, l := range e.lanes {
		ends.Go(func() { l.lifecycle.Fail(e.lifecycle.Err()) }) // with TLS this may take some time
	}
	ends.Wait()
	return e.control.Close()
}

// wrapError returns err with the channel's name and the peer. If err is transport.ErrClosed and the
// peer has ended the control connection, the peer ended the lane too: io.EOF then replaces err.
func (e *compatEnd) wrapError(err error) error {
	if errors.Is(err, transport.ErrClosed) && e.hasControlEnded() {
		err = io.EOF
	}
	return wrapError(e.peer, err)
}

// hasControlEnded reports whether the peer has ended the control connection.
func (e *compatEnd) hasControlEnded() bool {
	select {
	case <-e.controlEnded:
		return true
	default:
		return false
	}
}
