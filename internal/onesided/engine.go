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

// sendOp is a Send. source is nil before the tensor is described.
type sendOp struct {
	transfer.Transfer
	source Source
}

// New returns an Engine that owns the connections of link. The caller must call Run, before which the
// Protocol may store the Engine.
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
	e.confirmation[0] = transport.Frame{nil}
	e.lifecycle = transfer.NewLifecycle(func() error { return e.release(link) }, link.Broken)
	return e
}

// Run starts the goroutines of the Engine. It does not block.
func (e *Engine) Run() {
	if e.scheduler == nil {
		e.Go(e.pullInOrder)
	}
	e.Go(func() { e.fail(e.writer.Run(e.conns[0])) })
	for i := range e.conns {
		e.Go(func() { e.read(i, 0) })
	}
}

// Go runs f on a goroutine for which Close waits. f must return after the end of the channel.
func (e *Engine) Go(f func()) { e.lifecycle.Go(f) }

func (e *Engine) fail(err error) { e.lifecycle.Fail(e.WrapError(err)) }

// Close implements [channel.Channel].
func (e *Engine) Close(cause error) error { return e.lifecycle.Close(cause) }

// Send implements [channel.Channel].
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

// begin returns a transfer of buf, which waits for the work of buf's stream unless Config.Streams is
// set. If buf is empty or the transfer cannot begin, begin completes it on another goroutine, and ok is
// false. The caller holds mu.
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

// describe describes the memory of s to the peer. fault is the error of the memory's stream, or nil if
// the memory is ready. If fault is not nil or the memory cannot be described, s completes with the
// error on another goroutine. The caller holds mu.
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

// handleCopied completes the Send with that id, whose tensor the peer has pulled. An unknown id is that
// of an aborted Send and is ignored. The error matches channel.ErrProtocol if the peer has not pulled
// the tensor.
func (e *Engine) handleCopied(id uint64) error {
	e.mu.Lock()
	s := e.sends[id]
	var err error
	switch {
	case s == nil:
	case s.source == nil:
		err = fmt.Errorf("%w: a tensor was copied that was not described", channel.ErrProtocol)
	default:
		err = s.source.Copied()
	}
	if err == nil {
		delete(e.sends, id)
	}
	e.mu.Unlock()
	if s != nil && err == nil {
		s.Done(nil)
	}
	return err
}

// Abort implements [channel.Channel]. If the tensor of a Send has been described, the Send completes
// when it has been revoked. The peer is informed because it may keep the description for a Recv that
// will not come. For a Recv the peer is not informed: it keeps the tensor described until it aborts its
// Send.
func (e *Engine) Abort(id uint64, cause error) {
	cause = cmp.Or(cause, channel.ErrClosed)
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.sends[id]; s != nil {
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

// end revokes the description of s, if there is one, and completes s with cause.
func (s *sendOp) end(cause error) {
	if s.source != nil {
		s.source.Revoke()
	}
	s.Done(cause)
}

// release closes the link and completes all transfers, except those being pulled, which Finish
// completes. The lifecycle calls it at its end, without mu.
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
