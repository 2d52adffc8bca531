package ringsession

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// errReset is the error of a stream that the peer aborted or refused.
var errReset = os.NewSyscallError("ring", syscall.ECONNRESET)

// stream implements transport.Stream, transport.Gatherer and transport.Poller on two rings. The
// methods of transport.Poller are in poll.go.
type stream struct {
	peer      *peerSocket
	id        doorbell // slot and owner, as in the doorbells that this end sends
	rings     ringPair // empty after Close
	addresses Addresses
	onClose   func(*stream) // called once, with both mutexes held

	closed      atomic.Pointer[error] // nil until the stream is closed here, then the error of all calls
	writeClosed atomic.Bool           // CloseWrite was called
	closing     sync.Once
	read, write direction // their mutexes guard rings.in and rings.out

	polling       atomic.Bool // a goroutine is in PollReadable, or that has returned true and Arm was not called
	woken         atomic.Bool // Wait must return
	readableCheck func() bool // the method readable
}

// ringPair holds the ring that a stream reads from (in) and the ring that it writes to (out).
type ringPair struct {
	in  *ringReader
	out *ringWriter
}

var _ transport.Gatherer = (*stream)(nil)

func newStream(peer *peerSocket, id doorbell, rings ringPair, a Addresses, poller *wait.MemoryPoller) *stream {
	s := &stream{peer: peer, id: id, rings: rings, addresses: a}
	s.read.init(poller.Clone(), s.readChanged)
	s.write.init(poller.Clone().SpinLonger(), s.writeChanged) // a full ring waits for a reader that may be blocked
	s.readableCheck = s.readable
	return s
}

// Read implements net.Conn: it blocks until there are bytes in the ring, and returns io.EOF once
// the peer has finished writing and the ring is empty.
func (s *stream) Read(p []byte) (int, error) {
	s.read.mu.Lock()
	defer s.read.mu.Unlock()
	for {
		n, err := s.tryRead(p)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		s.read.wait(s.rings.in.header.readerBlocked)
	}
}

// tryRead reads available bytes into p without blocking and returns how many. It returns 0 and nil
// if there are none yet. Bytes that were written before the end of the stream or of the session are
// returned before that end's error. The caller holds read.mu.
func (s *stream) tryRead(p []byte) (int, error) {
	if err := s.callError(&s.read); err != nil {
		return 0, err
	}
	failure := s.peer.failure()
	in := s.rings.in
	state := in.header.writerState.Load()
	n, err := in.read(p)
	switch {
	case err != nil:
		s.peer.end(err)
		return 0, err
	case n > 0:
		s.read.poller.Arrived()
		if in.shouldWakeWriter() {
			s.notifyIfBlocked(in.header.writerBlocked, doorbellWritable)
		}
		return n, nil
	case state == finished:
		return 0, io.EOF
	case state != writing:
		return 0, errReset
	}
	return 0, sessionError(failure)
}

// sessionError returns the error of calls on a stream whose session has ended with failure, or nil
// if failure is nil. It wraps failure and never equals io.EOF: the stream has not ended properly.
func sessionError(failure error) error {
	if failure == nil {
		return nil
	}
	return fmt.Errorf("session: %w", failure)
}

// callError returns the error of all calls in direction d: that of Close, once the stream is closed
// here, or os.ErrDeadlineExceeded once d's deadline has passed. Otherwise it returns nil.
func (s *stream) callError(d *direction) error {
	switch {
	case s.closed.Load() != nil:
		return *s.closed.Load()
	case d.deadline.Passed():
		return os.ErrDeadlineExceeded
	}
	return nil
}

// readChanged reports whether a blocked read can go on, because tryRead would return bytes or an
// error. The caller holds read.mu.
func (s *stream) readChanged() bool {
	if s.callError(&s.read) != nil || s.peer.failure() != nil {
		return true
	}
	in := s.rings.in
	n, err := in.available()
	return n > 0 || err != nil || in.header.writerState.Load() != writing
}

// Write implements net.Conn: it blocks until all of p is in the ring.
func (s *stream) Write(p []byte) (int, error) {
	s.write.mu.Lock()
	defer s.write.mu.Unlock()
	return s.writeAll(p)
}

// WriteBuffers implements transport.Gatherer: it blocks until all pieces are in the ring.
func (s *stream) WriteBuffers(pieces *net.Buffers) (total int64, err error) {
	s.write.mu.Lock()
	defer s.write.mu.Unlock()
	for len(*pieces) > 0 {
		p := (*pieces)[0]
		n, err := s.writeAll(p)
		total += int64(n)
		if err != nil {
			(*pieces)[0] = p[n:]
			return total, err
		}
		(*pieces)[0] = nil
		*pieces = (*pieces)[1:]
	}
	return total, nil
}

// writeAll copies p to the ring and blocks until all of it is there. It returns how much it wrote,
// less than len(p) only with an error. The caller holds write.mu.
func (s *stream) writeAll(p []byte) (n int, err error) {
	for {
		k, err := s.tryWrite(p[n:])
		n += k
		if err != nil || n == len(p) {
			return n, err
		}
		if k == 0 && !s.awaitSpace() {
			s.write.block(s.rings.out.header.writerBlocked)
		}
	}
}

