package cma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
)

// errRevoked is the outcome of a copy whose memory the sender may have changed.
var errRevoked = errors.New("the sender has revoked the tensor")

// recvOp is a Recv. description is set, and does not change, while the tensor is being copied.
type recvOp struct {
	transfer.Transfer
	memoryReady bool // the work of the memory's stream has completed
	description *description
	cause       error // cause of an Abort during the copy
	copyTask    copyTask
	validity    [validitySize]byte // the peer's validity word after the copy
}

func (e *nativeEnd) Recv(id uint64, dst device.Buffer, done func(error)) {
	t, fault := transfer.New(e.lifecycle.Context(), id, dst, done)
	r := &recvOp{Transfer: t}
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.checkBegin(dst, fault)
	if err != nil || dst.Len() == 0 {
		r.CancelWait()
		e.lifecycle.CompleteAsync(done, err)
		return
	}
	e.recvs[id] = r
	if r.memoryReady = r.Ready(); r.memoryReady {
		e.startCopy(r)
	} else {
		e.lifecycle.Go(func() { e.copyWhenReady(r) })
	}
}

// copyWhenReady waits until the memory of r is valid on its stream, and then calls startCopy. If that
// work failed it completes r with the error. It does nothing if r was aborted or the channel has
// ended.
func (e *nativeEnd) copyWhenReady(r *recvOp) {
	fault := r.WaitReady()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.recvs[r.ID] != r || e.lifecycle.Err() != nil:
	case fault != nil:
		delete(e.recvs, r.ID)
		e.lifecycle.CompleteAsync(r.Done, e.wrapError(fault))
	default:
		r.memoryReady = true
		e.startCopy(r)
	}
}

// startCopy passes r, whose memory is ready, to the copy pool if the peer has described the tensor;
// otherwise match will find r. A description of another size ends the channel. The caller holds mu.
func (e *nativeEnd) startCopy(r *recvOp) {
	o := e.unmatched[r.ID]
	if o == nil {
		return
	}
	if err := r.fits(o); err != nil {
		e.lifecycle.Go(func() { e.lifecycle.Fail(e.wrapError(err)) })
		return
	}
	e.dropDescription(r.ID)
	e.copyInPool(r, o)
}

func (e *nativeEnd) copyInPool(r *recvOp, o *description) {
	r.description = o
	r.copyTask = copyTask{pid: o.pid, dst: r.Buf, src: o.pieces}
	r.copyTask.finished = func(err error) { e.finish(r, new(reader), err) }
	e.copyPool.start(&r.copyTask)
}

// fits returns nil if o has the size of the memory of r, and otherwise a [*channel.LengthError].
func (r *recvOp) fits(o *description) error {
	if uint64(r.Buf.Len()) == o.size {
		return nil
	}
	return &channel.LengthError{Want: int64(r.Buf.Len()), Got: int64(o.size)}
}

// dropDescription removes the description with that id from unmatched, if it is there. The caller
// holds mu.
func (e *nativeEnd) dropDescription(id uint64) {
	if o := e.unmatched[id]; o != nil {
		e.unmatchedPieces -= len(o.pieces)
		delete(e.unmatched, id)
	}
}

// stopCopy stops the copying of r, if any, because of cause. It returns true if the memory of r is not
// in use any more; otherwise finish will be called for r. The caller holds mu.
func (e *nativeEnd) stopCopy(r *recvOp, cause error) (idle bool) {
	if r.description == nil {
		return true
	}
	idle = e.copyPool.stop(&r.copyTask, cause)
	if idle {
		r.description = nil
	}
	return idle
}

// abortRecv removes r and completes it with cause, on another goroutine as soon as its memory is not
// in use. The description stays valid until the sender revokes it. The caller holds mu.
func (e *nativeEnd) abortRecv(r *recvOp, cause error) {
	delete(e.recvs, r.ID)
	r.CancelWait()
	r.cause = cause
	if e.stopCopy(r, cause) {
		e.lifecycle.CompleteAsync(r.Done, cause)
	}
}

