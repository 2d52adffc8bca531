package onesided

import (
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/framed"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
)

// Recv is a Recv of an Engine. Its memory is Buf.
type Recv struct {
	transfer.Transfer
	Memory any // Remote.Memory of the tensor to pull

	engine *Engine

	// Guarded by Engine.mu:
	memoryReady bool  // Buf may be written to
	pulling     bool  // Memory is set, and does not change
	pulled      bool  // it waits for Acknowledged
	cause       error // of an Abort
}

// Recv implements [channel.Channel]. Once the peer has described the tensor and the memory of dst
// is ready, it pulls the tensor into dst. With Config.Streams set it does not wait for the memory.
// done is called on another goroutine: with nil when all bytes are copied, or the copy is enqueued
// on dst's stream, or with the error of the transfer. The Engine retains dst until then. Recv does
// not block.
func (e *Engine) Recv(id uint64, dst device.Buffer, done func(error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, ok := e.begin(id, dst, done)
	if !ok {
		return
	}
	r := &Recv{Transfer: t, engine: e}
	e.recvs[id] = r
	if r.Ready() {
		e.match(r)
		return
	}
	e.Go(func() {
		fault := r.WaitReady()
		e.mu.Lock()
		defer e.mu.Unlock()
		switch {
		case e.recvs[id] != r || e.lifecycle.Err() != nil:
		case fault != nil:
			delete(e.recvs, id)
			e.lifecycle.CompleteAsync(done, e.WrapError(fault))
		default:
			e.match(r)
		}
	})
}

// match marks the memory of r as ready, and starts to pull r if the peer has described the tensor.
// If not, handleDescription starts that later. If the described length is wrong, match ends the
// channel, on another goroutine. The caller holds mu.
func (e *Engine) match(r *Recv) {
	r.memoryReady = true
	if o, ok := e.unmatched[r.ID]; ok {
		e.dropDescription(r.ID)
		if _, err := e.start(r, o, false); err != nil {
			e.Go(func() { e.fail(err) })
		}
	}
}

// start starts to pull the described tensor o into r, whose memory must be ready. reading must be
// true only on the goroutine that reads frames. If inline is true, nothing has been started: the
// caller must call Pull of the Protocol and then r.Finish. The error is a [*channel.LengthError] if
// the tensor has another length than r; the caller must then end the channel. The caller holds mu.
func (e *Engine) start(r *Recv, o Remote, reading bool) (inline bool, err error) {
	if uint64(r.Buf.Len()) != o.Size {
		return false, &channel.LengthError{Want: int64(r.Buf.Len()), Got: int64(o.Size)}
	}
	r.Memory, r.pulling = o.Memory, true
	if e.scheduler != nil {
		return e.scheduler.Start(r, reading), nil
	}
	e.pulls.Push(r)
	e.work.Signal()
	return false, nil
}

// stop ends the pulling of r early because of cause, if it has begun, without waiting. It returns
// true if the memory of r is not in use; Finish will not be called for r then. It returns false if
// the memory is in use: Finish is then called for r later. The caller holds mu.
func (e *Engine) stop(r *Recv, cause error) (idle bool) {
	idle = true
	switch {
	case !r.pulling:
	case e.scheduler != nil:
		idle = e.scheduler.Stop(r, cause)
	default:
		idle = e.pulls.Remove(func(other *Recv) bool { return other == r })
	}
	r.pulling = !idle
	return idle
}

// dropDescription removes the peer's description with the given id from e.unmatched, which holds
// descriptions without a Recv. If there is none it does nothing. The caller holds mu.
func (e *Engine) dropDescription(id uint64) {
	e.unmatchedPieces -= e.unmatched[id].Pieces
	delete(e.unmatched, id)
}

// Stopped returns nil if Pull may continue, and otherwise why it must stop: the error of the
// channel after its end, or the cause of an Abort of r. It locks mu of the Engine.
func (r *Recv) Stopped() error {
	if err := r.engine.lifecycle.Err(); err != nil {
		return err
	}
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	return r.cause
}

// Finish ends the pulling of r with err, the result that Pull has returned or would return. If err
// is nil, r completes without error, even after an Abort or the end of the channel, and the peer is
// informed unless the channel has ended; with Config.Acknowledge, r completes when the peer has
// acknowledged that, or with the cause of an Abort or of the end of the channel. If err is not nil, r completes with the cause of an Abort
// or of the end of the channel, if there was one. Otherwise, if err matches channel.ErrAborted, r
// stays and waits for an Abort; if err matches io.ErrUnexpectedEOF or channel.ErrProtocol, the channel
// ends with err, and r with it; with any other error r completes with the result of WrapError.
//
// A Scheduler calls Finish once for each Recv that it has started, unless Stop has returned true.
// The caller holds no lock that done takes.
func (r *Recv) Finish(err error) {
	e := r.engine
	e.mu.Lock()
	r.pulling = false
	ended := e.lifecycle.Err()
	switch {
	case err == nil:
		if len(e.conns) == 1 {
			e.writer.Push(Frame{Kind: Copied, ID: r.ID}) // dropped after the end of the channel
		}
		if e.Acknowledge {
			if r.cause == nil && ended == nil {
				r.pulled = true
				e.mu.Unlock()
				return
			}
			err = cmp.Or(r.cause, ended)
		}
	case r.cause != nil:
		err = r.cause
	case ended != nil:
		err = ended
	case errors.Is(err, channel.ErrAborted):
		e.mu.Unlock()
		return
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, channel.ErrProtocol):
		e.mu.Unlock()
		e.fail(err)
		return
	default:
		err = e.WrapError(err)
	}
	if e.recvs[r.ID] == r { // not aborted
		delete(e.recvs, r.ID)
	}
	e.mu.Unlock()
	r.Done(err)
	if err == nil && len(e.conns) == 2 { // this is the goroutine of pullInOrder, the only writer
		e.confirmation[0][0] = e.Protocol.Append(e.confirmation[0][0][:0], Frame{Kind: Copied, ID: r.ID})
		if err := e.conns[1].WriteFrames(e.confirmation[:]...); err != nil {
			e.fail(err)
		}
	}
}

