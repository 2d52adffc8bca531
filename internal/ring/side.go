package ring

import (
	"fmt"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/internal/step"
)

// Where the flags of the roles are in the word of flags.
const (
	flagConsumer = 0x0001
	flagProducer = 0x0100
	maskConsumer = 0x00ff
	maskProducer = 0xff00
)

// Side is what a [Producer] and a [Consumer] have in common. Each moves its own
// marker on, up to a limit that depends on the marker of the other role. It is for
// one goroutine at a time; another goroutine of the same role has a Side of its
// own.
type Side struct {
	data []byte

	flags *atomic.Uint32
	flag  uint32
	mask  uint32

	own   *atomic.Uint64
	other *atomic.Uint64
	lead  uint64 // from the other marker to the limit

	begun bool
	start uint64 // the own marker
	moved uint64 // bytes beyond it
	limit uint64 // as it was last read: the real one is not before it
}

// Begin takes the role, or returns [ErrBusy].
func (s *Side) Begin() error {
	step.Here()
	// Of this word the other role changes its byte at any time.
	if s.begun || s.flags.Or(s.flag)&s.mask != 0 {
		return ErrBusy
	}
	s.begun = true
	s.start = s.own.Load()
	s.limit = s.start
	return nil
}

// Publish shows the other role what was moved, and keeps the role. Without a
// transaction it returns [ErrIdle], as the calls below do.
func (s *Side) Publish() error {
	if !s.begun {
		return ErrIdle
	}
	step.Here()
	s.start += s.moved
	s.moved = 0
	s.own.Store(s.start)
	return nil
}

// Commit shows the other role what was moved, and gives the role back.
func (s *Side) Commit() error {
	if err := s.Publish(); err != nil {
		return err
	}
	return s.Cancel()
}

// Cancel gives the role back. What was moved and not published stays where it was.
func (s *Side) Cancel() error {
	if !s.begun {
		return ErrIdle
	}
	s.begun = false
	s.moved = 0
	step.Here()
	s.flags.And(^s.mask)
	return nil
}

// Next moves up to n bytes in place. They lie in first, and where the ring wraps
// also in second, which is their rest. It moves fewer if there are fewer.
func (s *Side) Next(n int) (first, second []byte, err error) {
	if !s.begun {
		return nil, nil, ErrIdle
	}
	n = max(n, 0)
	at := s.start + s.moved
	if s.limit-at < uint64(n) { // to look at the other marker costs a cache line
		ready, err := s.ready()
		if err != nil {
			return nil, nil, err
		}
		n = min(n, ready)
	}
	step.Here()
	s.moved += uint64(n)
	from := int(at) & (len(s.data) - 1)
	to := min(from+n, len(s.data))
	rest := n - (to - from)
	return s.data[from:to:to], s.data[:rest:rest], nil
}

// ready is the number of bytes up to the limit, as it is now.
func (s *Side) ready() (int, error) {
	at := s.own.Load()
	if s.begun {
		at = s.start + s.moved // nobody else says what that is
	}
	limit := s.other.Load() + s.lead
	n := limit - at
	if n > uint64(len(s.data)) {
		if !s.begun && s.own.Load() != at {
			return 0, nil // another of the role was faster, and we too late to tell
		}
		return 0, fmt.Errorf("%w: %d bytes at byte %d, in a ring of %d", ErrCorrupt, int64(n), at, len(s.data))
	}
	s.limit = limit
	return int(n), nil
}

// need reports too few bytes as [ErrShort].
func (s *Side) need(n int) error {
	if !s.begun {
		return ErrIdle
	}
	if s.limit-(s.start+s.moved) >= uint64(n) {
		return nil
	}
	ready, err := s.ready()
	if err == nil && ready < n {
		err = ErrShort
	}
	return err
}
