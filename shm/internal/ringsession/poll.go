package ringsession

import (
	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

var _ transport.Poller = (*stream)(nil)

// TryRead implements transport.Poller: it reads the bytes that are in the ring, at most one batch.
func (s *stream) TryRead(p []byte) (int, error) {
	s.read.mu.Lock()
	defer s.read.mu.Unlock()
	return s.tryRead(p)
}

// TryWrite implements transport.Poller: it copies the pieces to the ring as far as there is space.
func (s *stream) TryWrite(pieces ...[]byte) (int, error) {
	s.write.mu.Lock()
	defer s.write.mu.Unlock()
	if err := s.writeError(); err != nil {
		return 0, err
	}
	out := s.rings.out
	n, err := out.writeAll(pieces, func() { s.notifyIfBlocked(out.header.readerBlocked, doorbellReadable) })
	if err != nil {
		s.peer.end(err)
	} else if n > 0 {
		s.write.poller.Arrived()
	}
	return n, err
}

// Room implements transport.Poller: it polls for space and, if none comes, grows the ring.
func (s *stream) Room() bool {
	s.write.mu.Lock()
	defer s.write.mu.Unlock()
	return s.writeChanged() || s.awaitSpace()
}

// Await implements transport.Poller: it blocks until the stream is readable or Wake is called. It
// polls nothing itself; doorbells, Wake and Mind wake it.
func (s *stream) Await() {
	for !s.awaitDone() {
		<-s.read.wakeup
	}
	s.requestDoorbell(false)
}

// awaitDone reports whether Await can return: Wake was called or the stream is readable. If it
// returns false, something will wake Await: a doorbell or, while another goroutine polls the
// stream, that goroutine's call of Mind.
func (s *stream) awaitDone() bool {
	if s.woken.Swap(false) {
		return true
	}
	if s.polling.Load() {
		return s.readable()
	}
	return s.requestDoorbell(true)
}

// Wake implements transport.Poller: it makes the current or the next call of Await return.
func (s *stream) Wake() {
	s.woken.Store(true)
	s.read.wake()
}

// Look implements transport.Poller: it polls for a while, unless arrivals at other connections of
// the process keep it from that.
func (s *stream) Look() bool { return s.pollReadable(s.read.poller.Poll) }

// LookDue implements transport.Poller: it polls like Look, and even while other connections of the
// process are active.
func (s *stream) LookDue() bool { return s.pollReadable(s.read.poller.PollDue) }

// pollReadable calls poll until the stream is readable, without doorbells, and reports whether it
// is. If it returns true, doorbells stay off until Mind is called; if false, it has called Mind.
func (s *stream) pollReadable(poll func(ready func() bool) bool) bool {
	if !s.polling.Load() {
		s.polling.Store(true)
		s.requestDoorbell(false)
	}
	if s.readable() || poll(s.readableCheck) {
		return true
	}
	s.Mind()
	return false
}

// Mind implements transport.Poller: it turns doorbells on again after a Look that returned true,
// and wakes Await if the stream is readable already.
func (s *stream) Mind() {
	s.polling.Store(false)
	if s.requestDoorbell(true) {
		s.read.wake()
	}
}

// requestDoorbell sets or, if on is false, clears the flag in the ring that makes the peer send a
// doorbell when the stream becomes readable. It reports whether the stream is readable already, or
// closed.
func (s *stream) requestDoorbell(on bool) bool {
	s.read.mu.Lock()
	defer s.read.mu.Unlock()
	in := s.rings.in
	if in == nil {
		return true
	}
	if on {
		failpoint.Here()
		in.header.readerBlocked.Store(1)
		failpoint.Here()
	} else if in.header.readerBlocked.Load() != 0 {
		failpoint.Here()
		in.header.readerBlocked.Store(0)
	}
	return s.readChanged()
}

// readable reports whether TryRead returns bytes or an error. It acquires read.mu.
func (s *stream) readable() bool {
	s.read.mu.Lock()
	defer s.read.mu.Unlock()
	return s.readChanged()
}
