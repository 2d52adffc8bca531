package pipe

import (
	"errors"
	"time"
)

// The pipe's own goroutine returns messages early, too, so that Read can take their
// inline bytes straight from the stream. It then parks: who needs what is behind
// them unparks it, or reads himself. Where nobody does for a while it goes on all the
// same, into memory of the pipe's: the peer may need the room.

// errOpen says that the inline bytes of a message come first.
var errOpen = errors.New("a message is open")

// read takes the next message off the stream, if the one before it leaves that to
// this goroutine.
func (i *nativeInbox) read() (*nativeIncoming, error) {
	r := &i.reader
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.parked.Load() && !r.overdue && !i.pressed() {
		r.behind = r.opened
		return nil, errOpen
	}
	r.parked.Store(false)
	in, err := r.read(r.poll != nil && !r.overdue && !i.ending())
	r.parked.Store(err == nil && in.body == nil)
	r.behind = r.opened
	return in, err
}

// pressed reports whether to go on. The caller holds messageReader.mu.
func (i *nativeInbox) pressed() bool {
	r := &i.reader
	return r.open == nil || r.open.here != nil || r.err != nil || i.demand.Load() > 0 || i.ending()
}

// ending reports whether one end waits for the other to read to the end.
func (i *nativeInbox) ending() bool {
	parted, _ := i.pipe.control.lastWord()
	return parted || i.pipe.isClosing()
}

// patienceParked is how long a message that was returned early may take to be read.
// Where it takes longer others are not returned early until all that came is read.
const patienceParked = 20 * time.Millisecond

// park waits until somebody may need this goroutine, or for long enough.
func (i *nativeInbox) park() {
	r := &i.reader
	t := time.NewTimer(patienceParked)
	defer t.Stop()
	select {
	case <-r.resume:
	case <-t.C:
		r.overdue = r.stuck()
	case <-i.pipe.down:
		r.parked.Store(false)
	}
}

// stuck reports whether the message that the pipe's own goroutine parked behind is
// still open.
func (r *messageReader) stuck() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open != nil && r.opened == r.behind
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
