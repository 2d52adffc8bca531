package bulk

import (
	"net"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// turnBytes and turnChunks bound what is written at once, by one system call if the stream
	// gathers: four calls for the same bytes cost the kernel a fifth more time.
	turnBytes  = 4 << 20
	turnChunks = 64

	// copiedChunkSize is the size of a chunk that is copied before it is written, including header
	// and trailer.
	copiedChunkSize = 64 << 10
)

// writer is the state of the goroutine that writes chunks.
type writer struct {
	m        *Mover
	stream   transport.Stream
	gatherer transport.Gatherer // the stream, nil if it does not gather

	turn       []turnChunk // the chunks that are being written
	pieces     [][]byte
	pending    net.Buffers // pieces being written; the write consumes it
	copyBuffer []byte      // encodes a copied chunk
}

// run writes the chunks of the transfers in turns until a write fails or the Mover has ended. It
// returns the error of the write, or the reason for which the Mover has ended.
func (w *writer) run() error {
	write, chunks, chunkSize := w.copyTurn, 1, copiedChunkSize-native.ChunkHeaderSize-native.ChunkTrailerSize
	if w.gatherer != nil {
		write, chunks, chunkSize = w.gatherTurn, turnChunks, native.MaxChunk
	}
	for {
		w.turn = w.m.nextTurn(w.turn, chunks, chunkSize)
		if len(w.turn) == 0 {
			return w.m.lifecycle.Err()
		}
		if err := write(); err != nil {
			return err
		}
		clear(w.turn) // drops the references to transfers and their memory
	}
}

// copyTurn copies the only chunk of the turn and writes the copy. It is for streams whose writes
// cannot be interrupted: the memory of the transfer is in use only while it is copied. If the
// transfer was cancelled during the copy, copyTurn completes it, writes nothing and returns nil.
// The error is that of the stream; it ends the Mover.
func (w *writer) copyTurn() error {
	c := &w.turn[0]
	w.pieces = c.body.AppendSegments(w.pieces[:0])
	w.copyBuffer = w.header(c).Append(w.copyBuffer[:0])
	for _, p := range w.pieces {
		w.copyBuffer = append(w.copyBuffer, p...)
	}
	clear(w.pieces)
	if cause := w.m.releaseActive(&w.m.out, c.op); cause != nil {
		w.m.complete(c.op, cause)
		w.m.mu.Lock()
		w.m.leaveTurn(c.op)
		w.m.mu.Unlock()
		return nil
	}
	w.copyBuffer = w.trailer(c, w.copyBuffer).Append(w.copyBuffer)
	failpoint.Here()
	if _, err := w.stream.Write(w.copyBuffer); err != nil {
		return err
	}
	w.m.endTurn(w.turn, 1, nil)
	return nil
}

// gatherTurn writes the chunks of the turn directly from the memory of their transfers. If one of
// these is cancelled during the write, the memory of all but the chunk that was interrupted is
// released at once. finishTurn completes that chunk; the later ones wait for another turn. The
// error is that of the stream; it ends the Mover.
func (w *writer) gatherTurn() error {
	w.pieces = w.pieces[:0]
	for i := range w.turn {
		w.add(&w.turn[i])
	}
	n, err := w.write(w.pieces)
	whole := 0
	for whole < len(w.turn) && n >= w.turn[whole].size() {
		n -= w.turn[whole].size()
		whole++
	}
	switch {
	case !interrupted(err):
		w.m.endTurn(w.turn, whole, nil)
		return err
	case n == 0:
		w.m.endTurn(w.turn, whole, nil)
		return w.finishTurn(nil, 0)
	default:
		w.m.endTurn(w.turn, whole, w.turn[whole].op)
		return w.finishTurn(w.turn[whole:whole+1], n)
	}
}

// finishTurn goes on after an interrupted write. turn has the chunk that was interrupted after n of
// its bytes, or no chunk. finishTurn writes the rest of that chunk and counts it as sent. If its
// transfer is cancelled, also during this call, finishTurn completes the transfer, and writes
// padding, which marks the chunk as discarded unless the trailer was begun. It makes at least one
// write, because the stream may have kept bytes. The error is that of the stream; it ends the Mover.
func (w *writer) finishTurn(turn []turnChunk, n int) error {
	var padded *turnChunk
	for {
		if len(turn) > 0 {
			if cause := w.m.releaseCancelled(&turn[0], n); cause != nil {
				w.m.complete(turn[0].op, cause)
				padded, turn = &turn[0], nil
			}
		}
		w.pieces = w.pieces[:0]
		switch {
		case padded != nil:
			w.pieces = padded.padding(w.pieces, n)
		case len(turn) > 0:
			w.pieces = turn[0].rest(w.pieces, n)
		}
		k, err := w.write(w.pieces)
		n += k
		switch {
		case interrupted(err):
		case err != nil:
			w.m.endTurn(turn, 0, nil)
			return err
		default:
			w.m.endTurn(turn, len(turn), nil)
			return nil
		}
	}
}

// add encodes the header and the trailer of c, and appends these and the memory of c, which it does
// not copy, to w.pieces.
func (w *writer) add(c *turnChunk) {
	start := len(w.pieces)
	w.pieces = append(w.pieces, w.header(c).Append(c.header[:0]))
	w.pieces = c.body.AppendSegments(w.pieces)
	t := w.trailer(c, w.pieces[start:]...)
	w.pieces = append(w.pieces, t.Append(c.trailer[:0]))
}

// trailer returns the trailer of c. The pieces are its header and its bytes.
func (w *writer) trailer(c *turnChunk, pieces ...[]byte) native.ChunkTrailer {
	if c.op.void {
		return native.ChunkTrailer{Discarded: true}
	}
	return native.ChunkTrailer{Sum: w.sum(pieces...)}
}

func (w *writer) header(c *turnChunk) native.ChunkHeader {
	return native.ChunkHeader{ID: c.op.ID, Length: c.body.Len(), Lane: c.op.lane.number, CRC: w.m.cfg.Checksum, Eager: c.op.eager}
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

// write writes pieces with one gathering call and returns the number of bytes written. The call may
// change the elements of pieces. write does not keep pieces, and clears them.
func (w *writer) write(pieces [][]byte) (int, error) {
	w.pending = pieces
	failpoint.Here()
	n, err := w.gatherer.WriteBuffers(&w.pending)
	w.pending = nil
	clear(pieces)
	return int(n), err
}
