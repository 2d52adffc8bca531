package bulk

import (
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
)

// turnChunk is a chunk of a turn: what the writer writes at once. The chunks of one transfer follow
// each other.
type turnChunk struct {
	op      *transferOp
	body    device.Buffer // the memory of op that it carries
	header  [native.ChunkHeaderSize]byte
	trailer [native.ChunkTrailerSize]byte
}

func (c *turnChunk) size() int { return len(c.header) + c.body.Len() + len(c.trailer) }

// rest appends to pieces those that follow the first n bytes of c, and returns the extended slice.
// n must be at most the size of c. The pieces refer to c and to the memory of its transfer.
func (c *turnChunk) rest(pieces [][]byte, n int) [][]byte {
	length := c.body.Len()
	pieces = append(pieces, c.header[min(n, len(c.header)):])
	n = max(n-len(c.header), 0)
	pieces = c.body.Slice(min(n, length), length-min(n, length)).AppendSegments(pieces)
	return append(pieces, c.trailer[max(n-length, 0):])
}

// padding appends to pieces those that must follow the first n bytes of c if its transfer was
// cancelled, and returns the extended slice. n must be at most the size of c. If part of the
// trailer is among the first n bytes, padding appends the remaining bytes of the trailer. Otherwise
// it appends the remaining bytes of the header, zeros for the missing bytes of the body, and a
// trailer that marks the chunk as discarded. The pieces refer to c, and share one area of zeros.
func (c *turnChunk) padding(pieces [][]byte, n int) [][]byte {
	length := c.body.Len()
	if n <= len(c.header)+length {
		native.ChunkTrailer{Discarded: true}.Append(c.trailer[:0])
	}
	pieces = append(pieces, c.header[min(n, len(c.header)):])
	n = max(n-len(c.header), 0)
	page := make([]byte, min(length, 32<<10)) // shared by all pieces of zeros
	for missing := length - min(n, length); missing > 0; {
		p := page[:min(missing, len(page))]
		pieces = append(pieces, p)
		missing -= len(p)
	}
	return append(pieces, c.trailer[max(n-length, 0):])
}

// nextTurn blocks until there is a Send whose bytes may be written. It takes the first Sends of the
// queue, makes them active, and returns their next chunks of at most chunk bytes each: together at
// most count chunks and turnBytes. The writer may use the memory of the Sends until endTurn. The
// result has the memory of turn. It is empty after the end of the Mover.
func (m *Mover) nextTurn(turn []turnChunk, count, chunk int) []turnChunk {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.first == nil && m.runnable.Len() == 0 && !m.ended {
		m.wake.Wait()
	}
	turn = turn[:0]
	left := turnBytes
	for !m.ended && (m.first != nil || m.runnable.Len() > 0) && left > 0 && len(turn) < count {
		op := m.first
		if m.first = nil; op == nil {
			op = m.runnable.Pop()
		}
		op.active, op.inTurn = true, true
		for off := op.moved; off < op.Buf.Len() && left > 0 && len(turn) < count; {
			n := min(op.Buf.Len()-off, chunk, left)
			turn = append(turn, turnChunk{op: op, body: op.Buf.Slice(off, n)})
			off += n
			left -= n
		}
	}
	return turn
}

// endTurn records that the first chunks of turn, whose number is the argument whole, have been
// sent, and that the writer no longer uses the memory of any of its transfers but keep. It
// completes the transfers of which all bytes are sent or that were cancelled, and queues the others
// for another turn. keep, which may be nil, stays active; it must have chunks that were not sent.
func (m *Mover) endTurn(turn []turnChunk, whole int, keep *transferOp) {
	m.mu.Lock()
	ended := m.endedOps[:0]
	for i := range turn {
		op := turn[i].op
		if i < whole && m.advance(&m.out, op, turn[i].body.Len()) {
			ended = append(ended, completion{op, nil})
		}
		if i+1 < len(turn) && turn[i+1].op == op || op == keep {
			continue
		}
		unsent := m.out.has(op) || op.void && op.moved == 0
		if cause := m.out.releaseActive(op); cause != nil {
			ended = append(ended, completion{op, cause})
		} else if unsent && op.eager && m.first == nil {
			m.first = op // the receiver wants the bytes of eager transfers in order
		} else if unsent {
			m.runnable.Push(op)
		}
		m.leaveTurn(op)
	}
	m.endedOps = ended // only the writer uses it
	m.mu.Unlock()
	for _, c := range ended {
		m.complete(c.op, c.err)
	}
	clear(ended)
}

// releaseCancelled returns nil if the Send of c, which is active, was not cancelled. Otherwise it
// records that the writer no longer uses the memory of the Send, and returns the cause, with which
// the caller must complete it. n bytes of c have been sent; padding follows.
func (m *Mover) releaseCancelled(c *turnChunk, n int) (cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	op := c.op
	if op.cause == nil {
		return nil
	}
	if op.inTurn = false; op.eager && n > len(c.header)+c.body.Len() {
		op.moved += c.body.Len() // the chunk stays valid
		m.endEager(op)
	}
	return m.out.releaseActive(op)
}
