package bulk

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// readAhead is the size of the read buffer. One system call reads a trailer and the next header, and at
// most this many bytes of a chunk, which are then copied; all others are read directly to their
// destination.
const readAhead = 512

// reader is the state of the goroutine that reads chunks.
type reader struct {
	m        *Mover
	src      *bufio.Reader
	stream   transport.BulkReader // what src reads from; nil if that is none
	segments [][]byte
	timer    *time.Timer // of awaitPlace
	sum      uint32      // CRC32C of the chunk up to here
}

// run reads chunks until a read fails or a chunk is invalid, and returns the error: io.EOF if the
// peer ended the stream between two chunks.
func (r *reader) run() error {
	for {
		if err := r.chunk(); err != nil {
			return err
		}
	}
}

// chunk reads one chunk into the memory of its transfer, and completes the transfer after its last
// byte. If there is no such transfer, because it was cancelled, the bytes are dropped. If the peer
// discarded the chunk, the transfer fails. The error is that of the stream, io.EOF if it ends
// before the chunk, or means that the chunk is invalid; it ends the Mover.
func (r *reader) chunk() error {
	h, err := r.header()
	if err != nil {
		return err
	}
	if h.Eager {
		return r.eagerChunk(h)
	}
	op, err := r.m.claim(h)
	if err != nil {
		return err
	}
	t, filled, err := r.rest(op, nil, h)
	switch {
	case err != nil || filled < h.Length:
		return err
	case t.Discarded:
		r.m.peerAborted(op)
	default:
		r.m.received(op, h.Length)
	}
	return nil
}

// rest reads what follows the header h: the bytes, to the memory of op or to staged, or nowhere if
// both are nil or op is cancelled, and the trailer, which it checks if all bytes were read to
// memory. It returns the trailer and the number of bytes in memory.
func (r *reader) rest(op *transferOp, staged []byte, h native.ChunkHeader) (t native.ChunkTrailer, filled int, err error) {
	switch {
	case op != nil:
		filled, err = r.readBody(op, h)
	case staged != nil:
		filled, err = r.readFull(staged, h.CRC)
	}
	if err == nil {
		_, err = io.CopyN(io.Discard, r.src, int64(h.Length-filled))
	}
	if err != nil {
		return t, filled, unexpectedEOF(err)
	}
	t, err = r.trailer()
	if err == nil && filled == h.Length && !t.Discarded {
		err = t.Check(h, r.sum)
	}
	return t, filled, err
}

// header reads and decodes the next chunk header, and sets r.sum to the checksum of its bytes. It
// returns io.EOF only if the stream ends before the header.
func (r *reader) header() (native.ChunkHeader, error) {
	p, err := r.src.Peek(native.ChunkHeaderSize)
	if len(p) > 0 && err != nil {
		return native.ChunkHeader{}, unexpectedEOF(err)
	}
	if err != nil {
		return native.ChunkHeader{}, err
	}
	failpoint.Here()
	r.sum = native.Sum(0, p)
	h, err := native.DecodeChunkHeader(p)
	_, _ = r.src.Discard(native.ChunkHeaderSize) // buffered by Peek
	return h, err
}

func (r *reader) trailer() (native.ChunkTrailer, error) {
	p, err := r.src.Peek(native.ChunkTrailerSize)
	if err != nil {
		return native.ChunkTrailer{}, unexpectedEOF(err)
	}
	failpoint.Here()
	t, err := native.DecodeChunkTrailer(p)
	_, _ = r.src.Discard(native.ChunkTrailerSize)
	return t, err
}

// unexpectedEOF returns io.ErrUnexpectedEOF if err is io.EOF, which would mean an end between two
// chunks. Any other err is returned unchanged.
func unexpectedEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readBody reads the bytes of chunk h into the memory of op, which must be the active transfer, and
// returns how many it has read. Afterwards op is no longer active. If op was cancelled during the
// read, readBody completes op, and may return fewer bytes without an error; the caller must drop
// the remaining bytes of the chunk.
func (r *reader) readBody(op *transferOp, h native.ChunkHeader) (n int, err error) {
	r.segments = op.next(h.Length).AppendSegments(r.segments[:0])
	for _, p := range r.segments {
		k, fault := r.readFull(p, h.CRC)
		n += k
		if err = fault; err != nil {
			break
		}
	}
	clear(r.segments)
	if cause := r.m.releaseActive(&r.m.in, op); cause != nil {
		r.m.complete(op, cause)
		if interrupted(err) {
			err = nil
		}
	}
	return n, err
}

// readFull reads until p is full or a read fails, and returns the number of bytes read; the error
// is nil if p is full. It passes the number of bytes of each read to Config.Arrived. If sum is true
// it also updates the checksum r.sum, while the bytes are in the cache.
func (r *reader) readFull(p []byte, sum bool) (n int, err error) {
	for n < len(p) && err == nil {
		var k int
		failpoint.Here()
		if r.stream != nil && r.src.Buffered() == 0 && len(p)-n > readAhead {
			k, err = r.stream.ReadBulk(p[n:])
		} else {
			k, err = r.src.Read(p[n:])
		}
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

// interrupted reports whether err means that a deadline has interrupted the system call.
func interrupted(err error) bool {
	late, ok := errors.AsType[net.Error](err)
	return ok && late.Timeout()
}

// claim makes the transfer of chunk h the active one and returns it: the reader may use its memory
// until releaseActive. It returns nil and no error if there is no such transfer, because it was
// cancelled. The error matches channel.ErrProtocol: the chunk came before READY or exceeds the
// memory of its transfer.
func (m *Mover) claim(h native.ChunkHeader) (*transferOp, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	op := m.in.ops[transferKey{h.Lane, h.ID}]
	if op == nil {
		return nil, nil
	}
	if !op.memoryReady || op.arrival != nil {
		return nil, fmt.Errorf("%w: bytes of transfer %d of lane %d before its READY", channel.ErrProtocol, h.ID, h.Lane)
	}
	if got := op.moved + h.Length; got > op.Buf.Len() {
		return nil, &channel.LengthError{Want: int64(op.Buf.Len()), Got: int64(got)}
	}
	op.active = true
	return op, nil
}

// received records that the next n bytes of op have been received, and completes op if these were its
// last. It does nothing if op was cancelled.
func (m *Mover) received(op *transferOp, n int) {
	m.mu.Lock()
	all := m.advance(&m.in, op, n)
	m.mu.Unlock()
	if all {
		m.complete(op, nil)
	}
}

// peerAborted completes op with an error that matches channel.ErrAborted, unless op was cancelled.
func (m *Mover) peerAborted(op *transferOp) {
	m.mu.Lock()
	alive := m.in.remove(op)
	m.mu.Unlock()
	if alive {
		m.complete(op, m.wrapError(channel.ErrAborted))
	}
}
