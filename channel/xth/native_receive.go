package xth

import (
	"encoding/binary"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// receiving is a Recv. It has an offer while it is in pairs, or copying.
type receiving struct {
	transfer.Transfer
	ordered bool // the memory's stream has come to it
	offer   *offer
	copying bool
	cause   error // of an Abort meanwhile
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
		e.pair(r)
	} else {
		e.life.Go(func() { e.pairLater(r) })
	}
}

// pairLater waits for the stream on which the memory is valid.
func (e *nativeEnd) pairLater(r *receiving) {
	fault := r.WaitReady()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.recvs[r.ID] != r || e.life.Err() != nil {
		return
	}
	if fault == nil {
		r.ordered = true
		e.pair(r)
		return
	}
	delete(e.recvs, r.ID)
	e.life.Later(r.Done, e.explain(fault))
}

// pair lets r be copied into if there is an offer. The caller holds mu.
func (e *nativeEnd) pair(r *receiving) {
	if r.offer = e.offers[r.ID]; r.offer != nil {
		delete(e.offers, r.ID)
		e.pairs.Push(r)
		e.work.Broadcast()
	}
}

// abortRecv gives up a Recv. What happens to the offer is the sender's to say.
// The caller holds mu.
func (e *nativeEnd) abortRecv(r *receiving, cause error) {
	delete(e.recvs, r.ID)
	r.GiveUp()
	r.cause = cause
	if !r.copying {
		e.pairs.Remove(func(other *receiving) bool { return other == r })
		e.life.Later(r.Done, cause)
	}
}

// takeAnnouncements takes in what the peer has on offer.
func (e *nativeEnd) takeAnnouncements() error {
	defer routes.leaveReceiver(e.there)
	var text [announcementSize]byte
	for {
		if err := readFrame(e.announcements, text[:], "announcement"); err != nil {
			return err
		}
		w := word{id: binary.LittleEndian.Uint64(text[:]), address: binary.LittleEndian.Uint64(text[8:])}
		if err := e.announced(w); err != nil {
			return err
		}
	}
}

// announced notes an offer, or that it was withdrawn. What is being copied
// notices by itself.
func (e *nativeEnd) announced(w word) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w.address == 0 {
		delete(e.offers, w.id)
		return nil
	}
	o, err := e.there.claim(w.address)
	if err != nil {
		return err
	}
	if e.ended {
		return e.life.Err()
	}
	e.offers[w.id] = o
	if r := e.recvs[w.id]; r != nil && r.ordered && r.offer == nil {
		e.pair(r)
	}
	return nil
}

// copyPairs copies where both ends are ready.
func (e *nativeEnd) copyPairs() error {
	var text [completionSize]byte
	frame := transport.Frame{text[:]}
	for {
		r, err := e.nextPair()
		if err != nil {
			return err
		}
		if !e.take(r) {
			continue
		}
		binary.LittleEndian.PutUint64(text[:], r.ID)
		if err := e.completions.WriteFrames(frame); err != nil {
			return err
		}
	}
}

func (e *nativeEnd) nextPair() (*receiving, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.pairs.Len() == 0 && !e.ended {
		e.work.Wait()
	}
	if e.ended {
		return nil, e.life.Err()
	}
	r := e.pairs.Front()
	if want, got := r.Buf.Len(), r.offer.size(); want != got {
		return nil, &channel.LengthError{Want: int64(want), Got: int64(got)}
	}
	e.pairs.Pop().copying = true
	return r, nil
}

// take copies the tensor on offer, and reports whether the sender is to be told.
func (e *nativeEnd) take(r *receiving) (all bool) {
	err := copyOffer(r.Buf, r.offer, func() error { return e.interrupted(r) })
	r.offer.finish(err)
	outcome, over := e.settle(r, err)
	if over {
		r.Done(outcome)
	}
	return err == nil
}

// interrupted says why the copying has to end; nil if it does not.
func (e *nativeEnd) interrupted(r *receiving) error {
	if err := e.life.Err(); err != nil {
		return err
	}
	if r.offer.stopped() {
		return channel.ErrAborted
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return r.cause
}

// settle notes that r's memory is not touched any more, and says with what
// outcome r is over. It is not where the sender gave up, for the pipe will say
// so, nor where release is about to finish it.
func (e *nativeEnd) settle(r *receiving, err error) (outcome error, over bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r.copying, r.offer = false, nil
	switch {
	case err == nil:
		delete(e.recvs, r.ID)
		return nil, true
	case r.cause != nil:
		return r.cause, true
	case e.ended:
		return e.life.Err(), true
	}
	return nil, false
}
