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

	polling     atomic.Bool // a goroutine is in PollReadable, or that has returned true and Arm was not called
	interrupted atomic.Bool // PollReadable must return, unless it is due
	woken       atomic.Bool // Wait must return

	isReadable func() bool // the method readable

	inWait blockedWaiter // the caller of Wait
}

// blockedWaiter is a *wait.BusyWaiter, with busy polling, or a *wait.SharedWaiter.
type blockedWaiter interface {
	Begin()
	End()
}

// ringPair holds the ring that a stream reads from (in) and the ring that it writes to (out).
type ringPair struct {
	in  *ringReader
	out *ringWriter
}

var _ transport.Gatherer = (*stream)(nil)

func newStream(peer *peerSocket, id doorbell, rings ringPair, a Addresses, poller *wait.MemoryPoller, busy bool) *stream {
	s := &stream{peer: peer, id: id, rings: rings, addresses: a}
	s.read.init(poller.Clone().StopWhen(s.interrupted.Load), s.readChanged)
	s.write.init(poller.Clone().SpinLonger(), s.writeChanged) // a full ring waits for a reader that may be blocked
	s.isReadable = s.readable
	if busy {
		s.read.waitBusy()
		s.write.waitBusy()
		s.inWait = wait.NewBusyWaiter(s.readableUnlessPolled, s.read.wake)
	} else {
		s.inWait = wait.NewSharedWaiter(s.readableUnlessPolled, s.read.wake, s.tryRequestDoorbell)
	}
	return s
}

// Read implements net.Conn: it blocks until there are bytes in the ring, copies at most 256 KiB of
// them to p, and returns how many. For an empty p it does not block. The error is that of tryRead,
// io.EOF after the last byte if the peer has finished writing.
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

// tryRead copies bytes from the ring into p without blocking and returns how many. It returns 0 and
// nil if there are none yet. It notifies a blocked writer of the peer when enough space is free.
// The error is that of callError, even if there are bytes. If the ring is corrupt, or the system
// has no pages for it, tryRead ends the session with that error and returns it. Other errors are
// returned after all bytes: io.EOF if the peer has finished writing, errReset if the peer has
// refused or aborted the stream, or that of sessionError. For an empty p the error is that of
// callError. The caller holds read.mu.
func (s *stream) tryRead(p []byte) (int, error) {
	if err := s.callError(&s.read); err != nil || len(p) == 0 {
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

// sessionError returns the error of calls on a stream whose session has ended with the error
// failure, or nil if failure is nil. The result wraps failure and never equals io.EOF: the stream
// has not ended properly.
func sessionError(failure error) error {
	if failure == nil {
		return nil
	}
	return fmt.Errorf("session: %w", failure)
}

// callError returns why calls in direction d fail at once: the error with which the stream was
// closed here, or os.ErrDeadlineExceeded once d's deadline has passed. Otherwise it returns nil.
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

// Write implements net.Conn: it blocks until all of p is in the ring, and returns how many bytes it
// wrote, less than len(p) only with an error. It keeps no reference to p. The error is that of
// tryWrite: for example ErrClosed after CloseWrite, EPIPE if the peer reads no more, or
// os.ErrDeadlineExceeded.
func (s *stream) Write(p []byte) (int, error) {
	s.write.mu.Lock()
	defer s.write.mu.Unlock()
	return s.writeAll(p)
}

// WriteBuffers implements transport.Gatherer: it blocks until all pieces are in the ring. It
// removes the bytes written from pieces and returns their number, also if it fails. It keeps no
// reference to the pieces. The error is that of tryWrite.
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

// writeAll copies all of p to the ring and blocks while the ring is full. It returns how much it
// wrote, less than len(p) only with an error, which is that of tryWrite. The caller holds write.mu.
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
// space. The error is that of writeError, or matches ErrCorrupt; the latter ends the session. The
// caller holds write.mu.
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
// of callError for writes, that of sessionError if the session has ended, or EPIPE if the peer has
// closed the stream. Otherwise it returns nil. The caller holds write.mu.
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
// return an error. If the ring is full it may grow it. The caller holds write.mu.
func (s *stream) writeChanged() bool {
	if s.writeError() != nil {
		return true
	}
	n, err := s.rings.out.space(1, 0)
	return n > 0 || err != nil
}

// awaitSpace polls for a while until a write can go on, and then, if the ring is still full, tries
// to grow it. It reports whether a write can go on, with space or with an error. If it returns
// false, the caller should block. The caller holds write.mu.
func (s *stream) awaitSpace() bool {
	return s.write.poller.Poll(s.write.changed) || s.rings.out.growUncharged()
}

// notifyIfBlocked sends the peer a doorbell with event if blocked is 1: the flag in a ring by which
// the peer shows that its reader or writer is blocked. It clears the flag first, so that the peer
// gets at most one doorbell each time that it blocks.
func (s *stream) notifyIfBlocked(blocked *atomic.Uint32, event doorbell) {
	if blocked.Load() != 0 && blocked.CompareAndSwap(1, 0) {
		s.peer.notify(s.id | event)
	}
}

// CloseWrite implements transport.Stream. It ends writing, and returns nil: blocked and later
// writes return ErrClosed, and the peer reads the bytes written before, then io.EOF. It waits until
// a write in progress has returned.
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

// endWriting publishes that this end writes no more, and wakes the peer's reader. state is finished
// (the peer then reads io.EOF) or reset (the peer gets an error). endWriting does nothing if
// writing has ended before. The caller holds write.mu.
func (s *stream) endWriting(state uint32) {
	out := s.rings.out
	if out.header.writerState.Load() == writing {
		failpoint.Here()
		out.header.writerState.Store(state)
		failpoint.Here()
		s.notifyIfBlocked(out.header.readerBlocked, doorbellReadable)
	}
}

// Close implements net.Conn. It wakes blocked reads and writes, waits until they have returned, and
// returns nil. The peer reads the bytes that were written before, and its own writes fail. The
// stream gives up its memory; the slot can be used again once the peer has closed the stream too.
// Further calls do nothing.
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

// close stores err, which callError returns from then on, wakes blocked reads and writes, and waits
// until they have returned. With both mutexes held, it then stops the deadlines, calls last, which
// may still use the rings, releases the charge to the budget, and drops the rings. On a closed
// stream close does nothing.
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

// wake wakes the blocked read and the blocked write of the stream, which then check whether they
// can go on.
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
