package onesided

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/framed"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Config configures an Engine for one channel.
type Config struct {
	Protocol Protocol

	// MaxFrame is the size in bytes of the largest frame.
	MaxFrame int64

	// WrapError returns an error with the names of the channel and of the peer.
	WrapError func(error) error

	// Streams is set if Describe, Pull and the Source enqueue their work on the streams of buffers, of
	// any device. Otherwise buffers must be host memory, and the Engine waits for their streams.
	Streams bool

	// Acknowledge is set if a pull may read memory that the sender has revoked before. A Recv then
	// completes without error only after the sender has confirmed that it had not revoked the tensor.
	// The channel must have one connection.
	Acknowledge bool
}

// Engine is one end of a channel with one or two connections. It implements [channel.Channel]. One
// goroutine reads each connection, and one writes to the first; none of them waits for a transfer.
// Confirmations go to the second connection, if there is one, directly from the goroutine that pulls.
type Engine struct {
	Config
	conns     []transport.Conn
	writer    *framed.Writer[Frame] // to the first connection
	scheduler Scheduler             // the Protocol, or nil
	lifecycle *transfer.Lifecycle
	readers   atomic.Int32 // number of calls of ReplaceReader

	confirmation [1]transport.Frame // written last to the second connection, if there is one

	mu              sync.Mutex
	ended           bool // no transfer may begin
	sends           map[uint64]*sendOp
	recvs           map[uint64]*Recv
	unmatched       map[uint64]Remote // the peer's descriptions without a ready Recv
	unmatchedPieces int               // pieces in unmatched
	pulls           fifo.Queue[*Recv] // of pullInOrder
	work            sync.Cond         // pulls has grown, or ended is set
}

var _ channel.Channel = (*Engine)(nil)

// sendOp is a Send. source is nil before the tensor is described. copied is set while it waits until
// Acknowledged is written.
type sendOp struct {
	transfer.Transfer
	source Source
	copied bool
}

// New returns an Engine that owns the connections of link and retains link's functions. c.Protocol
// decides how tensors are described and copied. The Engine does nothing until the caller calls Run,
// which must be called once; before that the Protocol may store the Engine.
func New(link channel.Link, c Config) *Engine {
	e := &Engine{
		Config:    c,
		conns:     link.Conns,
		sends:     make(map[uint64]*sendOp),
		recvs:     make(map[uint64]*Recv),
		unmatched: make(map[uint64]Remote),
	}
	e.work.L = &e.mu
	e.scheduler, _ = c.Protocol.(Scheduler)
	e.writer = framed.NewWriter(c.Protocol.Append)
	if c.Acknowledge {
		e.writer.Written = e.acknowledged
	}
	e.confirmation[0] = transport.Frame{nil}
	e.lifecycle = transfer.NewLifecycle(func() error { return e.release(link) }, link.Broken)
	return e
}

// Run starts the goroutines of the Engine, which read the connections, write to the first one and,
// unless the Protocol is a Scheduler, pull tensors. It does not block, and must be called once.
func (e *Engine) Run() {
	if e.scheduler == nil {
		e.Go(e.pullInOrder)
	}
	e.Go(func() { e.fail(e.writer.Run(e.conns[0])) })
	for i := range e.conns {
		e.Go(func() { e.read(i, 0) })
	}
}

// Go runs f on a new goroutine, for which Close waits. f must return soon after the end of the
// channel.
func (e *Engine) Go(f func()) { e.lifecycle.Go(f) }

func (e *Engine) fail(err error) { e.lifecycle.Fail(e.WrapError(err)) }

// Close implements [channel.Channel]. It ends the channel with cause, or with net.ErrClosed if
// cause is nil, unless the channel has already ended. It waits until every done has been called and
// all goroutines of the Engine have ended, and returns the error of closing the link.
func (e *Engine) Close(cause error) error { return e.lifecycle.Close(cause) }

