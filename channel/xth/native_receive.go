package xth

import (
	"encoding/binary"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// recvOp is a Recv. description is set while it is in copyQueue or being copied.
type recvOp struct {
	transfer.Transfer
	memoryReady bool // the work of the memory's stream has completed
	description *description
	copying     bool
	cause       error // cause of an Abort during the copy
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
		e.queueCopy(r)
	} else {
		e.lifecycle.Go(func() { e.queueCopyWhenReady(r) })
	}
}

// queueCopyWhenReady waits until the memory of r is valid on its stream, and then calls queueCopy. If
// that work failed it completes r with the error. It does nothing if r was aborted or the channel has
// ended.
func (e *nativeEnd) queueCopyWhenReady(r *recvOp) {
	fault := r.WaitReady()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.recvs[r.ID] != r || e.lifecycle.Err() != nil {
		return
	}
	if fault == nil {
		r.memoryReady = true
		e.queueCopy(r)
		return
	}
	delete(e.recvs, r.ID)
	e.lifecycle.CompleteAsync(r.Done, e.wrapError(fault))
}

// queueCopy queues r, whose memory is ready, for copying if the peer has announced its tensor;
// otherwise handleAnnouncement will. The caller holds mu.
func (e *nativeEnd) queueCopy(r *recvOp) {
	if r.description = e.descriptions[r.ID]; r.description != nil {
		delete(e.descriptions, r.ID)
		e.copyQueue.Push(r)
		e.work.Broadcast()
	}
}

// abortRecv removes r and completes it with cause: on another goroutine, or, while it is being copied,
// by the copying goroutine when the copy has stopped. The description stays valid until the sender
// revokes it. The caller holds mu.
func (e *nativeEnd) abortRecv(r *recvOp, cause error) {
	delete(e.recvs, r.ID)
	r.CancelWait()
	r.cause = cause
	if !r.copying {
		e.copyQueue.Remove(func(other *recvOp) bool { return other == r })
		e.lifecycle.CompleteAsync(r.Done, cause)
	}
}

// readAnnouncements reads and handles the peer's announcements until one fails, and returns that
// error. Then it leaves the route of the peer.
func (e *nativeEnd) readAnnouncements() error {
	defer table.leaveReceiver(e.there)
	var text [announcementSize]byte
	for {
		if err := readFrame(e.announcements, text[:], "announcement"); err != nil {
			return err
		}
		w := announcement{id: binary.LittleEndian.Uint64(text[:]), address: binary.LittleEndian.Uint64(text[8:])}
		if err := e.handleAnnouncement(w); err != nil {
			return err
		}
	}
}

// handleAnnouncement queues the Recv of an announced tensor for copying if its memory is ready, and
// otherwise keeps the description for it. If w announces a revocation it drops the description; a
// running copy detects the revocation itself. An error ends the channel.
func (e *nativeEnd) handleAnnouncement(w announcement) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w.address == 0 {
		delete(e.descriptions, w.id)
		return nil
	}
	o, err := e.there.claim(w.address)
	if err != nil {
		return err
	}
	if e.ended {
		return e.lifecycle.Err()
	}
	e.descriptions[w.id] = o
	if r := e.recvs[w.id]; r != nil && r.memoryReady && r.description == nil {
		e.queueCopy(r)
	}
	return nil
}

// copyTensors copies the tensors in copyQueue one after the other, and writes a completion for each
// that was copied whole. It returns the error that ends the channel, or that has ended it.
func (e *nativeEnd) copyTensors() error {
	var text [completionSize]byte
	frame := transport.Frame{text[:]}
	for {
		r, err := e.nextCopy()
		if err != nil {
			return err
		}
		if !e.copyTensor(r) {
			continue
		}
		binary.LittleEndian.PutUint64(text[:], r.ID)
		if err := e.completions.WriteFrames(frame); err != nil {
			return err
		}
	}
}

func (e *nativeEnd) nextCopy() (*recvOp, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.copyQueue.Len() == 0 && !e.ended {
		e.work.Wait()
	}
	if e.ended {
		return nil, e.lifecycle.Err()
	}
	r := e.copyQueue.Front()
	if want, got := r.Buf.Len(), r.description.size(); want != got {
		return nil, &channel.LengthError{Want: int64(want), Got: int64(got)}
	}
	e.copyQueue.Pop().copying = true
	return r, nil
}

// copyTensor copies the tensor of r, reports the outcome to the sender in its description, and
// completes r. It reports whether all bytes were copied, so that a completion must be sent.
func (e *nativeEnd) copyTensor(r *recvOp) (all bool) {
	err := copyDescribed(r.Buf, r.description, func() error { return e.interrupted(r) })
	r.description.finish(err)
	outcome, over := e.completeRecv(r, err)
	if over {
		r.Done(outcome)
	}
	return err == nil
}

// interrupted returns why the copy for r must stop, or nil: the error of the channel,
// channel.ErrAborted if the sender has revoked the tensor, or the cause of an Abort of r.
func (e *nativeEnd) interrupted(r *recvOp) error {
	if err := e.lifecycle.Err(); err != nil {
		return err
	}
	if r.description.stopRequested() {
		return channel.ErrAborted
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return r.cause
}

// completeRecv records that the memory of r is not in use any more, after a copy with the outcome err.
// If over is true the caller must call r.Done(outcome). Otherwise the sender has revoked the tensor,
// and the pipe will abort r, or the channel is ending, and release completes r.
func (e *nativeEnd) completeRecv(r *recvOp, err error) (outcome error, over bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r.copying, r.description = false, nil
	switch {
	case err == nil:
		delete(e.recvs, r.ID)
		return nil, true
	case r.cause != nil:
		return r.cause, true
	case e.ended:
		return e.lifecycle.Err(), true
	}
	return nil, false
}
