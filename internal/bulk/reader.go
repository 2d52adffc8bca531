package bulk

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// readAhead is the size of the read buffer. A trailer and the next header come
// with one system call, and at most as many bytes of a chunk are copied; the
// others go past it to where they belong.
const readAhead = 512

// reader is what belongs to the goroutine that reads chunks.
type reader struct {
	m        *Mover
	src      *bufio.Reader
	segments [][]byte
	sum      uint32 // of the chunk so far
}

func newReader(m *Mover, stream transport.Stream) *reader {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.in.deadline = stream.SetReadDeadline
	return &reader{m: m, src: bufio.NewReaderSize(stream, readAhead)}
}

// run reads chunk after chunk until that fails.
func (r *reader) run() error {
	for {
		if err := r.chunk(); err != nil {
			return err
		}
	}
}

func (r *reader) chunk() error {
	h, err := r.header()
	if err != nil {
		return err
	}
	j, err := r.m.claim(h)
	if err != nil {
		return err
	}
	filled := 0
	if j != nil {
		if filled, err = r.fill(j, h); err != nil {
			return early(err)
		}
	}
	if _, err := io.CopyN(io.Discard, r.src, int64(h.Length-filled)); err != nil {
		return early(err)
	}
	t, err := r.trailer()
	if err != nil || filled < h.Length {
		return err
	}
	if t.Void {
		r.m.voided(j)
		return nil
	}
	if err := t.Check(h, r.sum); err != nil {
		return err
	}
	r.m.arrived(j, h.Length)
	return nil
}

// header reads the next header. Its error is io.EOF only where there was none.
func (r *reader) header() (native.ChunkHeader, error) {
	p, err := r.src.Peek(native.ChunkHeaderSize)
	if len(p) > 0 && err != nil {
		return native.ChunkHeader{}, early(err)
	}
	if err != nil {
		return native.ChunkHeader{}, err
	}
	step.Here()
	r.sum = native.Sum(0, p)
	h, err := native.DecodeChunkHeader(p)
	_, _ = r.src.Discard(native.ChunkHeaderSize) // they were there
	return h, err
}

func (r *reader) trailer() (native.ChunkTrailer, error) {
	p, err := r.src.Peek(native.ChunkTrailerSize)
	if err != nil {
		return native.ChunkTrailer{}, early(err)
	}
	step.Here()
	t, err := native.DecodeChunkTrailer(p)
	_, _ = r.src.Discard(native.ChunkTrailerSize)
	return t, err
}

// early is the error of an end within a chunk.
func early(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// fill reads the bytes of a chunk into the memory of j, which the reader holds.
// Fewer than all were read if j was given up.
func (r *reader) fill(j *job, h native.ChunkHeader) (n int, err error) {
	r.segments = j.next(h.Length).AppendSegments(r.segments[:0])
	for _, p := range r.segments {
		k, fault := r.full(p, h.CRC)
		n += k
		if err = fault; err != nil {
			break
		}
	}
	clear(r.segments)
	if cause := r.m.letGo(&r.m.in); cause != nil {
		r.m.finish(j, cause)
		if interrupted(err) {
			err = nil
		}
	}
	return n, err
}

// full reads all of p, and sums up while the bytes are in the cache.
func (r *reader) full(p []byte, sum bool) (n int, err error) {
	for n < len(p) && err == nil {
		var k int
		step.Here()
		k, err = r.src.Read(p[n:])
		if sum {
			r.sum = native.Sum(r.sum, p[n:n+k])
		}
		n += k
		r.m.cfg.Arrived(k)
	}
	if n == len(p) {
		return n, nil
	}
	return n, err
}

// interrupted reports whether err is due to a deadline.
func interrupted(err error) bool {
	late, ok := errors.AsType[net.Error](err)
	return ok && late.Timeout()
}

// claim makes the job for which the chunk is the held one; nil if the chunk is
// for none, because it was given up.
func (m *Mover) claim(h native.ChunkHeader) (*job, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j := m.in.jobs[labelOf(h)]
	if j == nil {
		return nil, nil
	}
	if !j.ordered {
		return nil, fmt.Errorf("%w: bytes of transfer %d of lane %d, which nobody asked for", channel.ErrProtocol, h.ID, h.Lane)
	}
	if got := j.moved + h.Length; got > j.Buf.Len() {
		return nil, &channel.LengthError{Want: int64(j.Buf.Len()), Got: int64(got)}
	}
	m.in.held = j
	return j, nil
}

// arrived notes that n more bytes of j have.
func (m *Mover) arrived(j *job, n int) {
	m.mu.Lock()
	all := m.moved(&m.in, j, n)
	m.mu.Unlock()
	if all {
		m.finish(j, nil)
	}
}

// voided ends j, which the peer gave up.
func (m *Mover) voided(j *job) {
	m.mu.Lock()
	alive := m.in.remove(j)
	m.mu.Unlock()
	if alive {
		m.finish(j, m.explain(channel.ErrAborted))
	}
}
