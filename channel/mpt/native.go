package mpt

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/framed"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// nativeEnd is this process's end of a channel in the native dialect. A large transfer is a
// transferOp, which moves in slices; each slice is a transfer of the [bulk.Mover] of its lane. Smaller
// transfers are passed to host, which moves them over the pipe's bulk connection.
type nativeEnd struct {
	factory   *Factory
	role      channel.Role
	control   transport.Conn
	writer    *framed.Writer[controlFrame] // to control
	pipeConn  transport.Conn
	host      channel.Channel
	peer      string
	arrived   func(bytes int) // Link.Arrived
	checksum  bool
	log       *slog.Logger
	lifecycle *transfer.Lifecycle
	broken    func(error) // Link.Broken, once

	// openCtx ends when lanes are not to be opened any more.
	openCtx     context.Context
	stopOpening context.CancelCauseFunc

	mu          sync.Mutex
	ended       bool  // the channel is closed or has failed
	peerGone    error // set when the peer has closed or failed; nothing may begin, see peerLost
	sends       direction
	recvs       direction
	small       map[uint64]struct{} // ids of small Sends passed to host
	offers      map[uint64]route    // the peer's offers without a ready Recv
	unrequested fifo.Queue[*transferOp]
	work        sync.Cond // opening has changed, or ended is set
	opening     opening
	conns       []transport.Conn // connections of lanes, including those being opened
	lanes       []*lane          // nil while they are not open
	idle        *time.Timer      // the client's; nil before it has had lanes
	active      bool             // lanes have been used since idle expired
}

func newNativeEnd(f *Factory, link channel.Link, role channel.Role) *nativeEnd {
	e := &nativeEnd{
		factory:  f,
		role:     role,
		control:  link.Conns[0],
		writer:   framed.NewWriter(appendControl),
		pipeConn: pipeConn(link),
		host:     link.Host,
		peer:     link.Peer,
		arrived:  link.Arrived,
		checksum: link.Checksum,
		log:      link.Logger,
		small:    make(map[uint64]struct{}),
		offers:   make(map[uint64]route),
	}
	e.sends = newDirection(role, channel.Channel.Send)
	e.recvs = newDirection(1-role, channel.Channel.Recv)
	e.work.L = &e.mu
	var once sync.Once
	e.broken = func(err error) { once.Do(func() { link.Broken(err) }) }
	e.lifecycle = transfer.NewLifecycle(e.release, e.broken)
	e.openCtx, e.stopOpening = context.WithCancelCause(e.lifecycle.Context())
	e.lifecycle.Go(func() { _ = e.writer.Run(e.control) }) // readControl determines why the connection ended
	e.lifecycle.Go(func() { e.connectionLost(e.readControl()) })
	return e
}

// isSmall reports whether a transfer of buf is too small to be divided among lanes. It depends on
// the length of buf only, so that both ends of the channel get the same result.
func (e *nativeEnd) isSmall(buf device.Buffer) bool { return buf.Len() < 2*e.factory.stripe }

// Send implements [channel.Channel]. If src is small it passes the transfer to e.host, the pipe's
// bulk connection, and keeps its id in e.small until the transfer has ended. Otherwise it offers
// the tensor to the peer once its memory is ready. If the channel has ended or the peer is lost,
// done is called with the error on another goroutine.
func (e *nativeEnd) Send(id uint64, src device.Buffer, done func(error)) {
	if !e.isSmall(src) {
		e.begin(&e.sends, id, src, done, e.sendOffer)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if cause := e.endCause(); cause != nil {
		e.lifecycle.CompleteAsync(done, cause)
		return
	}
	e.small[id] = struct{}{}
	e.host.Send(id, src, func(err error) {
		e.mu.Lock()
		delete(e.small, id)
		e.mu.Unlock()
		done(err)
	})
}

func (e *nativeEnd) Recv(id uint64, dst device.Buffer, done func(error)) {
	if !e.isSmall(dst) {
		e.begin(&e.recvs, id, dst, done, e.match)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if cause := e.endCause(); cause != nil {
		e.lifecycle.CompleteAsync(done, cause)
		return
	}
	e.host.Recv(id, dst, done)
}

func (e *nativeEnd) Abort(id uint64, cause error) {
	cause = cmp.Or(cause, channel.ErrClosed)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.offers, id)
	e.host.Abort(id, cause) // if it is small
	for _, s := range []*direction{&e.sends, &e.recvs} {
		if op := s.ops[id]; op != nil {
			e.cancel(s, op, cause)
		}
	}
}

func (e *nativeEnd) Close(cause error) error { return e.lifecycle.Close(cause) }

// release prevents further transfers, cancels all others, and closes the lanes, e.host and the
// control connection, whose error it returns. Transfers without slices in progress complete at once
// with the error of the channel. Each other transfer completes when its last slice has ended,
// because its lane or e.host was closed. e.lifecycle calls release once, at the end of the channel,
// without mu.
func (e *nativeEnd) release() error {
	cause := e.lifecycle.Err()
	e.writer.Close()
	var idle []*transferOp
	e.mu.Lock()
	e.ended = true
	for _, s := range []*direction{&e.sends, &e.recvs} {
		for _, op := range s.ops {
			op.CancelWait()
			op.cause = cause
			if len(op.slices) == 0 {
				idle = append(idle, op)
			}
		}
		s.ops = nil
	}
	e.unrequested.Clear()
	if e.idle != nil {
		e.idle.Stop()
	}
	e.work.Broadcast()
	e.mu.Unlock()
	for _, op := range idle {
		op.Done(cause)
	}
	closeAll(e.conns) // unblocks the movers of the lanes
	_ = e.host.Close(cause)
	for _, l := range e.lanes {
		l.close(cause)
	}
	return e.control.Close()
}

func (e *nativeEnd) wrapError(err error) error { return wrapError(e.peer, err) }
