package cma

import (
	"cmp"
	"errors"
	"os"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// maxUnmatchedPieces bounds the pieces of memory in descriptions for which there is no Recv yet. The
// limits of a pipe are reached earlier.
const maxUnmatchedPieces = 1 << 17

// nativeEnd is this process's end of a channel in the native dialect. One goroutine writes frames, one
// reads frames and copies small tensors, and the copy pool copies large ones; if a small copy stalls
// another goroutine continues reading. None of them waits for a transfer, so transfers may come in any
// order.
type nativeEnd struct {
	conn      transport.Conn
	peer      string
	pid       int
	peerPID   int // the peer's process, 0 if it is not known yet; used by the reading goroutine
	lifecycle *transfer.Lifecycle
	copyPool  *copyPool

	mu              sync.Mutex
	ended           bool // no transfer may begin
	sends           map[uint64]*sendOp
	recvs           map[uint64]*recvOp
	unmatched       map[uint64]*description // the peer's descriptions without a ready Recv
	unmatchedPieces int                     // pieces in unmatched
	inlineCopy      inlineCopy
	outgoing        fifo.Queue[controlFrame] // frames to write
	work            sync.Cond                // outgoing has grown, or ended is set
}

func newNativeEnd(link channel.Link, process int, slots chan struct{}) *nativeEnd {
	e := &nativeEnd{
		conn:      link.Conns[0],
		peer:      link.Peer,
		pid:       os.Getpid(),
		peerPID:   process,
		sends:     make(map[uint64]*sendOp),
		recvs:     make(map[uint64]*recvOp),
		unmatched: make(map[uint64]*description),
	}
	e.work.L = &e.mu
	e.lifecycle = transfer.NewLifecycle(func() error { return e.release(link) }, link.Broken)
	e.copyPool = newCopyPool(slots, e.lifecycle.Go)
	e.copyPool.arrived = link.Arrived
	e.inlineCopy.stallDetector.init(e.checkStalled)
	e.lifecycle.Go(func() { e.lifecycle.Fail(e.wrapError(e.write())) })
	e.lifecycle.Go(e.runReader)
	return e
}

func (e *nativeEnd) Abort(id uint64, cause error) {
	cause = cmp.Or(cause, channel.ErrClosed)
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.sends[id]; s != nil {
		e.abortSend(s, cause)
	}
	if r := e.recvs[id]; r != nil {
		e.abortRecv(r, cause)
	}
	e.dropDescription(id)
}

func (e *nativeEnd) Close(cause error) error { return e.lifecycle.Close(cause) }

// checkBegin returns why a transfer of buf cannot begin, or nil. fault is the error of transfer.New
// for it. The caller holds mu.
func (e *nativeEnd) checkBegin(buf device.Buffer, fault error) error {
	switch {
	case e.ended:
		return e.lifecycle.Err()
	case buf.Len() > 0 && !buf.IsHost():
		return e.wrapError(device.ErrMemory)
	case fault != nil:
		return e.wrapError(fault)
	}
	return nil
}

// release closes the link and completes all transfers except those being copied; finish completes
// these when the copy has stopped. The lifecycle calls it at its end, without mu.
func (e *nativeEnd) release(link channel.Link) error {
	err := channel.CloseLink(link)
	sends, recvs := e.end()
	for _, s := range sends {
		s.Done(e.lifecycle.Err())
	}
	for _, r := range recvs {
		r.Done(e.lifecycle.Err())
	}
	e.copyPool.close()
	return err
}

// end prevents further transfers, revokes all Sends and stops all copies. It returns the transfers
// whose memory is not in use any more, which the caller must complete after end; finish completes the
// others.
func (e *nativeEnd) end() (sends []*sendOp, recvs []*recvOp) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.sends {
		s.CancelWait()
		s.validity.Store(0)
		sends = append(sends, s)
	}
	for _, r := range e.recvs {
		r.CancelWait()
		if e.stopCopy(r, e.lifecycle.Err()) {
			recvs = append(recvs, r)
		}
	}
	e.ended = true
	e.sends, e.recvs, e.unmatched = nil, nil, nil
	e.work.Broadcast()
	return sends, recvs
}

func (e *nativeEnd) wrapError(err error) error { return wrapError(e.peer, err) }

// inlineCopy is the state of the copy that the reading goroutine makes of a small tensor. While such a
// copy is stalled another goroutine reads frames, and leaves all tensors to the copy pool.
// nativeEnd.mu guards it.
type inlineCopy struct {
	stallDetector stallDetector
	copies        bool // the reading goroutine is copying a tensor
	stuck         bool // that copy has stalled, and another goroutine reads
}

// begin reports whether the reading goroutine may copy a tensor itself, and if so records that it
// does; it must then call end after the copy. The caller holds nativeEnd.mu.
func (r *inlineCopy) begin() bool {
	if r.stuck {
		return false
	}
	r.copies = true
	r.stallDetector.arm(true)
	return true
}

// end records the end of the copy, and reports whether another goroutine has become the reader
// meanwhile, so that the caller must stop reading. The caller holds nativeEnd.mu.
func (r *inlineCopy) end() (replaced bool) {
	replaced = r.stuck
	r.stallDetector.completed++
	r.copies, r.stuck = false, false
	return replaced
}

// errReplaced is the error with which read ends if another goroutine has become the reader.
var errReplaced = errors.New("another goroutine reads")

// runReader handles frames until read fails, and ends the channel with the error. If another goroutine
// has become the reader it returns without ending the channel.
func (e *nativeEnd) runReader() {
	if err := e.read(); err != errReplaced {
		e.lifecycle.Fail(e.wrapError(err))
	}
}

// checkStalled handles the expiry of the stall detector. If the copy of the reading goroutine has
// stalled it starts another reader.
func (e *nativeEnd) checkStalled() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.inlineCopy.stallDetector.expired() && e.inlineCopy.copies && !e.ended {
		e.inlineCopy.stuck = true
		e.lifecycle.Go(e.runReader)
		return
	}
	e.inlineCopy.stallDetector.arm(e.inlineCopy.copies)
}

// read reads and handles the peer's frames until one fails. It returns that error, which ends the
// channel, or errReplaced.
func (e *nativeEnd) read() error {
	frames := frameReader{conn: e.conn}
	var memory reader
	for {
		p, err := frames.next()
		if err != nil {
			return err
		}
		if p[0] != kindDescribe {
			id, err := decodeControl(p)
			switch {
			case err != nil:
			case p[0] == kindCopied:
				err = e.handleCopied(id)
			case p[0] == kindRevoke:
				e.revoked(id)
			default:
				err = protocolError("a frame of kind %d", p[0])
			}
			if err != nil {
				return err
			}
			continue
		}
		o, err := decodeDescription(p)
		if err != nil {
			return err
		}
		if e.peerPID != 0 && e.peerPID != o.pid {
			return protocolError("a description of process %d, by process %d", o.pid, e.peerPID)
		}
		e.peerPID = o.pid
		if err := e.handleDescription(o, &memory); err != nil {
			return err
		}
	}
}

// handleDescription matches description o with its Recv, and copies the tensor itself if it is small;
// memory is the caller's reader. It returns an error that ends the channel, or errReplaced if another
// goroutine became the reader during the copy.
func (e *nativeEnd) handleDescription(o *description, memory *reader) error {
	r, err := e.match(o)
	if r == nil {
		return err
	}
	e.finish(r, memory, memory.read(o.pid, r.Buf, o.pieces, 0, r.Buf.Len()))
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.inlineCopy.end() {
		return errReplaced
	}
	return nil
}
