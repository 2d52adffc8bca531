package cudaipc

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// basicEnd is one end of a channel of NewBasic. All its work is done by one goroutine, run, which exists
// while there is some: it polls events, enqueues copies, passes chunks to the host channel, and writes
// to the control connection. The other calls change the state and wake it.
//
// A Send in the native dialect:
//
//	Recv    the target may be overwritten; "wanted" goes to the sender
//	Send    the tensor is written; chunk by chunk: a slot, a copy into it, a transfer of the host
//	        channel, and "staged" goes to the receiver
//	Recv    for each "staged": a slot, the transfer of the host channel, a copy out of the slot
//
// In the compatible dialect there is no "wanted", and tensors and chunks are in order.
type basicEnd struct {
	factory   *basicFactory
	control   transport.Conn
	link      channel.Link
	role      channel.Role
	chunkSize int
	lifecycle *transfer.Lifecycle

	running atomic.Bool   // the goroutine exists
	woken   chan struct{} // the goroutine must look again
	readEnd chan struct{} // closed when readControl has ended

	mu           sync.Mutex
	host         channel.Channel // nil before start
	ended        bool
	ending       error // of the peer: ends the channel once the chunks that it has staged are received
	fatal        error // of this end: ends the channel at once
	unwritable   bool  // the control connection has failed
	sends, recvs map[uint64]*basicOp
	waiting      []*basicOp           // whose memory is not ready
	sendQueue    fifo.Queue[*basicOp] // with chunks to stage
	recvQueue    fifo.Queue[*basicOp] // compatible: with chunks to receive
	held         map[*ring]int        // slots of this end
	direct       map[bool]int         // chunks without a slot that are sent (true) or received
	receiving    int                  // chunks that the host channel receives
	frames       controlFrames        // to be written

	staging  fifo.Queue[*basicChunk] // being copied to slots, or without a slot
	arrived  fifo.Queue[*basicChunk] // received in slots
	draining []*basicChunk           // being copied out of slots

	sentChunks, receivedChunks, empties uint64 // passed to the host channel

	// Native:
	wanted map[uint64]bool // ids that the peer wants and that are not sent yet
	staged fifo.Queue[stagedChunk]

	// Compatible:
	announced uint64 // chunks of the peer
	noRecvs   bool   // EndRecv was called
}

var _ channel.Compatible = (*basicEnd)(nil)

// basicOp is a Send, Recv or Discard.
type basicOp struct {
	id     uint64
	buf    device.Buffer
	length int // of the tensor; that of buf unless discarded
	done   func(error)
	send   bool
	scrap  bool // a Discard: buf has one chunk

	memory *Memory // nil for host memory
	ring   *ring   // of memory

	ready   device.Event // completes when the memory may be used; nil if there is nothing to wait for
	usable  bool         // ready has completed
	matched bool         // native: the peer wants the tensor, or was informed that this end does
	staged  int          // bytes of the chunks that the peer has staged; native, for a Recv
	begun   int          // bytes of the chunks that are staged or being received
	moved   int          // bytes that have arrived, or that were sent
	copying int          // chunks whose copy between memory and a slot may be running
	direct  int          // chunks that the host channel moves without a slot
	subs    []uint64     // ids of the chunks in the host channel
	err     error        // why it fails
	over    bool         // done was called
}

func newBasicEnd(f *basicFactory, link channel.Link, role channel.Role) *basicEnd {
	e := &basicEnd{
		factory:   f,
		control:   link.Conns[len(link.Conns)-1],
		link:      link,
		role:      role,
		chunkSize: compatChunk,
		woken:     make(chan struct{}, 1),
		readEnd:   make(chan struct{}),
		sends:     make(map[uint64]*basicOp),
		recvs:     make(map[uint64]*basicOp),
		held:      make(map[*ring]int),
		direct:    make(map[bool]int),
		wanted:    make(map[uint64]bool),
	}
	if link.Native {
		e.chunkSize = nativeChunk
	}
	e.lifecycle = transfer.NewLifecycle(e.release, link.Broken)
	return e
}

// start begins to move tensors through host, which e owns.
func (e *basicEnd) start(host channel.Channel) {
	e.mu.Lock()
	e.host = host
	e.mu.Unlock()
	e.lifecycle.Go(e.readControl)
	e.wake()
}

func (e *basicEnd) wrap(err error) error { return wrapBasicError(e.link.Peer, err) }

// Send implements [channel.Channel]. It does not block.
func (e *basicEnd) Send(id uint64, src device.Buffer, done func(error)) {
	e.begin(&basicOp{id: id, buf: src, length: src.Len(), done: done, send: true})
}

// Recv implements [channel.Channel]. It does not block.
func (e *basicEnd) Recv(id uint64, dst device.Buffer, done func(error)) {
	e.begin(&basicOp{id: id, buf: dst, length: dst.Len(), done: done})
}

// Discard implements [channel.Compatible]. It receives the tensor through the memory of one chunk.
func (e *basicEnd) Discard(id uint64, n int, done func(error)) {
	buf := device.Bytes(make([]byte, min(n, e.chunkSize)))
	e.begin(&basicOp{id: id, buf: buf, length: n, done: done, scrap: true})
}

// EndRecv implements [channel.Compatible]. A chunk that the peer announces later ends the channel with
// the error of the peer's end.
func (e *basicEnd) EndRecv() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.noRecvs = true
	e.wake()
}