// Send implements [channel.Channel]. Once the memory of src is ready, or at once if Config.Streams
// is true, it describes the tensor to the peer, which pulls it. done is called on another
// goroutine: with nil when the peer has confirmed that it has pulled the tensor, or with the error
// of the transfer. The Engine retains src until then. Send does not block.
func (e *Engine) Send(id uint64, src device.Buffer, done func(error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, ok := e.begin(id, src, done)
	if !ok {
		return
	}
	s := &sendOp{Transfer: t}
	e.sends[id] = s
	if s.Ready() {
		e.describe(s, nil)
		return
	}
	e.Go(func() {
		fault := s.WaitReady()
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.sends[id] == s && e.lifecycle.Err() == nil {
			e.describe(s, fault)
		}
	})
}

// begin returns a new transfer of buf and true. Unless Config.Streams is true, the transfer waits
// for the work on buf's stream. If buf is empty, or the transfer cannot begin, begin calls done on
// another goroutine, with nil or the error, and ok is false. A transfer cannot begin after the end
// of the channel and, unless Config.Streams is true, if buf is not host memory or no event can be
// recorded on its stream. The caller holds mu.
func (e *Engine) begin(id uint64, buf device.Buffer, done func(error)) (t transfer.Transfer, ok bool) {
	var err error
	switch {
	case e.ended:
		err = e.lifecycle.Err()
	case buf.Len() == 0:
	case e.Streams:
		return transfer.Transfer{ID: id, Buf: buf, Done: done}, true
	case !buf.IsHost():
		err = e.WrapError(device.ErrMemory)
	default:
		if t, err = transfer.New(e.lifecycle.Context(), id, buf, done); err == nil {
			return t, true
		}
		err = e.WrapError(err)
	}
	e.lifecycle.CompleteAsync(done, err)
	return t, false
}

// describe describes the memory of s to the peer and stores the Source in s. fault is the error of
// the stream of the memory, or nil if the memory is ready. If fault is not nil, or the Protocol
// cannot describe the memory, describe removes s from e.sends, and s completes with the error on
// another goroutine. The caller holds mu.
func (e *Engine) describe(s *sendOp, fault error) {
	if fault == nil {
		s.source, fault = e.Protocol.Describe(s.Buf)
	}
	if fault != nil {
		delete(e.sends, s.ID)
		e.lifecycle.CompleteAsync(s.Done, e.WrapError(fault))
		return
	}
	e.writer.Push(Frame{Kind: Describe, ID: s.ID, Source: s.source})
}

// handleCopied handles the peer's confirmation that it has pulled the tensor of the Send with the
// given id: it completes the Send without error or, with Config.Acknowledge, lets acknowledged do that.
// If there is no such Send, because it was aborted, handleCopied returns nil. After an error, with
// which the Send stays, the caller must end the channel. The error matches channel.ErrProtocol if the
// tensor has not been described, and is otherwise that of the Source. It locks mu.
func (e *Engine) handleCopied(id uint64) error {
	s, err := e.confirm(id)
	if s != nil {
		s.Done(nil)
	}
	return err
}

// confirm is the part of handleCopied with mu locked. It returns the Send if the caller must complete
// it, and otherwise nil.
func (e *Engine) confirm(id uint64) (completed *sendOp, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sends[id]
	if s == nil {
		return nil, nil
	}
	if s.source == nil || s.copied {
		return nil, fmt.Errorf("%w: a tensor was copied that was not described, or was copied before", channel.ErrProtocol)
	}
	if err := s.source.Copied(); err != nil {
		return nil, err
	}
	if e.Acknowledge {
		s.copied = true
		e.writer.Push(Frame{Kind: Acknowledged, ID: id})
		return nil, nil
	}
	delete(e.sends, id)
	return s, nil
}

// acknowledged is called when f has been written. If it is Acknowledged, the Send completes: earlier, the
// caller could close the channel before the peer has got the frame.
func (e *Engine) acknowledged(f Frame) {
	if f.Kind != Acknowledged {
		return
	}
	e.mu.Lock()
	s := e.sends[f.ID]
	delete(e.sends, f.ID)
	e.mu.Unlock()
	if s != nil { // the channel has not ended
		s.Done(nil)
	}
}

// Abort implements [channel.Channel]; a nil cause stands for channel.ErrClosed. A Send whose tensor
// has been described completes, with cause, when the description has been revoked; the peer is
// informed, because it may keep the description for a Recv that will not come. One whose tensor has been
// copied completes without error. A Recv completes
// with cause as soon as its memory is not in use, or without error if all bytes have been copied
// before. The peer is not informed about a Recv: its Send stays described until the peer aborts it.
// An id without a transfer is ignored, except that a description that waits for a Recv is dropped.
func (e *Engine) Abort(id uint64, cause error) {
	cause = cmp.Or(cause, channel.ErrClosed)
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.sends[id]; s != nil && !s.copied {
		delete(e.sends, id)
		s.CancelWait()
		if s.source != nil {
			e.writer.Push(Frame{Kind: Revoke, ID: id})
		}
		e.Go(func() { s.end(cause) })
	}
	if r := e.recvs[id]; r != nil {
		delete(e.recvs, id)
		r.CancelWait()
		r.cause = cause
		if e.stop(r, cause) {
			e.lifecycle.CompleteAsync(r.Done, cause)
		}
	}
	e.dropDescription(id)
}

// end completes s with cause. If s has been described and not copied, end first revokes the description,
// which may block while the peer copies.
func (s *sendOp) end(cause error) {
	if s.source != nil && !s.copied {
		s.source.Revoke()
	}
	s.Done(cause)
}

// release closes link and completes all Sends and Recvs with the error of the channel, except Recvs
// that are being pulled, which Finish completes. It also closes the Protocol. It returns the error
// of closing link. e.lifecycle calls it once, at the end of the channel, without mu.
func (e *Engine) release(link channel.Link) error {
	err := channel.CloseLink(link)
	e.writer.Close()
	cause := e.lifecycle.Err()
	e.mu.Lock()
	e.ended = true
	sends, recvs := e.sends, e.recvs
	e.sends, e.recvs, e.unmatched = nil, nil, nil
	e.work.Signal()
	for id, r := range recvs {
		r.CancelWait()
		if !e.stop(r, cause) {
			delete(recvs, id)
		}
	}
	e.mu.Unlock()
	for _, s := range sends {
		s.CancelWait()
		s.end(cause)
	}
	for _, r := range recvs {
		r.Done(cause)
	}
	e.Protocol.Close()
	return err
}
