package ringnet

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

	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// errReset is the error of a stream that the peer gave up, or refused.
var errReset = os.NewSyscallError("ring", syscall.ECONNRESET)

// stream implements transport.Stream on two rings.
type stream struct {
	bond      *bond
	place     bell // and whose, as the peer is told
	ends      ends
	onClose   func(*stream)         // called once, with both turns held
	over      atomic.Pointer[error] // why no call does anything any more
	finished  atomic.Bool           // CloseWrite
	closing   sync.Once
	read      side
	write     side
	looking   atomic.Bool // somebody looks, or has found something and not called Mind
	woken     atomic.Bool // Await is to return
	look      func() bool // readable
	addresses Addresses
}

// ends are the rings of a stream, nil after Close. Each is used by who has the
// turn of its side.
type ends struct {
	in  *readerEnd
	out *writerEnd
}

var _ transport.Gatherer = (*stream)(nil)

func newStream(b *bond, place bell, e ends, a Addresses, seat *wait.Memory) *stream {
	s := &stream{bond: b, place: place, ends: e, addresses: a}
	s.read.init(seat.Sibling(), s.readChanged)
	s.write.init(seat.Sibling().Patient(), s.writeChanged) // a full ring waits for a reader that may sleep
	s.look = s.readable
	return s
}

func (s *stream) Read(p []byte) (int, error) {
	s.read.turn.Lock()
	defer s.read.turn.Unlock()
	for {
		n, err := s.tryRead(p)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		s.read.await(s.ends.in.reader)
	}
}

// tryRead reads what is there. What the ends of the writer and of the bond mean
// is decided by what was there when they were seen.
func (s *stream) tryRead(p []byte) (int, error) {
	if err := s.refused(&s.read); err != nil {
		return 0, err
	}
	gone := s.bond.failure()
	in := s.ends.in
	end := in.finished.Load()
	n, err := in.take(p)
	switch {
	case err != nil:
		s.bond.end(err)
		return 0, err
	case n > 0:
		s.read.looker.Came()
		if in.roomy() {
			s.rouse(in.writer, bellWritable)
		}
		return n, nil
	case end == finished:
		return 0, io.EOF
	case end != running:
		return 0, errReset
	}
	return 0, cutOff(gone)
}

// cutOff is the error of a stream that did not end before its session did.
func cutOff(gone error) error {
	if gone == nil {
		return nil
	}
	return fmt.Errorf("session: %w", gone)
}

// refused is why no call can do anything, whatever there is.
func (s *stream) refused(d *side) error {
	switch {
	case s.over.Load() != nil:
		return *s.over.Load()
	case d.deadline.passed.Load():
		return os.ErrDeadlineExceeded
	}
	return nil
}

func (s *stream) readChanged() bool {
	if s.refused(&s.read) != nil || s.bond.failure() != nil {
		return true
	}
	in := s.ends.in
	n, err := in.there()
	return n > 0 || err != nil || in.finished.Load() != running
}

func (s *stream) Write(p []byte) (int, error) {
	s.write.turn.Lock()
	defer s.write.turn.Unlock()
	return s.writeAll(p)
}

// writeAll is Write for who has the turn.
func (s *stream) writeAll(p []byte) (n int, err error) {
	for {
		k, err := s.tryWrite(p[n:])
		n += k
		if err != nil || n == len(p) {
			return n, err
		}
		if k == 0 && !s.hasRoom() {
			s.write.sleep(s.ends.out.writer)
		}
	}
}

// unwritable is why nothing can be written, whatever room there is.
func (s *stream) unwritable() error {
	if s.finished.Load() {
		return transport.ErrClosed
	}
	if err := s.refused(&s.write); err != nil {
		return err
	}
	if gone := s.bond.failure(); gone != nil {
		return cutOff(gone)
	}
	if s.ends.out.gone.Load() != 0 {
		return os.NewSyscallError("ring", syscall.EPIPE)
	}
	return nil
}

func (s *stream) tryWrite(p []byte) (int, error) {
	if err := s.unwritable(); err != nil {
		return 0, err
	}
	out := s.ends.out
	n, err := out.put(p)
	if err != nil {
		s.bond.end(err)
		return 0, err
	}
	if n > 0 {
		s.rouse(out.reader, bellReadable)
	}
	return n, nil
}

func (s *stream) writeChanged() bool {
	if s.finished.Load() || s.refused(&s.write) != nil || s.ends.out.gone.Load() != 0 || s.bond.failure() != nil {
		return true
	}
	n, err := s.ends.out.room(1, 0)
	return n > 0 || err != nil
}

// hasRoom waits a little for room, or makes some. Where it reports false, sleep is better.
func (s *stream) hasRoom() bool {
	return s.write.looker.Find(s.write.changed) || s.ends.out.growUnpaid()
}

// rouse rings for a peer that sleeps.
func (s *stream) rouse(asleep *atomic.Uint32, what bell) {
	if asleep.Load() != 0 && asleep.CompareAndSwap(1, 0) {
		s.bond.ring(s.place | what)
	}
}

// WriteBuffers implements transport.Gatherer.
func (s *stream) WriteBuffers(pieces *net.Buffers) (total int64, err error) {
	s.write.turn.Lock()
	defer s.write.turn.Unlock()
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

// CloseWrite implements transport.Stream.
func (s *stream) CloseWrite() error {
	s.finished.Store(true)
	s.write.poke()
	s.write.turn.Lock()
	defer s.write.turn.Unlock()
	if s.over.Load() == nil {
		s.finish(finished)
	}
	return nil
}

// finish says how writing ended. The caller has the turn.
func (s *stream) finish(how uint32) {
	out := s.ends.out
	if out.finished.Load() == running {
		step.Here()
		out.finished.Store(how)
		step.Here()
		s.rouse(out.reader, bellReadable)
	}
}

// Close implements transport.Stream. Blocked calls have returned when it does.
func (s *stream) Close() error {
	s.end(transport.ErrClosed, func() {
		s.finish(finished)
		step.Here()
		s.ends.in.gone.Store(1)
		step.Here()
		s.rouse(s.ends.in.writer, bellWritable)
		s.onClose(s)
	})
	return nil
}

// lapse is Close for a stream that the peer gave up, and whose place can be used
// again.
func (s *stream) lapse() { s.end(errReset, func() { s.onClose(s) }) }

// detach is Close without a word to the peer, for the end of all.
func (s *stream) detach() { s.end(transport.ErrClosed, func() {}) }

// end ends all calls with err, unless that was done, and lets last touch the rings
// for the last time, with both turns.
func (s *stream) end(err error, last func()) {
	s.closing.Do(func() {
		s.over.Store(&err)
		s.poke()
		s.read.turn.Lock()
		defer s.read.turn.Unlock()
		s.write.turn.Lock()
		defer s.write.turn.Unlock()
		s.read.deadline.stop()
		s.write.deadline.stop()
		last()
		s.ends.out.repay()
		s.ends = ends{}
	})
}

// poke wakes all calls.
func (s *stream) poke() {
	s.read.poke()
	s.write.poke()
}

func (s *stream) LocalAddr() net.Addr  { return s.addresses.Local }
func (s *stream) RemoteAddr() net.Addr { return s.addresses.Remote }

func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

func (s *stream) SetReadDeadline(t time.Time) error { return s.setDeadline(&s.read, t) }

func (s *stream) SetWriteDeadline(t time.Time) error { return s.setDeadline(&s.write, t) }

func (s *stream) setDeadline(d *side, t time.Time) error {
	if over := s.over.Load(); over != nil {
		return *over
	}
	d.deadline.set(t)
	return nil
}