// Fits implements [channel.Compatible]. It returns an error if the host channel cannot send a chunk of
// src, which is host memory. Chunks of other memory fit.
func (e *basicEnd) Fits(src device.Buffer) error {
	host, ok := e.host.(channel.Compatible)
	if !ok || !src.IsHost() {
		return nil
	}
	for at := 0; at < src.Len(); at += e.chunkSize {
		if err := host.Fits(src.Slice(at, min(e.chunkSize, src.Len()-at))); err != nil {
			return err
		}
	}
	return nil
}

// begin begins op, or completes it if it cannot be moved or the channel ends. The host channel completes
// an empty tensor, with its error if it has failed.
func (e *basicEnd) begin(op *basicOp) {
	e.mu.Lock()
	defer e.mu.Unlock()
	err := cmp.Or(e.lifecycle.Err(), e.fatal)
	switch {
	case err != nil:
	case e.ending != nil && (e.link.Native || op.send || !e.expectsChunks()):
		err = e.ending
	case op.length == 0:
		e.host.Recv(e.hostID(firstEmpty+e.empties, e.role), device.Bytes(nil), op.done)
		e.empties++
		return
	default:
		err = e.admit(op)
	}
	if err != nil {
		e.lifecycle.CompleteAsync(op.done, err)
		return
	}
	if op.send {
		e.sends[op.id] = op
		op.matched = e.wanted[op.id]
		delete(e.wanted, op.id)
	} else {
		e.recvs[op.id] = op
	}
	e.waiting = append(e.waiting, op)
	if !e.link.Native {
		if op.send {
			e.sendQueue.Push(op)
		} else {
			e.recvQueue.Push(op)
		}
	}
	e.wake()
}

// admit sets the memory of op and the event after which it may be used. The error is that of the
// transfer; in the compatible dialect, which cannot skip one, it also ends the channel. The caller
// holds mu.
func (e *basicEnd) admit(op *basicOp) (err error) {
	s := op.buf.Stream()
	if !op.buf.IsHost() {
		if op.memory, _, err = e.factory.kind.memoryOf(op.buf); err == nil {
			rings := e.factory.in
			if op.send {
				rings = e.factory.out
			}
			op.ring = rings[op.memory.gpu.device.Index]
			if s == nil {
				err = fmt.Errorf("memory of %v without a stream: %w", op.buf.Device(), device.ErrStream)
			}
		}
	}
	if err == nil && s != nil {
		op.ready, err = s.Record()
	}
	if err != nil {
		err = e.wrap(err)
		if !e.link.Native {
			e.fatal = err
			e.wake()
		}
	}
	return err
}

// Abort implements [channel.Channel].
func (e *basicEnd) Abort(id uint64, cause error) {
	cause = cmp.Or(cause, channel.ErrClosed)
	e.mu.Lock()
	defer e.mu.Unlock()
	send, recv := e.sends[id], e.recvs[id]
	if !e.link.Native {
		if send != nil || recv != nil {
			e.lifecycle.Go(func() { e.lifecycle.Fail(cause) })
		}
		return
	}
	delete(e.wanted, id)
	if send != nil {
		e.failOp(send, cause)
	}
	if recv != nil {
		if recv.matched && recv.staged == 0 {
			e.frames.add(frameWithdrawn, id)
			e.wake()
		}
		e.failOp(recv, cause)
	}
}

// Close implements [channel.Channel].
func (e *basicEnd) Close(cause error) error { return e.lifecycle.Close(cause) }

// failOp makes op fail with err, unless it has failed already. The caller holds mu.
func (e *basicEnd) failOp(op *basicOp, err error) {
	if op.err == nil {
		op.err = err
		for _, id := range op.subs {
			e.host.Abort(id, err)
		}
	}
	e.conclude(op)
}

// conclude completes op if all its bytes have moved, or it has failed, and the host channel does not use
// its memory. It makes the stream of the memory wait for copies that may be running. The caller holds mu.
func (e *basicEnd) conclude(op *basicOp) {
	if op.over || op.err == nil && op.moved < op.length || op.direct > 0 {
		return
	}
	if op.copying > 0 {
		if err := op.buf.Stream().WaitFor(op.ring.stream); err != nil && op.err == nil {
			op.err = e.wrap(err)
		}
	}
	op.over = true
	if op.ready != nil {
		op.ready.Release()
		op.ready = nil
	}
	if op.send {
		delete(e.sends, op.id)
	} else {
		delete(e.recvs, op.id)
	}
	e.lifecycle.CompleteAsync(op.done, op.err)
}

// release ends the host channel and the control connection, completes all transfers with the error of
// the channel, and frees the slots.
func (e *basicEnd) release() error {
	cause := e.lifecycle.Err()
	e.mu.Lock()
	e.ended = true
	host := e.host
	e.mu.Unlock()
	err := e.control.Close()
	hostErr := host.Close(cause)
	e.factory.forget(e)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, chunks := range [][]*basicChunk{e.staging.Clear(), e.arrived.Clear(), e.draining} {
		for _, c := range chunks {
			e.dropChunk(c)
		}
	}
	e.draining = nil
	for _, ops := range []map[uint64]*basicOp{e.sends, e.recvs} {
		for _, op := range ops {
			op.err = cmp.Or(op.err, cause)
			e.conclude(op)
		}
	}
	return cmp.Or(err, hostErr)
}
