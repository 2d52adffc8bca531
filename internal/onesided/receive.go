package onesided

import (
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
	cause       error // of an Abort
}

// Recv implements [channel.Channel].
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

// match starts to pull r, whose memory is ready, if the peer has described the tensor; otherwise
// handleDescription will. The caller holds mu.
func (e *Engine) match(r *Recv) {
	r.memoryReady = true
	if o, ok := e.unmatched[r.ID]; ok {
		e.dropDescription(r.ID)
		if _, err := e.start(r, o, false); err != nil {
			e.Go(func() { e.fail(err) })
		}
	}
}

// start starts to pull o into r, whose memory is ready. reading is set on the goroutine that reads
// frames. If inline is true the caller must call Pull and Finish. The error is a [*channel.LengthError]
// and ends the channel. The caller holds mu.
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

// stop stops the pulling of r, if it is pulled, because of cause. It returns true if the memory of r is
// not in use any more; otherwise Finish will be called for r. The caller holds mu.
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

// dropDescription removes the description with that id from unmatched, if it is there. The caller holds
// mu.
func (e *Engine) dropDescription(id uint64) {
	e.unmatchedPieces -= e.unmatched[id].Pieces
	delete(e.unmatched, id)
}

// Stopped returns why Pull must stop, or nil: the error of the channel, or the cause of an Abort.
func (r *Recv) Stopped() error {
	if err := r.engine.lifecycle.Err(); err != nil {
		return err
	}
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	return r.cause
}

// Finish ends the pulling of r with the error that Pull documents. It completes r and informs the peer,
// unless r must wait for an Abort or for the end of the channel. If err is nil r completes without
// error, even after an Abort or the end of the channel, because the memory has all bytes. A Scheduler
// calls Finish once for each Recv, unless Stop has returned true; the caller holds no lock that done
// takes.
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
	case r.cause != nil:
		err = r.cause
	case ended != nil:
		err = ended
	case errors.Is(err, channel.ErrAborted):
		e.mu.Unlock()
		return
	case errors.Is(err, io.ErrUnexpectedEOF):
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

// read reads and handles the frames of a connection until one fails, and ends the channel with the
// error. It also returns when another reader than the one with that number has been started.
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

// ReplaceReader starts another goroutine that reads frames, because the present one is blocked in Pull.
// That one ends after Pull. The Protocol of a channel with one connection may call it during an inline
// Pull.
func (e *Engine) ReplaceReader() {
	reader := e.readers.Add(1)
	e.Go(func() { e.read(0, reader) })
}

// handle handles a frame of a connection. It returns the error that ends the channel.
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
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dropDescription(f.ID)
	if r := e.recvs[f.ID]; r != nil { // it waits for an Abort
		e.stop(r, channel.ErrAborted)
	}
	return nil
}

// handleDescription starts to pull a described tensor if there is a ready Recv for it, and otherwise
// keeps the description. If it returns a Recv the caller must call Pull and Finish. An error ends the
// channel.
func (e *Engine) handleDescription(f Frame) (inline *Recv, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return nil, e.lifecycle.Err()
	}
	r := e.recvs[f.ID]
	if _, twice := e.unmatched[f.ID]; twice || r != nil && r.pulling {
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

// pullInOrder pulls the tensors in pulls one after the other, until the channel ends.
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
