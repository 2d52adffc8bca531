package cma

import (
	"os"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// batch is the number of announcements that share a write.
const batch = 64

// pending is a Send that the peer knows of, and may read.
type pending struct {
	transfer.Transfer
	whole []byte // what was announced: the tensor, or its pieces put together
}

// announcer is what belongs to the goroutine that announces.
type announcer struct {
	frames []transport.Frame
}

// announce tells the peer what is queued.
func (e *end) announce() error {
	for {
		if err := e.gather(); err != nil {
			return err
		}
		if err := e.announcements.WriteFrames(e.announcer.frames...); err != nil {
			return err
		}
	}
}

// gather waits for a tensor to send, and takes it and those right behind it that
// are ready too.
func (e *end) gather() error {
	t, err := e.sends.Wait(e.life.Context())
	if err == nil {
		err = t.WaitReady()
	}
	e.announcer.frames = e.announcer.frames[:0]
	for n, ok := 0, true; ok && err == nil; {
		err = e.announceFront()
		if n++; n == batch {
			break
		}
		t, ok = e.sends.Peek(0)
		ok = ok && t.Ready()
	}
	return err
}

// announceFront lets the peer read the front of the queue.
func (e *end) announceFront() error {
	if err := e.life.Err(); err != nil {
		return err
	}
	t, _ := e.sends.Peek(0)
	whole, err := contiguous(t.Buf)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.pending.Push(pending{e.sends.Pop(), whole})
	e.mu.Unlock()
	e.announcer.add(wire.CMADescriptor{PID: uint32(os.Getpid()), Ptr: segmentOf(whole).address})
	return nil
}

// contiguous returns the tensor as one piece of memory, a copy if it is not.
func contiguous(buf device.Buffer) ([]byte, error) {
	if p, ok := buf.Contiguous(); ok {
		return p, nil
	}
	pieces, err := gather(buf, 1)
	if err != nil {
		return nil, err
	}
	return pieces[0], nil
}

// add appends a frame, in the memory of a frame written before.
func (a *announcer) add(d wire.CMADescriptor) {
	n := len(a.frames)
	if n == cap(a.frames) {
		a.frames = append(a.frames, nil)
	}
	a.frames = a.frames[:n+1]
	if a.frames[n] == nil {
		a.frames[n] = make(transport.Frame, 1)
	}
	a.frames[n][0] = d.Append(a.frames[n][0][:0])
}

// complete takes in the peer's word that it has copied a tensor. That comes also
// while this end hangs up.
func (e *end) complete() error {
	for {
		n, err := e.completions.NextFrame()
		if err != nil {
			return err
		}
		if n != 0 {
			return protocolError("a completion of %d bytes", n)
		}
		done, ok := e.popPending()
		if !ok {
			return protocolError("a completion without a tensor")
		}
		done(nil)
	}
}

// popPending takes out the oldest announced tensor.
func (e *end) popPending() (done func(error), ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pending.Len() == 0 {
		return nil, false
	}
	return e.pending.Pop().Done, true
}

func (e *end) isPending(id uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.pending.Len() {
		if e.pending.At(i).ID == id {
			return true
		}
	}
	return false
}

func (e *end) anyPending() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pending.Len() > 0
}

// failPending ends what was announced, once no peer that keeps to the protocol
// reads it.
func (e *end) failPending() {
	e.mu.Lock()
	rest := e.pending.Clear()
	e.mu.Unlock()
	for _, p := range rest {
		p.Done(e.life.Err())
	}
}
