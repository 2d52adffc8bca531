package xth

import (
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// batch is the number of announcements that share a write.
const batch = 64

// pending is a Send that the peer knows of.
type pending struct {
	id    uint64
	done  func(error) // nil once it was aborted
	offer *offer
}

// announcer is what belongs to the goroutine that announces.
type announcer struct {
	route  *route
	frames []transport.Frame
}

// announce puts on offer what is queued and tells the peer.
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

// gather waits for a tensor to send, and offers it and those right behind it
// that are ready too.
func (e *end) gather() error {
	t, err := e.sends.Wait(e.life.Context())
	if err != nil {
		return err
	}
	fault := t.WaitReady()
	if err := e.life.Err(); err != nil {
		return err
	}
	e.announcer.frames = e.announcer.frames[:0]
	e.offer(fault)
	for range batch - 1 {
		t, ok := e.sends.Peek(0)
		if !ok || !t.Ready() {
			break
		}
		e.offer(nil)
	}
	return nil
}

// offer puts the front of the queue on offer. A tensor that was aborted, or
// whose device failed, is announced for the sake of the order but withdrawn.
func (e *end) offer(fault error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.sends.Pop()
	if t.Done != nil && fault != nil {
		e.life.Later(t.Done, e.explain(fault))
		t.Done = nil
	}
	o := e.offerOf(&t)
	e.announcer.route.add(o)
	e.announcer.add(wire.XTHDescriptor{Ptr: o.address()})
	e.pending.Push(pending{id: t.ID, done: t.Done, offer: o})
}

// offerOf returns an offer of t, one used before if possible.
func (e *end) offerOf(t *transfer.Transfer) *offer {
	if len(e.spare) == 0 {
		e.spare = append(e.spare, newOffer())
	}
	last := len(e.spare) - 1
	o := e.spare[last]
	e.spare = e.spare[:last]
	o.renew(t.Buf)
	if t.Done == nil {
		o.withdraw()
	}
	return o
}

// add appends a frame, in the memory of a frame written before.
func (a *announcer) add(d wire.XTHDescriptor) {
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

// complete takes in the peer's word that it is through with a tensor.
func (e *end) complete() error {
	for {
		n, err := e.completions.NextFrame()
		if err != nil {
			return err
		}
		if n != 0 {
			return protocolError("a completion of %d bytes", n)
		}
		if err := e.completeFront(); err != nil {
			return err
		}
	}
}

func (e *end) completeFront() error {
	done, result, err := e.popPending()
	if err != nil || done == nil {
		return err
	}
	if result != nil {
		result = e.explain(result)
	}
	done(result)
	return nil
}

// popPending takes out the oldest announced tensor, if the peer was really
// through with it.
func (e *end) popPending() (done func(error), result, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pending.Len() == 0 {
		return nil, nil, protocolError("a completion without a tensor")
	}
	result, over := e.pending.At(0).offer.outcome()
	if !over {
		return nil, nil, protocolError("a completion of a tensor that was not copied")
	}
	p := e.pending.Pop()
	if p.done != nil { // or else the goroutine that withdraws it may hold it
		e.spare = append(e.spare, p.offer)
	}
	return p.done, result, nil
}

// abortSend withdraws a tensor. The peer is told of it all the same.
func (e *end) abortSend(id uint64, cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if done, ok := e.sends.Take(id); ok {
		e.life.Later(done, cause)
		return
	}
	for i := range e.pending.Len() {
		if p := e.pending.At(i); p.id == id && p.done != nil {
			o, done := p.offer, p.done
			p.done = nil
			e.life.Go(func() {
				o.withdraw()
				done(cause)
			})
		}
	}
}

// withdrawAll ends what is still on offer. A receiver that reads of it later
// finds it withdrawn.
func (e *end) withdrawAll() {
	e.mu.Lock()
	rest := e.pending.Clear()
	e.mu.Unlock()
	for _, p := range rest {
		p.offer.withdraw()
		if p.done != nil {
			p.done(e.life.Err())
		}
	}
}
