package cma

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// sending is a Send.
type sending struct {
	transfer.Transfer
	word   atomic.Uint64 // read by the peer: 0 unless the memory is there for it
	value  uint64        // of word while the offer holds
	pieces [][]byte      // what is on offer
}

// word is a frame to be written.
type word struct {
	kind byte
	id   uint64
	send *sending // of an offer
}

func (e *nativeEnd) Send(id uint64, src device.Buffer, done func(error)) {
	t, fault := transfer.New(e.life.Context(), id, src, done)
	s := &sending{Transfer: t}
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.refuse(src, fault)
	if err != nil || src.Len() == 0 {
		s.GiveUp()
		e.life.Later(done, err)
		return
	}
	e.sends[id] = s
	if s.Ready() {
		e.offer(s)
	} else {
		e.life.Go(func() { e.offerLater(s) })
	}
}

// offerLater waits for the stream on which the memory is valid.
func (e *nativeEnd) offerLater(s *sending) {
	fault := s.WaitReady()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.sends[s.ID] != s || e.life.Err() != nil:
	case fault != nil:
		e.failSend(s, fault)
	default:
		e.offer(s)
	}
}

// offer lets the peer copy. The caller holds mu.
func (e *nativeEnd) offer(s *sending) {
	var err error
	if s.pieces, err = gather(s.Buf, maxListed); err != nil {
		e.failSend(s, err)
		return
	}
	s.value = 1 + rand.Uint64N(1<<64-1)
	s.word.Store(s.value)
	e.say(word{kindOffer, s.ID, s})
}

// failSend ends a Send that cannot take place. The caller holds mu.
func (e *nativeEnd) failSend(s *sending, err error) {
	delete(e.sends, s.ID)
	e.life.Later(s.Done, e.explain(err))
}

// abortSend takes the memory back, and tells the peer, which may have noted the
// offer for a Recv that will not come. The caller holds mu.
func (e *nativeEnd) abortSend(s *sending, cause error) {
	delete(e.sends, s.ID)
	s.GiveUp()
	if s.word.Swap(0) != 0 {
		e.say(word{kind: kindWithdraw, id: s.ID})
	}
	e.life.Later(s.Done, cause)
}

func (e *nativeEnd) say(w word) {
	e.words.Push(w)
	e.work.Broadcast()
}

// write tells the peer what there is to say.
func (e *nativeEnd) write() error {
	var texts [batch][]byte
	var parts [batch][1][]byte
	var frames [batch]transport.Frame
	for {
		n, err := e.gather(&texts)
		if err != nil {
			return err
		}
		for i := range n {
			parts[i][0] = texts[i]
			frames[i] = parts[i][:]
		}
		if err := e.conn.WriteFrames(frames[:n]...); err != nil {
			return err
		}
	}
}

// gather waits for words and writes down as many as there is room for.
func (e *nativeEnd) gather(texts *[batch][]byte) (n int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.words.Len() == 0 && !e.ended {
		e.work.Wait()
	}
	if e.ended {
		return 0, e.life.Err()
	}
	for ; n < batch && e.words.Len() > 0; n++ {
		w, text := e.words.Pop(), texts[n][:0]
		if w.kind == kindOffer {
			texts[n] = w.send.append(text, e.pid)
		} else {
			texts[n] = appendHead(text, w.kind, 0, w.id)
		}
	}
	return n, nil
}

// append writes the offer down. One that was withdrawn meanwhile goes out all the
// same, for the word about that is behind it.
func (s *sending) append(dst []byte, pid int) []byte {
	dst = appendOffer(dst, &offer{id: s.ID, pid: pid, address: addressOfWord(&s.word), word: s.value})
	for _, p := range s.pieces {
		dst = appendPiece(dst, segmentOf(p))
	}
	return dst
}

// copied takes in the peer's word that it has copied a tensor. One that is
// unknown was given up meanwhile.
func (e *nativeEnd) copied(id uint64) error {
	e.mu.Lock()
	s := e.sends[id]
	if s != nil && s.value != 0 {
		delete(e.sends, id)
	}
	e.mu.Unlock()
	switch {
	case s == nil:
	case s.value == 0:
		return protocolError("a tensor was copied that was not on offer")
	default:
		s.Done(nil)
	}
	return nil
}
