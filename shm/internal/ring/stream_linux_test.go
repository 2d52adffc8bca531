package ring_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/tensorpipe-go/tensorpipe/shm/internal/ring"
)

// stream is an endless sequence of bytes, determined by a seed, and a sequence of sizes in which to
// move them.
type stream struct {
	bytes *rand.ChaCha8
	sizes *rand.Rand
	buf   []byte
}

// newStream returns a stream of pseudo-random bytes. seed determines the bytes, and both arguments
// determine the sizes of the pieces in which they are moved.
func newStream(seed, habit uint64) *stream {
	var key [32]byte
	key[0] = byte(seed)
	return &stream{bytes: rand.NewChaCha8(key), sizes: rand.New(rand.NewPCG(seed, habit))}
}

// next returns the next n bytes of the stream. The slice is valid until the following call.
func (s *stream) next(n int) []byte {
	s.buf = append(s.buf[:0], make([]byte, n)...)
	s.bytes.Read(s.buf)
	return s.buf
}

// piece returns how many of the left remaining bytes to move at once: mostly few, sometimes more
// than fit in a ring of that size.
func (s *stream) piece(size, left int) int {
	return min(1+s.sizes.IntN(1+s.sizes.IntN(2*size)), left)
}

// produce writes the next total bytes of s to r, by a random choice of Write, WriteAll and Next. It
// blocks until all are written.
func produce(r *ring.Ring, s *stream, total int) error {
	p := r.Producer()
	for left := total; left > 0; {
		src := s.next(s.piece(r.Size(), left))
		left -= len(src)
		for len(src) > 0 {
			n, err := produceSome(p, src, s.sizes.IntN(3))
			if err != nil {
				return err
			}
			src = src[n:]
			if n == 0 {
				yield()
			}
		}
	}
	return nil
}

func produceSome(p *ring.Producer, src []byte, how int) (n int, err error) {
	if err := p.Begin(); err != nil {
		return 0, err
	}
	switch how {
	case 0:
		n, err = p.Write(src)
	case 1:
		var first, second []byte
		first, second, err = p.Next(len(src))
		n = copy(first, src)
		n += copy(second, src[n:])
	default:
		n, err = min(7, len(src)), p.WriteAll(src[:min(7, len(src))])
		if errors.Is(err, ring.ErrShort) {
			return 0, p.Cancel()
		}
	}
	return n, errors.Join(err, p.Publish(), p.Commit())
}

// consume reads total bytes from r, and returns an error if they differ from those of s. It blocks
// until all are read.
func consume(r *ring.Ring, s *stream, total int) error {
	c := r.Consumer()
	for left := total; left > 0; {
		got, err := consumeSome(c, make([]byte, s.piece(r.Size(), left)), s.sizes.IntN(3))
		if err != nil {
			return err
		}
		if want := s.next(len(got)); !bytes.Equal(want, got) {
			return fmt.Errorf("after %d bytes came %x and not %x", total-left, got, want)
		}
		left -= len(got)
		if len(got) == 0 {
			yield()
		}
	}
	return nil
}

func consumeSome(c *ring.Consumer, dst []byte, how int) (got []byte, err error) {
	if err := c.Begin(); err != nil {
		return nil, err
	}
	n := 0
	switch how {
	case 0:
		n, err = c.Read(dst)
	case 1:
		var first, second []byte
		first, second, err = c.Next(len(dst))
		n = copy(dst, first)
		n += copy(dst[n:], second)
	default:
		n, err = min(7, len(dst)), c.ReadAll(dst[:min(7, len(dst))])
		if errors.Is(err, ring.ErrShort) {
			return nil, c.Cancel()
		}
	}
	return dst[:n], errors.Join(err, c.Commit())
}
