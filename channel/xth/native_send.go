package xth

import (
	"encoding/binary"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Sizes of frames: an announcement is the id of a transfer and the address of
// its offer, or zero where that was withdrawn; a completion is an id.
const (
	announcementSize = 16
	completionSize   = 8
)

// sending is a Send.
type sending struct {
	transfer.Transfer
	offer *offer // nil until the memory's stream has come to it
}

// withdraw returns when nobody touches the memory any more.
func (s *sending) withdraw() {
	if s.offer != nil {
		s.offer.withdraw()
	}
}

// word is an announcement.
type word struct{ id, address uint64 }

func (e *nativeEnd) Send(id uint64, src device.Buffer, done func(error)) {
	t, fault := transfer.New(e.life.Context(), id, src, done)
	s := &sending{Transfer: t}
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.refuse(src, fault)
	switch {
	case err != nil || src.Len() == 0:
		s.GiveUp()
		e.life.Later(done, err)
		return
	case s.Ready():
		e.offer(s)
	default:
		e.life.Go(func() { e.offerLater(s) })
	}
	e.sends[id] = s
}

// offerLater waits for the stream on which the memory is valid.
func (e *nativeEnd) offerLater(s *sending) {
	fault := s.WaitReady()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sends[s.ID] != s || e.life.Err() != nil {
		return
	}
	if fault == nil {
		e.offer(s)
		return
	}
	delete(e.sends, s.ID)
	e.life.Later(s.Done, e.explain(fault))
}

// offer lets the peer copy. The caller holds mu.
func (e *nativeEnd) offer(s *sending) {
	s.offer = newOffer()
	s.offer.renew(s.Buf)
	e.here.add(s.offer)
	e.say(word{s.ID, s.offer.address()})
}

func (e *nativeEnd) say(w word) {
	e.words.Push(w)
	e.work.Broadcast()
}

// abortSend takes the memory back, and tells the peer, which may have noted the
// offer for a Recv that will not come. The caller holds mu.
func (e *nativeEnd) abortSend(s *sending, cause error) {
	delete(e.sends, s.ID)
	s.GiveUp()
	if s.offer != nil {
		e.say(word{id: s.ID})
	}
	e.life.Go(func() {
		s.withdraw()
		s.Done(cause)
	})
}

// announce tells the peer what is on offer, and what is not any more.
func (e *nativeEnd) announce() error {
	var texts [batch][announcementSize]byte
	var parts [batch][1][]byte
	var frames [batch]transport.Frame
	for {
		n, err := e.gather(&texts)
		if err != nil {
			return err
		}
		for i := range n {
			parts[i][0] = texts[i][:]
			frames[i] = parts[i][:]
		}
		if err := e.announcements.WriteFrames(frames[:n]...); err != nil {
			return err
		}
	}
}

// gather waits for words and writes down as many as there are room for.
func (e *nativeEnd) gather(texts *[batch][announcementSize]byte) (n int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.words.Len() == 0 && !e.ended {
		e.work.Wait()
	}
	if e.ended {
		return 0, e.life.Err()
	}
	for ; n < batch && e.words.Len() > 0; n++ {
		w := e.words.Pop()
		binary.LittleEndian.PutUint64(texts[n][:], w.id)
		binary.LittleEndian.PutUint64(texts[n][8:], w.address)
	}
	return n, nil
}

// takeCompletions takes in the peer's word that it has copied a tensor.
func (e *nativeEnd) takeCompletions() error {
	var text [completionSize]byte
	for {
		if err := readFrame(e.completions, text[:], "completion"); err != nil {
			return err
		}
		done, err := e.completed(binary.LittleEndian.Uint64(text[:]))
		if err != nil {
			return err
		}
		if done != nil {
			done(nil)
		}
	}
}

// completed takes out a tensor, if the peer has really copied it. One that is
// unknown was given up meanwhile.
func (e *nativeEnd) completed(id uint64) (done func(error), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sends[id]
	if s == nil {
		return nil, nil
	}
	if s.offer == nil || !s.offer.copied() {
		return nil, protocolError("a completion of a tensor that was not copied")
	}
	delete(e.sends, id)
	return s.Done, nil
}

// readFrame reads a frame that is as long as text.
func readFrame(c transport.Conn, text []byte, what string) error {
	n, err := c.NextFrame()
	if err != nil {
		return err
	}
	if n != int64(len(text)) {
		return protocolError("%s: a frame of %d bytes, want %d", what, n, len(text))
	}
	return c.ReadBody(text)
}
