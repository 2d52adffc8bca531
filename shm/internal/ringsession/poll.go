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

// TryWrite implements transport.Stream: it copies the pieces to the ring as far as there is space.
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

// PollWritable implements transport.Poller: it polls for space and, if none comes, grows the ring.
func (s *stream) PollWritable() bool {
	s.write.mu.Lock()
	defer s.write.mu.Unlock()
	return s.writeChanged() || s.awaitSpace()
}

// Wait implements transport.Poller: it blocks until the stream is readable or Wake is called. It
// polls nothing itself; doorbells, Wake and Arm wake it.
func (s *stream) Wait() {
	for !s.woken.Swap(false) {
		polled := s.polling.Load() // by another goroutine, whose call of Arm wakes this one
		if polled && s.readable() || !polled && s.requestDoorbell(true) {
			break
		}
		<-s.read.wakeup
	}
	s.requestDoorbell(false)
}

// Wake implements transport.Poller: it makes the current or the next call of Wait return.
func (s *stream) Wake() {
	s.woken.Store(true)
	s.read.wake()
}

// PollReadable implements transport.Poller: it polls without doorbells, for a bounded time. Unless
// due is set, arrivals at other connections of the process can keep it from that. If it returns
// true, doorbells stay off until Arm is called; if false, it has called Arm.
func (s *stream) PollReadable(due bool) bool {
	if !s.polling.Load() {
		s.polling.Store(true)
		s.requestDoorbell(false)
	}
	poll := s.read.poller.Poll
	if due {
		poll = s.read.poller.PollDue
	}
	if s.readable() || poll(s.readableCheck) {
		return true
	}
	s.Arm()
	return false
}

// Arm implements transport.Poller: it turns doorbells on again after a PollReadable that returned
// true, and wakes Wait if the stream is readable already.
func (s *stream) Arm() {
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
