package ringsession

import (
	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

var _ transport.WritePoller = (*stream)(nil)

// TryRead implements transport.Poller: it copies bytes that are in the ring to p, at most 256 KiB,
// and returns how many. It returns 0 and nil if there are none yet. It does not wait for bytes, but
// it does wait until a Read in progress has returned. The error is that of tryRead, io.EOF after
// the last byte if the peer has finished writing.
func (s *stream) TryRead(p []byte) (int, error) {
	s.read.mu.Lock()
	defer s.read.mu.Unlock()
	return s.tryRead(p)
}

// TryWrite implements transport.Stream: it copies the pieces to the ring as far as there is space,
// notifies a blocked reader, and returns the number of bytes copied, possibly 0. It does not wait
// for space, but it does wait until a Write in progress has returned. It does not keep the pieces.
// The error is that of writeError, or matches ErrCorrupt, which ends the session; the number counts
// then too.
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

// PollWritable implements transport.WritePoller: it polls for space in the ring for a bounded time and,
// if none comes, tries to grow the ring. It reports whether TryWrite can go on: there is space, or
// TryWrite returns an error.
func (s *stream) PollWritable() bool {
	s.write.mu.Lock()
	defer s.write.mu.Unlock()
	return s.writeChanged() || s.awaitSpace()
}

// Wait implements transport.Poller: it blocks until TryRead has bytes or an error to return, or
// Wake is called. It does not poll itself. While it blocks, the peer sends a doorbell when the
// stream becomes readable, unless a goroutine polls for it: with busy polling, or one that spins for
// another stream (wait.SharedWaiter). While another goroutine polls this stream (PollReadable) the peer
// sends none, and that goroutine's call of Arm wakes Wait.
func (s *stream) Wait() {
	for !s.woken.Swap(false) {
		polled := s.polling.Load() // by another goroutine, whose call of Arm wakes this one
		if polled && s.readable() || !polled && s.requestDoorbell(true) {
			break
		}
		s.inWait.Begin()
		<-s.read.wakeup
		s.inWait.End()
	}
	s.requestDoorbell(false)
}

// Wake implements transport.Poller: it makes the current or the next call of Wait return.
func (s *stream) Wake() {
	s.woken.Store(true)
	s.read.wake()
}

// PollReadable implements transport.Poller: it polls for a bounded time, with doorbells off, until
// TryRead has bytes or an error to return, and reports whether it has. Unless due is true, it may
// give up early while other connections of the process are active. If it returns true, doorbells
// stay off until Arm is called. Before it returns false, it calls Arm itself.
func (s *stream) PollReadable(due bool) bool {
	if !s.polling.Load() {
		s.polling.Store(true)
		s.requestDoorbell(false)
	}
	if s.readable() {
		return true
	}
	if due {
		s.interrupted.Store(false) // it was meant for an earlier poll
		if s.read.poller.PollDue(s.isReadable) {
			return true
		}
	} else if s.read.poller.PollForAll(s.isReadable) {
		return true
	}
	s.interrupted.Store(false)
	s.Arm()
	return false
}

// ExpectOthers implements transport.Poller: it does nothing, since each stream has doorbells of its own.
func (s *stream) ExpectOthers() {}

// Readable implements transport.Poller.
func (s *stream) Readable() bool { return s.readable() }

// Interrupt implements transport.Poller.
func (s *stream) Interrupt() { s.interrupted.Store(true) }

// Arm implements transport.Poller: it turns doorbells on again after a PollReadable that returned
// true. It wakes Wait if TryRead already has bytes or an error to return.
func (s *stream) Arm() {
	s.polling.Store(false)
	if s.requestDoorbell(true) {
		s.read.wake()
	}
}

// requestDoorbell sets the flag in the ring that makes the peer send a doorbell when the stream
// becomes readable, or clears the flag if on is false. If on is true, it returns true if a read need not wait,
// because tryRead has bytes or an error to return. After Close it only returns true. With busy polling
// it only clears the flag. It acquires read.mu.
func (s *stream) requestDoorbell(on bool) bool {
	s.read.mu.Lock()
	defer s.read.mu.Unlock()
	return s.setDoorbell(on)
}

// setDoorbell does what requestDoorbell does, for a caller that holds read.mu.
func (s *stream) setDoorbell(on bool) bool {
	in := s.rings.in
	if in == nil {
		return true
	}
	if on && s.read.busy == nil {
		failpoint.Here()
		in.header.readerBlocked.Store(1)
		failpoint.Here()
	} else if in.header.readerBlocked.Load() != 0 {
		failpoint.Here()
		in.header.readerBlocked.Store(0)
	}
	return on && s.readChanged()
}

// tryRequestDoorbell does what requestDoorbell does, without blocking, for a goroutine that polls for the
// caller of Wait. If on is true, it wakes Wait if a read need not wait, or if another goroutine reads. It
// does nothing while another goroutine polls the stream, whose call of Arm requests the doorbell.
func (s *stream) tryRequestDoorbell(on bool) {
	if s.polling.Load() {
		return
	}
	locked := s.read.mu.TryLock()
	mustWake := !locked || s.setDoorbell(on)
	if locked {
		s.read.mu.Unlock()
	}
	if on && mustWake {
		s.read.wake()
	}
}

// readable reports whether TryRead has bytes or an error to return. It acquires read.mu.
func (s *stream) readable() bool {
	s.read.mu.Lock()
	defer s.read.mu.Unlock()
	return s.readChanged()
}

// readableUnlessPolled reports whether the caller of Wait can go on: TryRead has bytes or an error to return,
// and no other goroutine polls or reads. It does not block.
func (s *stream) readableUnlessPolled() bool {
	if s.polling.Load() || !s.read.mu.TryLock() {
		return false
	}
	defer s.read.mu.Unlock()
	return s.rings.in == nil || s.readChanged()
}