// tryWrite copies p to the ring as far as there is space, at most one batch of it, and wakes the
// peer's reader if that is blocked. It returns how much it wrote, possibly 0, and does not wait for
// space. The caller holds write.mu.
func (s *stream) tryWrite(p []byte) (int, error) {
	if err := s.writeError(); err != nil {
		return 0, err
	}
	out := s.rings.out
	n, err := out.write(p)
	if err != nil {
		s.peer.end(err)
		return 0, err
	}
	if n > 0 {
		s.notifyIfBlocked(out.header.readerBlocked, doorbellReadable)
	}
	return n, nil
}

// writeError returns why writes fail even if there is space: ErrClosed after CloseWrite, the error
// of callError, the error of the session if that has ended, or EPIPE if the peer reads no more.
// Otherwise it returns nil. The caller holds write.mu.
func (s *stream) writeError() error {
	if s.writeClosed.Load() {
		return transport.ErrClosed
	}
	if err := s.callError(&s.write); err != nil {
		return err
	}
	if failure := s.peer.failure(); failure != nil {
		return sessionError(failure)
	}
	if s.rings.out.header.readerClosed.Load() != 0 {
		return os.NewSyscallError("ring", syscall.EPIPE)
	}
	return nil
}

// writeChanged reports whether a blocked write can go on, because tryWrite would write bytes or
// return an error. The caller holds write.mu.
func (s *stream) writeChanged() bool {
	if s.writeError() != nil {
		return true
	}
	n, err := s.rings.out.space(1, 0)
	return n > 0 || err != nil
}

// awaitSpace polls for a while until there is space to write, or else grows the ring, and reports
// whether a write can go on. If it returns false the caller should block. The caller holds
// write.mu.
func (s *stream) awaitSpace() bool {
	return s.write.poller.Poll(s.write.changed) || s.rings.out.growUncharged()
}

// notifyIfBlocked sends the peer a doorbell with the event if blocked, a flag in a ring, shows that
// the peer is blocked. It clears the flag, so that the peer gets one doorbell each time that it
// blocks.
func (s *stream) notifyIfBlocked(blocked *atomic.Uint32, event doorbell) {
	if blocked.Load() != 0 && blocked.CompareAndSwap(1, 0) {
		s.peer.notify(s.id | event)
	}
}

// CloseWrite implements transport.Stream. A blocked write returns ErrClosed; the peer reads what
// was written, then io.EOF.
func (s *stream) CloseWrite() error {
	s.writeClosed.Store(true)
	s.write.wake()
	s.write.mu.Lock()
	defer s.write.mu.Unlock()
	if s.closed.Load() == nil {
		s.endWriting(finished)
	}
	return nil
}

// endWriting publishes state, finished or reset, as the end of what this end writes, and wakes the
// peer's reader. It does nothing if writing has ended before. The caller holds write.mu.
func (s *stream) endWriting(state uint32) {
	out := s.rings.out
	if out.header.writerState.Load() == writing {
		failpoint.Here()
		out.header.writerState.Store(state)
		failpoint.Here()
		s.notifyIfBlocked(out.header.readerBlocked, doorbellReadable)
	}
}

// Close implements net.Conn. It wakes blocked calls and waits until they have returned. The peer
// reads the bytes that were written before, and its own writes fail. The slot of the stream becomes
// free.
func (s *stream) Close() error {
	s.close(transport.ErrClosed, func() {
		s.endWriting(finished)
		failpoint.Here()
		s.rings.in.header.readerClosed.Store(1)
		failpoint.Here()
		s.notifyIfBlocked(s.rings.in.header.writerBlocked, doorbellWritable)
		s.onClose(s)
	})
	return nil
}

// close makes all calls fail with err, and waits until those in progress have returned. It then
// calls last, with both mutexes held; last may still use the rings. On a closed stream close does
// nothing.
func (s *stream) close(err error, last func()) {
	s.closing.Do(func() {
		s.closed.Store(&err)
		s.wake()
		s.read.mu.Lock()
		defer s.read.mu.Unlock()
		s.write.mu.Lock()
		defer s.write.mu.Unlock()
		s.read.deadline.Stop()
		s.write.deadline.Stop()
		last()
		if s.rings.out != nil {
			s.rings.out.releaseCharge()
		}
		s.rings = ringPair{}
	})
}

// wake makes the blocked calls of both directions check their state again.
func (s *stream) wake() {
	s.read.wake()
	s.write.wake()
}

func (s *stream) LocalAddr() net.Addr  { return s.addresses.Local }
func (s *stream) RemoteAddr() net.Addr { return s.addresses.Remote }

func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

func (s *stream) SetReadDeadline(t time.Time) error { return s.setDeadline(&s.read, t) }

func (s *stream) SetWriteDeadline(t time.Time) error { return s.setDeadline(&s.write, t) }

func (s *stream) setDeadline(d *direction, t time.Time) error {
	if closed := s.closed.Load(); closed != nil {
		return *closed
	}
	d.deadline.Set(t)
	return nil
}
