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

// errWithdrawn is the outcome of a copy of which the sender has changed the
// memory, or may have.
var errWithdrawn = errors.New("the sender has withdrawn the tensor")

// receiving is a Recv. It has an offer while it is being copied.
type receiving struct {
	transfer.Transfer
	ordered bool // the memory's stream has come to it
	offer   *offer
	cause   error // of an Abort meanwhile
	job     job
	word    [wordSize]byte // what the peer's word was after the copy
}

func (e *nativeEnd) Recv(id uint64, dst device.Buffer, done func(error)) {
	t, fault := transfer.New(e.life.Context(), id, dst, done)
	r := &receiving{Transfer: t}
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.refuse(dst, fault)
	if err != nil || dst.Len() == 0 {
		r.GiveUp()
		e.life.Later(done, err)
		return
	}
	e.recvs[id] = r
	if r.ordered = r.Ready(); r.ordered {
		e.startCopy(r)
	} else {
		e.life.Go(func() { e.copyLater(r) })
	}
}

// copyLater waits for the stream on which the memory is valid.
func (e *nativeEnd) copyLater(r *receiving) {
	fault := r.WaitReady()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.recvs[r.ID] != r || e.life.Err() != nil:
	case fault != nil:
		delete(e.recvs, r.ID)
		e.life.Later(r.Done, e.explain(fault))
	default:
		r.ordered = true
		e.startCopy(r)
	}
}

// startCopy gives r to the crew if there is an offer. The caller holds mu.
func (e *nativeEnd) startCopy(r *receiving) {
	o := e.offers[r.ID]
	if o == nil {
		return
	}
	if err := r.fits(o); err != nil {
		e.life.Go(func() { e.life.Fail(e.explain(err)) })
		return
	}
	e.forget(r.ID)
	e.giveToCrew(r, o)
}

func (e *nativeEnd) giveToCrew(r *receiving, o *offer) {
	r.offer = o
	r.job = job{pid: o.pid, dst: r.Buf, src: o.pieces}
	r.job.finished = func(err error) { e.finish(r, new(reader), err) }
	e.crew.start(&r.job)
}

// fits checks that the peer offers as much as was announced.
func (r *receiving) fits(o *offer) error {
	if uint64(r.Buf.Len()) == o.size {
		return nil
	}
	return &channel.LengthError{Want: int64(r.Buf.Len()), Got: int64(o.size)}
}

// forget lets go of an offer that was noted. The caller holds mu.
func (e *nativeEnd) forget(id uint64) {
	if o := e.offers[id]; o != nil {
		e.noted -= len(o.pieces)
		delete(e.offers, id)
	}
}

// stopCopy ends the copying of r, if any, and reports whether nobody touches the
// memory any more. Else finish will come to it. The caller holds mu.
func (e *nativeEnd) stopCopy(r *receiving, cause error) (idle bool) {
	if r.offer == nil {
		return true
	}
	idle = e.crew.stop(&r.job, cause)
	if idle {
		r.offer = nil
	}
	return idle
}

// abortRecv gives up a Recv. What happens to the offer is the sender's to say.
// The caller holds mu.
func (e *nativeEnd) abortRecv(r *receiving, cause error) {
	delete(e.recvs, r.ID)
	r.GiveUp()
	r.cause = cause
	if e.stopCopy(r, cause) {
		e.life.Later(r.Done, cause)
	}
}

// withdrawn lets go of an offer. Its Recv, if any, is the pipe's to abort.
func (e *nativeEnd) withdrawn(id uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forget(id)
	if r := e.recvs[id]; r != nil {
		e.stopCopy(r, errWithdrawn)
	}
}

// match finds the Recv for an offer. It returns one that is to be copied by the
// caller; others go to the crew, or must be waited for.
func (e *nativeEnd) match(o *offer) (*receiving, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return nil, e.life.Err()
	}
	r := e.recvs[o.id]
	if r == nil || !r.ordered {
		return nil, e.note(o)
	}
	if r.offer != nil {
		return nil, protocolError("transfer %d is on offer twice", o.id)
	}
	if err := r.fits(o); err != nil {
		return nil, err
	}
	if r.Buf.Len() > smallCopy || !e.reading.begin() {
		e.giveToCrew(r, o)
		return nil, nil
	}
	r.offer = o
	return r, nil
}

// note keeps an offer until memory waits for it. The caller holds mu.
func (e *nativeEnd) note(o *offer) error {
	if e.offers[o.id] != nil {
		return protocolError("transfer %d is on offer twice", o.id)
	}
	e.noted += len(o.pieces)
	if e.noted > maxNoted {
		return protocolError("more than %d pieces of memory on offer", maxNoted)
	}
	e.offers[o.id] = o
	return nil
}

// finish says what came of a copy: to the caller of Recv, and to the peer. The
// sender may have withdrawn the offer while the copy was made: then the bytes are
// of no use, and the pipe will abort the Recv.
func (e *nativeEnd) finish(r *receiving, memory *reader, err error) {
	if err == nil || unmapped(err) {
		err = e.confirm(r, memory, err)
	}
	outcome, over := e.settle(r, err)
	if over {
		r.Done(outcome)
	}
	if gone(err) {
		e.life.Fail(e.explain(fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, err)))
	}
}

// confirm looks whether the offer still holds. If it does, all that was read
// before is the tensor, and what went wrong did not go wrong because of that.
func (e *nativeEnd) confirm(r *receiving, memory *reader, err error) error {
	src := [1]segment{{r.offer.address, wordSize}}
	fault := memory.read(r.offer.pid, device.Bytes(r.word[:]), src[:], 0, wordSize)
	switch {
	case unmapped(fault):
		return errWithdrawn
	case fault != nil:
		return fault
	case binary.NativeEndian.Uint64(r.word[:]) != r.offer.word:
		return errWithdrawn
	}
	return err
}

// settle notes that r's memory is not touched any more, and says with what
// outcome r is over. It is not where the sender gave up, or has died, for then
// somebody else finishes it.
func (e *nativeEnd) settle(r *receiving, err error) (outcome error, over bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r.offer = nil
	switch {
	case r.cause != nil:
		return r.cause, true
	case e.ended:
		return e.life.Err(), true
	case err == nil:
		delete(e.recvs, r.ID)
		e.say(word{kind: kindCopied, id: r.ID})
		return nil, true
	case err == errWithdrawn || gone(err):
		return nil, false
	default:
		delete(e.recvs, r.ID)
		return e.explain(err), true
	}
}
