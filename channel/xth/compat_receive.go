package xth

import (
	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// maxDescriptor is the size of an announcement with every number in its longest form.
const maxDescriptor = 1 + 9 + 9

// activeRecv is the Recv in progress, in end.current. end.mu guards it.
type activeRecv struct {
	id    uint64
	done  func(error) // nil if there is none, or if it was aborted before
	cause error       // cause of an Abort during the copy
}

// copier is the state of the goroutine that runs receive.
type copier struct {
	route      *route
	text       [maxDescriptor]byte
	part       [1][]byte // of text
	completion [1]transport.Frame
}

// receive reads announcements, copies each announced tensor into the memory of the next Recv, and
// sends a completion after each, even if the tensor was not copied because one of the two ends
// aborted it. It continues until the channel fails or ends, and returns the error, which is never
// nil.
func (e *end) receive() error {
	for {
		address, err := e.nextAnnouncement()
		if err != nil {
			return err
		}
		if err := e.serve(address); err != nil {
			return err
		}
		if err := e.completions.WriteFrames(e.copier.completion[:]...); err != nil {
			return err
		}
	}
}

func (e *end) nextAnnouncement() (address uint64, err error) {
	n, err := e.announcements.NextFrame()
	if err != nil {
		return 0, err
	}
	if n > maxDescriptor {
		return 0, protocolError("an announcement of %d bytes", n)
	}
	c := &e.copier
	c.part[0] = c.text[:n]
	if err := e.announcements.ReadBody(c.part[:]...); err != nil {
		return 0, err
	}
	d, err := wire.DecodeXTHDescriptor(c.part[0], wire.Limits{})
	if err != nil {
		return 0, protocolError("%w", err)
	}
	return d.Ptr, nil
}

// serve waits for the next Recv and its memory, copies the tensor that is announced at address into
// it, and completes the Recv. If the Recv was aborted, or its stream failed, serve copies nothing
// and reports that to the sender in the description. An error ends the channel: the channel has
// ended, address is invalid, the sender has closed, or the length is wrong. The Recv then stays
// queued.
func (e *end) serve(address uint64) error {
	t, err := e.recvs.Wait(e.lifecycle.Context())
	if err != nil {
		return err
	}
	fault := t.WaitReady()
	if err := e.lifecycle.Err(); err != nil {
		return err
	}
	o, err := e.copier.route.claim(address)
	if err != nil {
		return err
	}
	if want, got := t.Buf.Len(), o.size(); want != got {
		return &channel.LengthError{Want: int64(want), Got: int64(got)}
	}
	t = e.beginActiveRecv()
	switch {
	case t.Done == nil: // aborted, possibly during WaitReady
		o.finish(channel.ErrAborted)
	case fault != nil:
		o.finish(channel.ErrAborted)
		t.Done(e.wrapError(fault))
	default:
		e.copyTensor(o, &t)
	}
	e.endActiveRecv()
	return nil
}

// beginActiveRecv removes the first transfer of e.recvs, stores its id and done function in
// e.current, where Abort finds them, and returns it. Its Done is nil if it was aborted before. The
// caller must call endActiveRecv later. It locks e.mu.
func (e *end) beginActiveRecv() transfer.Transfer {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.recvs.Pop()
	e.current = activeRecv{id: t.ID, done: t.Done}
	return t
}

func (e *end) endActiveRecv() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.current = activeRecv{}
}

// copyTensor copies the tensor that o describes into the memory of t, reports to the sender in o
// whether all bytes were copied, and calls t.Done with the error of the copy, or nil.
func (e *end) copyTensor(o *description, t *transfer.Transfer) {
	err := e.copyFrom(o, t.Buf)
	if err == nil {
		o.finish(nil)
	} else {
		o.finish(channel.ErrAborted)
	}
	t.Done(err)
}

// copyFrom copies the tensor that o describes to dst, and returns nil after the last byte. After
// each whole chunk it stops if the channel has ended or the Recv was aborted, and returns the
// cause. It also stops if the sender has revoked o; the error then matches channel.ErrAborted. It
// does not report the outcome to the sender. A copy between devices is enqueued and never stops.
func (e *end) copyFrom(o *description, dst device.Buffer) error {
	err := copyDescribed(e.kind, dst, o, func() error { return e.interrupted(o) })
	if err == channel.ErrAborted || err != nil && e.kind != nil {
		err = e.wrapError(err)
	}
	return err
}

// interrupted returns nil if the copy of the tensor that o describes may continue, and otherwise
// why not: the error of the channel after its end, channel.ErrAborted if the sender has revoked o,
// or the cause of an Abort of the Recv.
func (e *end) interrupted(o *description) error {
	if err := e.lifecycle.Err(); err != nil {
		return err
	}
	if o.stopRequested() {
		return channel.ErrAborted
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.current.cause
}

// abortRecv cancels the Recv with the given id. A queued Recv completes with cause on another
// goroutine, and the peer's tensor is not copied when it is announced. A Recv that is being copied
// completes with cause when the copy has stopped, unless the copy ends or fails first. An unknown
// id is ignored.
func (e *end) abortRecv(id uint64, cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if done, ok := e.recvs.Cancel(id); ok {
		e.lifecycle.CompleteAsync(done, cause)
		return
	}
	if r := &e.current; r.done != nil && r.id == id && r.cause == nil {
		r.cause = cause
	}
}
