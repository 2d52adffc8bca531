package ring

import (
	"fmt"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
)

// Producer writes to a ring. One goroutine at a time uses it. A write needs a transaction, see
// [End.Begin].
type Producer struct{ End }

// Producer returns a new producer of r, which has begun no transaction. It writes to the memory of
// r, which must stay mapped while the producer is in use.
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

// Free returns the number of bytes that can still be written. In a transaction, bytes already
// written in it are not counted again. Outside of one, another producer may use that space first,
// and the result is 0 if one does so during the call. The error matches [ErrCorrupt].
func (p *Producer) Free() (int, error) { return p.available() }

// Write copies as much of src into the ring as there is space for and returns the number of bytes
// copied, possibly 0. The consumer sees them after Publish or Commit. The error is [ErrIdle]
// outside of a transaction, or matches [ErrCorrupt].
func (p *Producer) Write(src []byte) (int, error) {
	first, second, err := p.Next(len(src))
	return copy(first, src) + copy(second, src[len(first):]), err
}

// WriteAll copies all of src into the ring, or nothing. The consumer sees the bytes after Publish
// or Commit. The error is [ErrShort] if there is too little space, [ErrIdle] outside of a
// transaction, or matches [ErrCorrupt].
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

// Consumer returns a new consumer of r, which has begun no transaction. It reads the memory of r,
// which must stay mapped while the consumer is in use.
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

// Readable returns the number of bytes that can still be read. In a transaction, bytes already read
// in it are not counted again. Outside of one, another consumer may read these bytes first, and the
// result is 0 if one does so during the call. The error matches [ErrCorrupt].
func (c *Consumer) Readable() (int, error) { return c.available() }

// Read copies as many bytes from the ring to dst as are available and fit, and returns how many,
// possibly 0. The producer may reuse their space after Publish or Commit. The error is [ErrIdle]
// outside of a transaction, or matches [ErrCorrupt].
func (c *Consumer) Read(dst []byte) (int, error) {
	first, second, err := c.Next(len(dst))
	return copy(dst, first) + copy(dst[len(first):], second), err
}

// ReadAll fills dst with bytes from the ring, or reads nothing. The producer may reuse their space
// after Publish or Commit. The error is [ErrShort] if fewer bytes are available, [ErrIdle] outside
// of a transaction, or matches [ErrCorrupt].
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

// Begin begins a transaction, which Commit or Cancel ends. It does not block. It returns [ErrBusy]
// if this End is in a transaction, or another producer is (for a producer) or another consumer (for
// a consumer).
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

// Publish makes the effect of the transaction so far visible to the other role: the consumer can
// read the bytes that were written, or the producer can reuse the space of those that were read.
// The transaction goes on. Outside of a transaction it returns [ErrIdle].
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

// Commit publishes the bytes that were written or read, as Publish does, and ends the transaction.
// Outside of a transaction it returns [ErrIdle].
func (s *End) Commit() error {
	if err := s.Publish(); err != nil {
		return err
	}
	return s.Cancel()
}

// Cancel ends the transaction and undoes all that was not published: such bytes count as not
// written, or as not read. Outside of a transaction it returns [ErrIdle].
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

// Next returns the memory of the next n bytes of the ring, which a consumer reads and a producer
// writes, and counts these bytes as read or written. If fewer than n are available, it returns
// those. If the memory reaches the end of the ring it continues in second; otherwise second is
// empty. The slices are valid until Publish, Commit or Cancel. The error is [ErrIdle] outside of a
// transaction, or matches [ErrCorrupt].
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

// available returns the number of bytes that a producer can write, or a consumer can read, in
// addition to those of the current transaction. It reads the counter of the other role from the
// header and, outside of a transaction, its own. The error matches [ErrCorrupt] if the counters are
// impossible. Outside of a transaction it returns 0 and nil if another End of the same role moved
// that counter during the call.
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

// requireAvailable returns nil if at least n more bytes can be written or read, and [ErrShort] if
// fewer can. The error is [ErrIdle] outside of a transaction, and matches [ErrCorrupt] if the
// header is invalid.
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
