package ring

import (
	"fmt"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
)

// Producer writes to a ring. One goroutine at a time uses it. A write needs a transaction, see
// [End.Begin].
type Producer struct{ End }

// Producer returns a new producer of r, which has begun no transaction. It uses the memory of r.
func (r *Ring) Producer() *Producer {
	return &Producer{End{
		data:  r.data,
		flags: r.flags,
		flag:  flagProducer,
		mask:  maskProducer,
		own:   r.head,
		other: r.tail,
		lead:  uint64(len(r.data)),
	}}
}

// Free returns the number of bytes that can be written in addition to those of the current
// transaction. Outside of a transaction another producer may use that space first. An error matches
// [ErrCorrupt].
func (p *Producer) Free() (int, error) { return p.available() }

// Write copies as much of src into the ring as there is space for and returns how much that is,
// possibly 0. The consumer sees it after Publish or Commit. The error is [ErrIdle] outside of a
// transaction, or matches [ErrCorrupt].
func (p *Producer) Write(src []byte) (int, error) {
	first, second, err := p.Next(len(src))
	return copy(first, src) + copy(second, src[len(first):]), err
}

// WriteAll is Write, but writes all of src or nothing. It returns [ErrShort] if there is too little
// space.
func (p *Producer) WriteAll(src []byte) error {
	if err := p.requireAvailable(len(src)); err != nil {
		return err
	}
	_, err := p.Write(src)
	return err
}

// Consumer reads from a ring. One goroutine at a time uses it. A read needs a transaction, see
// [End.Begin].
type Consumer struct{ End }

// Consumer returns a new consumer of r, which has begun no transaction. It uses the memory of r.
func (r *Ring) Consumer() *Consumer {
	return &Consumer{End{
		data:  r.data,
		flags: r.flags,
		flag:  flagConsumer,
		mask:  maskConsumer,
		own:   r.tail,
		other: r.head,
	}}
}

// Readable returns the number of bytes that can be read in addition to those of the current
// transaction. Outside of a transaction another consumer may read them first. An error matches
// [ErrCorrupt].
func (c *Consumer) Readable() (int, error) { return c.available() }

// Read copies bytes from the ring to dst and returns how many, possibly 0: as many as are available
// and fit. The producer may reuse their space after Publish or Commit. The error is [ErrIdle]
// outside of a transaction, or matches [ErrCorrupt].
func (c *Consumer) Read(dst []byte) (int, error) {
	first, second, err := c.Next(len(dst))
	return copy(dst, first) + copy(dst[len(first):], second), err
}

// ReadAll is Read, but fills dst completely or reads nothing. It returns [ErrShort] if fewer bytes
// are available.
func (c *Consumer) ReadAll(dst []byte) error {
	if err := c.requireAvailable(len(dst)); err != nil {
		return err
	}
	_, err := c.Read(dst)
	return err
}

// Flags of the roles in the word of flags.
const (
	flagConsumer = 0x0001
	flagProducer = 0x0100
	maskConsumer = 0x00ff
	maskProducer = 0xff00
)

// End is the common part of a [Producer] and a [Consumer]: a transaction that moves bytes. A
// producer advances the head of the ring as far as there is space, a consumer the tail as far as
// there are bytes. One goroutine at a time uses an End; another one in the same role needs an End
// of its own.
type End struct {
	data []byte

	flags *atomic.Uint32
	flag  uint32
	mask  uint32

	own   *atomic.Uint64 // counter of this role
	other *atomic.Uint64 // counter of the other role
	lead  uint64         // limit minus other counter

	begun bool
	start uint64 // value of the own counter at the start
	moved uint64 // bytes moved since, not published
	limit uint64 // up to which bytes may be moved, as last read; it only grows
}

// Begin begins a transaction, which Commit or Cancel ends. It returns [ErrBusy] if this End or
// another one in the same role is in a transaction.
func (s *End) Begin() error {
	failpoint.Here()
	// The other role may change its byte of this word at any time.
	if s.begun || s.flags.Or(s.flag)&s.mask != 0 {
		return ErrBusy
	}
	s.begun = true
	s.start = s.own.Load()
	s.limit = s.start
	return nil
}

// Publish makes the bytes that were moved visible to the other role, and stays in the transaction.
// Outside of a transaction it returns [ErrIdle].
func (s *End) Publish() error {
	if !s.begun {
		return ErrIdle
	}
	failpoint.Here()
	s.start += s.moved
	s.moved = 0
	s.own.Store(s.start)
	return nil
}

// Commit publishes the bytes that were moved and ends the transaction. Outside of a transaction it
// returns [ErrIdle].
func (s *End) Commit() error {
	if err := s.Publish(); err != nil {
		return err
	}
	return s.Cancel()
}

// Cancel ends the transaction and discards bytes that were moved and not published. Outside of a
// transaction it returns [ErrIdle].
func (s *End) Cancel() error {
	if !s.begun {
		return ErrIdle
	}
	s.begun = false
	s.moved = 0
	failpoint.Here()
	s.flags.And(^s.mask)
	return nil
}

// Next returns the memory of the ring to read the next n bytes from or to write them to, less if
// fewer are available, and counts these bytes as moved. Where the ring wraps, first ends and second
// goes on. The slices are valid until Publish, Commit or Cancel. The error is [ErrIdle] outside of
// a transaction, or matches [ErrCorrupt].
func (s *End) Next(n int) (first, second []byte, err error) {
	if !s.begun {
		return nil, nil, ErrIdle
	}
	n = max(n, 0)
	at := s.start + s.moved
	if s.limit-at < uint64(n) { // reading the other counter costs a cache line
		available, err := s.available()
		if err != nil {
			return nil, nil, err
		}
		n = min(n, available)
	}
	failpoint.Here()
	s.moved += uint64(n)
	from := int(at) & (len(s.data) - 1)
	to := min(from+n, len(s.data))
	wrapped := n - (to - from) // bytes from the beginning of the data area
	return s.data[from:to:to], s.data[:wrapped:wrapped], nil
}

// available returns the number of bytes that can be moved in addition to those of the current
// transaction, from the counters in the header. An error matches [ErrCorrupt]: the counters are
// impossible.
func (s *End) available() (int, error) {
	at := s.own.Load()
	if s.begun {
		at = s.start + s.moved // not read from memory, which a peer can change
	}
	limit := s.other.Load() + s.lead
	n := limit - at
	if n > uint64(len(s.data)) {
		if !s.begun && s.own.Load() != at {
			return 0, nil // another producer or consumer was faster
		}
		return 0, fmt.Errorf("%w: %d bytes at byte %d, in a ring of %d", ErrCorrupt, int64(n), at, len(s.data))
	}
	s.limit = limit
	return int(n), nil
}

// requireAvailable returns nil if at least n bytes can be moved, and [ErrShort] if fewer can. The
// error is [ErrIdle] outside of a transaction, and matches [ErrCorrupt] if the header is invalid.
func (s *End) requireAvailable(n int) error {
	if !s.begun {
		return ErrIdle
	}
	if s.limit-(s.start+s.moved) >= uint64(n) {
		return nil
	}
	available, err := s.available()
	if err == nil && available < n {
		err = ErrShort
	}
	return err
}
