package mpt

import "github.com/tensorpipe-go/tensorpipe/transport"

// batch is how many words leave with one write at most.
const batch = 16

// say queues a word. The caller holds mu.
func (e *nativeEnd) say(w word) {
	e.words.Push(w)
	e.work.Broadcast()
}

// speak writes the words that are queued.
func (e *nativeEnd) speak() error {
	var texts [batch][]byte
	var frames [batch]transport.Frame
	for {
		n, err := e.gather(&texts)
		if err != nil {
			return err
		}
		for i := range n {
			frames[i] = append(frames[i][:0], texts[i])
		}
		if err := e.control.WriteFrames(frames[:n]...); err != nil {
			<-e.life.Context().Done() // who listens finds out what has become of the connection
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
		w := e.words.Pop()
		texts[n] = w.append(texts[n][:0])
	}
	return n, nil
}

// listen takes in what the peer says.
func (e *nativeEnd) listen() error {
	buf := make([]byte, 64)
	for {
		text, err := readFrame(e.control, buf, maxServerHello)
		if err != nil {
			return err
		}
		w, err := decodeWord(text)
		if err != nil {
			return err
		}
		if err := e.hear(w, text[1:]); err != nil {
			return err
		}
	}
}

func (e *nativeEnd) hear(w word, rest []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.ended:
		return e.life.Err()
	case e.parted != nil:
		return nil // it is about what is over
	}
	switch w.kind {
	case wordOpen:
		return e.heardOpen(w.count)
	case wordLanes:
		return e.heardLanes(rest)
	case wordOpened:
		return e.heardOpened(w.count)
	case wordOffer:
		return e.offered(w)
	case wordWithdraw:
		e.withdrawn(w)
		return nil
	case wordRest:
		return e.heardRest()
	default:
		return e.ordered(w)
	}
}
