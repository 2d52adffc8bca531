package pipe

import "errors"

// The pipe's own goroutine returns messages early, too, so that Read can take their
// inline bytes straight from the stream. It then parks: who needs what is behind
// them unparks it, or reads himself.

// errOpen says that the inline bytes of a message come first.
var errOpen = errors.New("a message is open")

// read takes the next message off the stream, if the one before it leaves that to
// this goroutine.
func (i *nativeInbox) read() (*nativeIncoming, error) {
	r := &i.reader
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.parked.Load() && !i.pressed() {
		return nil, errOpen
	}
	r.parked.Store(false)
	in, err := r.read(r.poll != nil && !i.ending())
	r.parked.Store(err == nil && in.body == nil)
	return in, err
}

// pressed reports whether to go on. The caller holds messageReader.mu.
func (i *nativeInbox) pressed() bool {
	r := &i.reader
	return r.open == nil || r.open.here != nil || r.err != nil || i.waiters.Load() > 0 || i.ending()
}

// ending reports whether one end waits for the other to read to the end.
func (i *nativeInbox) ending() bool {
	parted, _ := i.pipe.control.lastWord()
	return parted || i.pipe.isClosing()
}

// park waits until somebody may need this goroutine.
func (i *nativeInbox) park() {
	select {
	case <-i.reader.resume:
	case <-i.pipe.down:
		i.reader.parked.Store(false)
	}
}

// unpark has a parked goroutine look around.
func (r *messageReader) unpark() {
	if !r.parked.Load() {
		return
	}
	select {
	case r.resume <- struct{}{}:
	default:
	}
}