// read reads the frames of the connection with the index conn and handles them. If reading or
// handling one fails, read ends the channel with the error and returns. It also returns after a
// frame once ReplaceReader has been called more often than reader times, because another goroutine
// reads then.
func (e *Engine) read(conn int, reader int32) {
	frames := framed.Reader{Conn: e.conns[conn], Limit: e.MaxFrame}
	for e.readers.Load() == reader {
		text, err := frames.Next()
		if err == nil {
			err = e.handle(conn, text)
		}
		if err != nil {
			e.fail(err)
			return
		}
	}
}

// ReplaceReader starts another goroutine that reads frames of the only connection, because the one
// that reads now is blocked in Pull; that goroutine ends after its Pull. The Protocol of a channel
// with one connection may call ReplaceReader while an inline Pull is running. It does not block.
func (e *Engine) ReplaceReader() {
	reader := e.readers.Add(1)
	e.Go(func() { e.read(0, reader) })
}

// handle decodes and handles text, a frame of the connection with the index conn. If the frame
// describes a small tensor that the Scheduler wants to be pulled inline, handle pulls it before it
// returns. After an error the caller must end the channel. It does not retain text. It locks mu.
func (e *Engine) handle(conn int, text []byte) error {
	f, err := e.Protocol.Decode(conn, text)
	if err != nil {
		return err
	}
	switch f.Kind {
	case Describe:
		r, err := e.handleDescription(f)
		if r != nil {
			r.Finish(e.Protocol.Pull(r))
		}
		return err
	case Copied:
		return e.handleCopied(f.ID)
	case Acknowledged:
		return e.handleAcknowledged(f.ID)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dropDescription(f.ID)
	if r := e.recvs[f.ID]; r != nil { // it waits for an Abort
		e.stop(r, channel.ErrAborted)
	}
	return nil
}

// handleDescription handles f, which describes a tensor of the peer. If a Recv whose memory is
// ready waits for the tensor, it starts to pull it; otherwise it keeps the description in
// e.unmatched. If inline is not nil, the caller must call Pull of the Protocol for it and then its
// Finish. After an error the caller must end the channel: the channel has ended, the length is
// wrong, the transfer was described twice, or too many pieces of memory are kept. It locks mu.
func (e *Engine) handleDescription(f Frame) (inline *Recv, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return nil, e.lifecycle.Err()
	}
	r := e.recvs[f.ID]
	if _, twice := e.unmatched[f.ID]; twice || r != nil && (r.pulling || r.pulled) {
		return nil, fmt.Errorf("%w: transfer %d was described twice", channel.ErrProtocol, f.ID)
	}
	if r != nil && r.memoryReady {
		now, err := e.start(r, f.Remote, true)
		if now {
			return r, nil
		}
		return nil, err
	}
	e.unmatchedPieces += f.Remote.Pieces
	if e.unmatchedPieces > maxUnmatchedPieces {
		return nil, fmt.Errorf("%w: more than %d pieces of memory without a Recv", channel.ErrProtocol, maxUnmatchedPieces)
	}
	e.unmatched[f.ID] = f.Remote
	return nil, nil
}

// handleAcknowledged completes the Recv with the given id, which has been pulled, without error. An
// id without a Recv, because that was aborted, is ignored. If it has not been pulled, the error
// matches channel.ErrProtocol, and the caller must end the channel.
func (e *Engine) handleAcknowledged(id uint64) error {
	e.mu.Lock()
	r := e.recvs[id]
	if r != nil && r.pulled {
		delete(e.recvs, id)
	}
	e.mu.Unlock()
	switch {
	case r == nil:
		return nil
	case !r.pulled:
		return fmt.Errorf("%w: transfer %d was acknowledged before it was copied", channel.ErrProtocol, id)
	}
	r.Done(nil)
	return nil
}

// pullInOrder pulls the tensors of the Recvs in e.pulls one after the other, and calls Finish for
// each, until the channel ends. It runs on a goroutine of its own, for Protocols that are not a
// Scheduler. It locks mu, and releases it while it pulls.
func (e *Engine) pullInOrder() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for !e.ended {
		if e.pulls.Len() == 0 {
			e.work.Wait()
			continue
		}
		r := e.pulls.Pop()
		e.mu.Unlock()
		r.Finish(e.Protocol.Pull(r))
		e.mu.Lock()
	}
}
