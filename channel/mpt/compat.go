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

// newCompatEnd returns an end for the compatible dialect and starts goroutines that open its lanes.
// It does not wait for them. The end owns the connection of link, and retains the functions Broken
// and Arrived of link.
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
			if errors.Is(err, io.ErrUnexpectedEOF) {
				err = io.EOF // the peer has closed while it sent the message: no transfer depends on it
			}
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

// pipeConn returns the connection that shows the addresses of both ends and whether the pipe has
// TLS: link.First, or link.Conns[0] if link.First is nil. The caller must not close it.
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

// begin divides a transfer of buf among all lanes and queues each part at its lane with push, which
// is Mover.Send or Mover.Recv. If buf is not host memory, or no event can be recorded on its
// stream, begin ends the channel, because the wire form cannot skip a tensor. If buf is empty
// nothing is queued. done is called once, on another goroutine: with the first error of a part, or
// nil after all parts have been moved. For an empty buf it gets the error of the channel, or nil if
// the channel has not ended.
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
// done is called once, on another goroutine, with nil after all parts have arrived, or with the
// first error. If n is 0 nothing is received, and done gets the error of the channel, or nil if it
// has not ended.
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

// EndRecv implements [channel.Compatible]. It calls EndRecv of each lane: a frame that arrives
// after all queued transfers then ends the lane as if the peer had closed it.
func (e *compatEnd) EndRecv() {
	for _, l := range e.lanes {
		l.EndRecv()
	}
}

// Fits implements [channel.Compatible]. It returns a [*transport.FrameSizeError] if the largest
// part of src that a lane carries is larger than a frame of one of the lanes' transports may be,
// and otherwise nil.
func (e *compatEnd) Fits(src device.Buffer) error {
	part := (int64(src.Len()) + int64(len(e.lanes)) - 1) / int64(len(e.lanes)) // the largest
	for _, g := range e.factory.groups {
		if err := transport.CheckFrame(g.Transport, part); err != nil {
			return err
		}
	}
	return nil
}

// beginStripe begins a transfer with one piece per lane by calling push(lane, s) for each lane.
// push must either begin the lane's piece and let it call s.piece once with its outcome, or return
// an error. After the last piece has ended, done is called once with the first error, or with nil:
// by the goroutine that called s.piece last, or on a new goroutine.
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

// lanePart returns the offset and the length n of the part of a tensor of size bytes that lane i
// carries.
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

// Close implements [channel.Channel]. It ends the channel with cause, or with net.ErrClosed if
// cause is nil, unless the channel has already ended. It waits until every done has been called and
// the goroutines of the channel and of its lanes have ended, and returns the error of closing the
// control connection.
func (e *compatEnd) Close(cause error) error {
	err := e.lifecycle.Close(cause)
	for _, l := range e.lanes {
		_ = l.lifecycle.Close(cause)
	}
	return err
}

// release ends all lanes, which closes their connections, and closes the control connection, whose
// error it returns. e.lifecycle calls it once, at the end of the channel. A connection that is
// opened later is closed by setConn.
func (e *compatEnd) release() error {
	var ends sync.WaitGroup
	for _, l := range e.lanes {
		ends.Go(func() { l.lifecycle.Fail(e.lifecycle.Err()) }) // with TLS this may take some time
	}
	ends.Wait()
	return e.control.Close()
}

// wrapError returns err, which must not be nil, as a [*channel.Error] with the channel's name and
// the peer; see the function wrapError. If err matches transport.ErrClosed and the peer has ended
// the control connection, io.EOF replaces err, because the connection was closed in consequence. If
// the channel has ended, the result is its error: err is that of a lane that was closed then, perhaps
// by the peer in consequence.
func (e *compatEnd) wrapError(err error) error {
	if ended := e.lifecycle.Err(); ended != nil {
		return ended
	}
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
