package cma

import (
	"errors"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// lingerTimeout is how long an end that closes leaves its announced tensors in place for a peer that
// may be reading them. The protocol cannot revoke them; a peer that detects the end closes its
// connections, which this end waits for.
const lingerTimeout = time.Second

var _ channel.Compatible = (*end)(nil)

// end is this process's end of a channel in the compatible dialect. One goroutine announces tensors,
// one copies announced tensors in order, and one reads completions.
type end struct {
	announcements transport.Conn // both ways
	completions   transport.Conn // both ways
	peer          string
	lifecycle     *transfer.Lifecycle
	copyPool      *copyPool

	sends    *transfer.Queue // sends that are not announced yet
	recvs    *transfer.Queue
	written  chan struct{} // closed after the last announcement
	answered chan struct{} // closed after the last completion

	mu      sync.Mutex
	pending fifo.Queue[pending] // sends announced and not completed

	announcer announcer
	copier    copier
}

func newEnd(link channel.Link, process int, slots chan struct{}) *end {
	e := &end{
		announcements: link.Conns[0],
		completions:   link.Conns[1],
		peer:          link.Peer,
		sends:         transfer.NewQueue(),
		recvs:         transfer.NewQueue(),
		written:       make(chan struct{}),
		answered:      make(chan struct{}),
	}
	e.lifecycle = transfer.NewLifecycle(func() error { return e.release(link) }, link.Broken)
	e.copyPool = newCopyPool(slots, e.lifecycle.Go)
	e.copyPool.arrived = link.Arrived
	e.copier.init(process)
	e.lifecycle.Go(e.serveSends)
	e.lifecycle.Go(e.serveRecvs)
	e.lifecycle.Go(e.serveCompletions)
	return e
}

func (e *end) serveSends() {
	e.fail(e.announce())
	e.lifecycle.Drain(e.sends)
	close(e.written)
}

func (e *end) serveRecvs() {
	e.fail(e.receive())
	e.lifecycle.Drain(e.recvs)
	e.copyPool.close()
}

func (e *end) serveCompletions() {
	err := e.complete()
	close(e.answered)
	e.fail(err)
	<-e.written
	e.failPending()
}

func (e *end) Send(id uint64, src device.Buffer, done func(error)) { e.begin(e.sends, id, src, done) }

func (e *end) Recv(id uint64, dst device.Buffer, done func(error)) { e.begin(e.recvs, id, dst, done) }

// begin queues a transfer of buf in q, which is e.sends or e.recvs. If buf is not host memory, or
// no event can be recorded on its stream, begin ends the channel, because the wire form cannot skip
// a tensor, and the transfer completes with the error. If buf is empty or the channel has ended,
// the transfer is not queued, and completes with the error of the channel, or nil if the channel
// has not ended. A transfer that is not queued completes by a call of done on another goroutine.
// While a transfer is queued, q retains buf and done.
func (e *end) begin(q *transfer.Queue, id uint64, buf device.Buffer, done func(error)) {
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
	if !q.Push(t) {
		t.CancelWait()
		e.lifecycle.CompleteAsync(done, e.lifecycle.Err())
	}
}

// Fits implements [channel.Compatible]. It returns ErrScattered if src consists of several pieces
// and is larger than MaxGather, and otherwise nil. An announcement names one piece of memory, so
// several pieces must be copied into one first.
func (e *end) Fits(src device.Buffer) error {
	if _, ok := src.Contiguous(); ok {
		return nil
	}
	return checkGather(src)
}

// Discard implements [channel.Compatible]. It queues the peer's next tensor to be confirmed without
// being copied. done is called with nil when the announcement of the tensor has arrived, or with
// the error of the channel. If n is 0 or the channel has ended, nothing is queued, and done is
// called on another goroutine. The length n and the announced address are not checked.
func (e *end) Discard(id uint64, n int, done func(error)) {
	if n == 0 || !e.recvs.Push(transfer.Transfer{ID: id, Discarded: n, Done: done}) {
		e.lifecycle.CompleteAsync(done, e.lifecycle.Err())
	}
}

// EndRecv implements [channel.Compatible]. It does nothing, because this channel detects the end of
// the peer on the connection for completions, on which no tensors arrive.
func (e *end) EndRecv() {}

func (e *end) Abort(id uint64, cause error) {
	if e.sends.Has(id) || e.recvs.Has(id) || e.isPending(id) {
		e.lifecycle.Fail(cause)
	}
}

func (e *end) Close(cause error) error { return e.lifecycle.Close(cause) }

func (e *end) fail(err error) { e.lifecycle.Fail(e.wrapError(err)) }

func (e *end) wrapError(err error) error { return wrapError(e.peer, err) }

// release closes the connections of link. e.lifecycle calls it once, at the end of the channel.
//
// If no announced tensor is waiting for its completion, or the peer broke the protocol, release
// closes the connections at once and returns their errors. Otherwise the peer may still read
// announced memory: release closes only the write directions and returns nil. A goroutine then
// waits up to lingerTimeout for the peer to close its end, and closes the connections.
func (e *end) release(link channel.Link) error {
	if !e.anyPending() || errors.Is(e.lifecycle.Err(), channel.ErrProtocol) {
		return channel.CloseLink(link)
	}
	_ = e.announcements.CloseWrite()
	_ = e.completions.CloseWrite()
	e.lifecycle.Go(func() {
		timer := time.NewTimer(lingerTimeout)
		defer timer.Stop()
		select {
		case <-e.answered:
		case <-timer.C:
		}
		_ = channel.CloseLink(link)
	})
	return nil
}
