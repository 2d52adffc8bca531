package bulk

import (
	"net"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// turnChunks is how many chunks of a job leave in its turn, by one system call
// where the stream gathers: the kernel takes a fifth more time for the same
// bytes in four calls.
const turnChunks = 4

// ownChunk is the size of a chunk that is copied before it is written, header
// and trailer included: the largest record of TLS four times.
const ownChunk = 64 << 10

// writer is what belongs to the goroutine that writes chunks.
type writer struct {
	m        *Mover
	stream   transport.Stream
	gatherer transport.Gatherer // the stream, where it is one

	pieces  [][]byte
	pending net.Buffers        // pieces to write, consumed by that
	frames  [turnChunks]framed // of gathered chunks
	copied  []byte             // a copied chunk
}

func newWriter(m *Mover, stream transport.Stream) *writer {
	w := &writer{m: m, stream: stream}
	if g, ok := stream.(transport.Gatherer); ok {
		w.gatherer = g
		m.mu.Lock()
		defer m.mu.Unlock()
		m.out.deadline = stream.SetWriteDeadline
	}
	return w
}

// run lets each job have its turn until that fails or the end comes.
func (w *writer) run() error {
	write := w.copyChunk
	if w.gatherer != nil {
		write = w.gatherTurn
	}
	for {
		j := w.m.nextTurn()
		if j == nil {
			return w.m.life.Err()
		}
		if err := write(j); err != nil {
			return err
		}
	}
}

// nextTurn waits for a job that may move and makes it the held one. It returns
// nil at the end.
func (m *Mover) nextTurn() *job {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.turns.Len() == 0 && !m.ended {
		m.work.Wait()
	}
	if m.ended {
		return nil
	}
	m.out.held = m.turns.Pop()
	return m.out.held
}

// left notes that n more bytes of j have left, and finishes it or lets it wait
// for its next turn.
func (m *Mover) left(j *job, n int) {
	if m.endTurn(j, n) {
		m.finish(j, nil)
	}
}

func (m *Mover) endTurn(j *job, n int) (all bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all = m.moved(&m.out, j, n)
	if !all && m.out.has(j) {
		m.turns.Push(j)
	}
	return all
}

// copyChunk writes a chunk from memory of its own, for streams that cannot be
// interrupted: j's memory is touched no longer than it takes to copy it.
func (w *writer) copyChunk(j *job) error {
	part := j.next(ownChunk - native.ChunkHeaderSize - native.ChunkTrailerSize)
	w.pieces = part.AppendSegments(w.pieces[:0])
	w.copied = w.header(j, part.Len()).Append(w.copied[:0])
	for _, p := range w.pieces {
		w.copied = append(w.copied, p...)
	}
	clear(w.pieces)
	if cause := w.m.letGo(&w.m.out); cause != nil {
		w.m.finish(j, cause)
		return nil
	}
	w.copied = native.ChunkTrailer{Sum: w.sum(w.copied)}.Append(w.copied)
	step.Here()
	if _, err := w.stream.Write(w.copied); err != nil {
		return err
	}
	w.m.left(j, part.Len())
	return nil
}

// gatherTurn writes chunks straight from j's memory.
func (w *writer) gatherTurn(j *job) error {
	part := j.next(turnChunks * native.MaxChunk)
	w.pieces = w.pieces[:0]
	for i := 0; i*native.MaxChunk < part.Len(); i++ {
		off := i * native.MaxChunk
		w.add(&w.frames[i], j, part.Slice(off, min(native.MaxChunk, part.Len()-off)))
	}
	n, err := w.write(w.pieces)
	clear(w.pieces)

	cause := w.m.letGo(&w.m.out)
	if cause != nil {
		w.m.finish(j, cause)
		if interrupted(err) {
			return w.fill(n)
		}
	}
	if err == nil {
		w.m.left(j, part.Len())
	}
	return err
}

// framed is what stands around the bytes of a gathered chunk.
type framed struct {
	header  [native.ChunkHeaderSize]byte
	trailer [native.ChunkTrailerSize]byte
	length  int // of the bytes
}

// add appends a chunk to pieces.
func (w *writer) add(f *framed, j *job, bytes device.Buffer) {
	start := len(w.pieces)
	f.length = bytes.Len()
	w.pieces = append(w.pieces, w.header(j, f.length).Append(f.header[:0]))
	w.pieces = bytes.AppendSegments(w.pieces)
	t := native.ChunkTrailer{Sum: w.sum(w.pieces[start:]...)}
	w.pieces = append(w.pieces, t.Append(f.trailer[:0]))
}

func (w *writer) header(j *job, length int) native.ChunkHeader {
	return native.ChunkHeader{ID: j.ID, Length: length, Lane: j.lane.number, CRC: w.m.cfg.Checksum}
}

// sum is the checksum of a chunk, if there is to be one.
func (w *writer) sum(pieces ...[]byte) (sum uint32) {
	if !w.m.cfg.Checksum {
		return 0
	}
	for _, p := range pieces {
		sum = native.Sum(sum, p)
	}
	return sum
}

// write gathers pieces and returns how many bytes of them have left.
func (w *writer) write(pieces [][]byte) (int, error) {
	w.pending = pieces
	step.Here()
	n, err := w.gatherer.WriteBuffers(&w.pending)
	w.pending = nil
	return int(n), err
}
