package bulk

import (
	"net"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// chunksPerTurn is the number of chunks that a transfer sends in its turn, by one system call if the
// stream gathers: four calls for the same bytes cost the kernel a fifth more time.
const chunksPerTurn = 4

// copiedChunkSize is the size of a chunk that is copied before it is written, including header and
// trailer: four of the largest records of TLS.
const copiedChunkSize = 64 << 10

// writer is the state of the goroutine that writes chunks.
type writer struct {
	m        *Mover
	stream   transport.Stream
	gatherer transport.Gatherer // the stream, nil if it does not gather

	pieces     [][]byte
	pending    net.Buffers               // pieces being written; the write consumes it
	frames     [chunksPerTurn]chunkFrame // headers and trailers of gathered chunks
	copyBuffer []byte                    // encodes a copied chunk
}

// run writes the chunks of each transfer in its turn until a write fails or the Mover ends, and
// returns the error.
func (w *writer) run() error {
	write := w.copyChunk
	if w.gatherer != nil {
		write = w.gatherTurn
	}
	for {
		op := w.m.nextTurn()
		if op == nil {
			return w.m.lifecycle.Err()
		}
		if err := write(op); err != nil {
			return err
		}
	}
}

// nextTurn waits for a Send that may move and makes it the active one: the writer may use its memory
// until releaseActive. It returns nil after the end of the Mover.
func (m *Mover) nextTurn() *transferOp {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.runnable.Len() == 0 && !m.ended {
		m.wake.Wait()
	}
	if m.ended {
		return nil
	}
	m.out.active = m.runnable.Pop()
	return m.out.active
}

// sent records that the next n bytes of op have been sent. If these were its last it completes op;
// otherwise it queues op for its next turn. It does nothing if op was cancelled.
func (m *Mover) sent(op *transferOp, n int) {
	m.mu.Lock()
	all := m.advance(&m.out, op, n)
	if !all && m.out.has(op) {
		m.runnable.Push(op)
	}
	m.mu.Unlock()
	if all {
		m.complete(op, nil)
	}
}

// copyChunk copies the next chunk of op, the active transfer, and writes the copy. It is for streams
// whose writes cannot be interrupted: the memory of op is in use only while it is copied. If op was
// cancelled meanwhile it completes op and writes nothing. An error ends the Mover.
func (w *writer) copyChunk(op *transferOp) error {
	part := op.next(copiedChunkSize - native.ChunkHeaderSize - native.ChunkTrailerSize)
	w.pieces = part.AppendSegments(w.pieces[:0])
	w.copyBuffer = w.header(op, part.Len()).Append(w.copyBuffer[:0])
	for _, p := range w.pieces {
		w.copyBuffer = append(w.copyBuffer, p...)
	}
	clear(w.pieces)
	if cause := w.m.releaseActive(&w.m.out); cause != nil {
		w.m.complete(op, cause)
		return nil
	}
	w.copyBuffer = native.ChunkTrailer{Sum: w.sum(w.copyBuffer)}.Append(w.copyBuffer)
	failpoint.Here()
	if _, err := w.stream.Write(w.copyBuffer); err != nil {
		return err
	}
	w.m.sent(op, part.Len())
	return nil
}

// gatherTurn writes up to chunksPerTurn chunks directly from the memory of op, the active transfer. If
// op is cancelled during the write it completes op, and pads the chunk that was interrupted. An error
// ends the Mover.
func (w *writer) gatherTurn(op *transferOp) error {
	part := op.next(chunksPerTurn * native.MaxChunk)
	w.pieces = w.pieces[:0]
	for i := 0; i*native.MaxChunk < part.Len(); i++ {
		off := i * native.MaxChunk
		w.add(&w.frames[i], op, part.Slice(off, min(native.MaxChunk, part.Len()-off)))
	}
	n, err := w.write(w.pieces)
	clear(w.pieces)

	cause := w.m.releaseActive(&w.m.out)
	if cause != nil {
		w.m.complete(op, cause)
		if interrupted(err) {
			return w.padChunk(n)
		}
	}
	if err == nil {
		w.m.sent(op, part.Len())
	}
	return err
}

// chunkFrame is the header and the trailer of a gathered chunk.
type chunkFrame struct {
	header  [native.ChunkHeaderSize]byte
	trailer [native.ChunkTrailerSize]byte
	length  int // of the bytes between them
}

// add appends a chunk of op to w.pieces: the header and the trailer, which it encodes in f, and
// between them the memory of bytes, without copying it.
func (w *writer) add(f *chunkFrame, op *transferOp, bytes device.Buffer) {
	start := len(w.pieces)
	f.length = bytes.Len()
	w.pieces = append(w.pieces, w.header(op, f.length).Append(f.header[:0]))
	w.pieces = bytes.AppendSegments(w.pieces)
	t := native.ChunkTrailer{Sum: w.sum(w.pieces[start:]...)}
	w.pieces = append(w.pieces, t.Append(f.trailer[:0]))
}

func (w *writer) header(op *transferOp, length int) native.ChunkHeader {
	return native.ChunkHeader{ID: op.ID, Length: length, Lane: op.lane.number, CRC: w.m.cfg.Checksum}
}

// sum returns the checksum of the consecutive pieces of a chunk, or 0 if the chunks of this Mover have
// none.
func (w *writer) sum(pieces ...[]byte) (sum uint32) {
	if !w.m.cfg.Checksum {
		return 0
	}
	for _, p := range pieces {
		sum = native.Sum(sum, p)
	}
	return sum
}

// write writes pieces with one gathering call, which may change their elements, and returns the number
// of bytes written.
func (w *writer) write(pieces [][]byte) (int, error) {
	w.pending = pieces
	failpoint.Here()
	n, err := w.gatherer.WriteBuffers(&w.pending)
	w.pending = nil
	return int(n), err
}

// padChunk completes an interrupted turn, of which n bytes were written: it writes zeros for the rest
// of the chunk that was cut, and a trailer that marks this chunk as discarded. It writes nothing if no
// chunk was cut. The later chunks of the turn are not sent.
func (w *writer) padChunk(n int) error {
	i := 0
	for i < chunksPerTurn && n >= w.frames[i].size() {
		n -= w.frames[i].size()
		i++
	}
	if n == 0 {
		return nil
	}
	_, err := w.write(w.frames[i].padding(n))
	return err
}

func (f *chunkFrame) size() int { return len(f.header) + f.length + len(f.trailer) }

// padding returns the bytes that must follow the first n bytes of an interrupted chunk. n must be less
// than the size of the chunk. If part of the trailer is among the first n bytes, the chunk is valid,
// and padding returns the rest of the trailer. Otherwise padding returns the rest of the header, zeros
// for the missing bytes, and a trailer that marks the chunk as discarded.
func (f *chunkFrame) padding(n int) [][]byte {
	if n <= len(f.header)+f.length {
		native.ChunkTrailer{Discarded: true}.Append(f.trailer[:0])
	}
	pieces := [][]byte{f.header[min(n, len(f.header)):]}
	n = max(n-len(f.header), 0)
	page := make([]byte, min(f.length, 32<<10)) // shared by all pieces of zeros
	for missing := f.length - min(n, f.length); missing > 0; {
		p := page[:min(missing, len(page))]
		pieces = append(pieces, p)
		missing -= len(p)
	}
	return append(pieces, f.trailer[max(n-f.length, 0):])
}
