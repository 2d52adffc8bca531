package xth

import (
	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// maxDescriptor is the size of an announcement with every number in its longest
// form.
const maxDescriptor = 1 + 9 + 9

// receipt is the Recv that is being served.
type receipt struct {
	id    uint64
	done  func(error) // nil if there is none, or it was aborted before
	cause error       // of an Abort meanwhile
}

// copier is what belongs to the goroutine that copies.
type copier struct {
	route      *route
	text       [maxDescriptor]byte
	part       [1][]byte // of text
	completion [1]transport.Frame
}

// receive serves the peer's announcements in order.
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

// serve copies the tensor announced by that address into the memory whose turn
// it is, for which it waits. The error is one that ends the channel.
func (e *end) serve(address uint64) error {
	t, err := e.recvs.Wait(e.life.Context())
	if err != nil {
		return err
	}
	fault := t.WaitReady()
	if err := e.life.Err(); err != nil {
		return err
	}
	o, err := e.copier.route.claim(address)
	if err != nil {
		return err
	}
	if want, got := t.Buf.Len(), o.size(); want != got {
		return &channel.LengthError{Want: int64(want), Got: int64(got)}
	}
	t = e.startReceipt()
	switch {
	case t.Done == nil: // aborted, perhaps while it waited
		o.finish(channel.ErrAborted)
	case fault != nil:
		o.finish(channel.ErrAborted)
		t.Done(e.explain(fault))
	default:
		e.take(o, &t)
	}
	e.endReceipt()
	return nil
}

// startReceipt pops the front of the queue; until endReceipt an Abort finds it
// in e.receiving.
func (e *end) startReceipt() transfer.Transfer {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.recvs.Pop()
	e.receiving = receipt{id: t.ID, done: t.Done}
	return t
}

func (e *end) endReceipt() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.receiving = receipt{}
}

// take copies the tensor on offer and tells both ends what came of it.
func (e *end) take(o *offer, t *transfer.Transfer) {
	err := e.move(t.Buf, o)
	if err != nil {
		o.finish(channel.ErrAborted)
	} else {
		o.finish(nil)
	}
	t.Done(err)
}

// move copies the tensor on offer until one of the two ends has had enough.
func (e *end) move(dst device.Buffer, o *offer) error {
	err := copyOffer(dst, o, func() error { return e.interrupted(o) })
	if err == channel.ErrAborted {
		err = e.explain(err)
	}
	return err
}

// interrupted says why the copying has to end; nil if it does not.
func (e *end) interrupted(o *offer) error {
	if err := e.life.Err(); err != nil {
		return err
	}
	if o.stopped() {
		return channel.ErrAborted
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.receiving.cause
}

// abortRecv gives up a Recv. The peer's tensor is passed over when it comes.
func (e *end) abortRecv(id uint64, cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if done, ok := e.recvs.Take(id); ok {
		e.life.Later(done, cause)
		return
	}
	if r := &e.receiving; r.done != nil && r.id == id && r.cause == nil {
		r.cause = cause
	}
}