// revoked handles the revocation of a description: it drops the description if it is unmatched, and
// stops the copy of its Recv. It does not complete the Recv, which the pipe will abort.
func (e *nativeEnd) revoked(id uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dropDescription(id)
	if r := e.recvs[id]; r != nil {
		e.stopCopy(r, errRevoked)
	}
}

// match finds the Recv for description o. If it returns a Recv, the caller must copy the tensor and
// call finish. If it returns nil without an error, the copy pool copies the tensor, or o is kept for a
// later Recv. An error ends the channel.
func (e *nativeEnd) match(o *description) (*recvOp, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return nil, e.lifecycle.Err()
	}
	r := e.recvs[o.id]
	if r == nil || !r.memoryReady {
		return nil, e.keepDescription(o)
	}
	if r.description != nil {
		return nil, protocolError("transfer %d was described twice", o.id)
	}
	if err := r.fits(o); err != nil {
		return nil, err
	}
	if r.Buf.Len() > smallCopy || !e.inlineCopy.begin() {
		e.copyInPool(r, o)
		return nil, nil
	}
	r.description = o
	return r, nil
}

// keepDescription stores o in unmatched until there is a ready Recv for it. The error matches
// channel.ErrProtocol: the id was described twice, or too many pieces are unmatched. The caller holds
// mu.
func (e *nativeEnd) keepDescription(o *description) error {
	if e.unmatched[o.id] != nil {
		return protocolError("transfer %d was described twice", o.id)
	}
	e.unmatchedPieces += len(o.pieces)
	if e.unmatchedPieces > maxUnmatchedPieces {
		return protocolError("more than %d pieces of memory without a Recv", maxUnmatchedPieces)
	}
	e.unmatched[o.id] = o
	return nil
}

// finish ends the copy of r, which had the outcome err: it checks that the description is still valid,
// completes r, and informs the peer. If the sender has revoked the description, the bytes are invalid
// and r stays until the pipe aborts it. If the sender's process is gone, finish ends the channel.
// memory is the caller's reader; the caller does not hold mu.
func (e *nativeEnd) finish(r *recvOp, memory *reader, err error) {
	if err == nil || noSuchMemory(err) {
		err = e.checkValid(r, memory, err)
	}
	outcome, over := e.completeRecv(r, err)
	if over {
		r.Done(outcome)
	}
	if noSuchProcess(err) {
		e.lifecycle.Fail(e.wrapError(fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, err)))
	}
}

// checkValid reads the peer's validity word after the copy of r with the outcome err. It returns err
// if the description is still valid: the copied bytes, if any, are those of the tensor. It returns
// errRevoked if it is not, and another error if the word could not be read.
func (e *nativeEnd) checkValid(r *recvOp, memory *reader, err error) error {
	src := [1]segment{{r.description.validityAddr, validitySize}}
	fault := memory.read(r.description.pid, device.Bytes(r.validity[:]), src[:], 0, validitySize)
	switch {
	case noSuchMemory(fault):
		return errRevoked
	case fault != nil:
		return fault
	case binary.NativeEndian.Uint64(r.validity[:]) != r.description.validityValue:
		return errRevoked
	}
	return err
}

// completeRecv records that the memory of r is not in use any more, after a copy with the outcome err.
// If over is true the caller must call r.Done(outcome). Otherwise the sender has revoked the tensor or
// does not exist any more, and an Abort or the end of the channel completes r.
func (e *nativeEnd) completeRecv(r *recvOp, err error) (outcome error, over bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r.description = nil
	switch {
	case r.cause != nil:
		return r.cause, true
	case e.ended:
		return e.lifecycle.Err(), true
	case err == nil:
		delete(e.recvs, r.ID)
		e.enqueue(controlFrame{kind: kindCopied, id: r.ID})
		return nil, true
	case err == errRevoked || noSuchProcess(err):
		return nil, false
	default:
		delete(e.recvs, r.ID)
		return e.wrapError(err), true
	}
}
