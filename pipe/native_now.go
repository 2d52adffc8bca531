package pipe

import (
	"runtime"
	"slices"
)

// writeOut writes the described message straight from its memory, if nothing waits
// to be written before it and the stream does not make anybody wait. What there is
// no room for waits: in a copy, unless it is a large part and lend allows to wait
// where it lies, for which there is an operation then. The caller holds mu.
func (o *nativeOutbox) writeOut(m *Message, packed *packing, lend bool, room share) *watchedOp {
	if packed != nil || !o.direct() {
		o.encode(m, packed, room)
		o.signalRun()
		return nil
	}
	o.head = o.frame.AppendHead(o.head[:0], false)
	o.pieces = o.appendInline(append(o.pieces[:0], o.head), m)
	left := o.pieces
	if !o.writing && o.blocks.Len() == 0 {
		left = o.writePieces()
	}
	op := o.putOff(m, left, lend, room)
	runtime.KeepAlive(m) // the pieces are not what keeps its memory
	clear(o.pieces)
	o.head = kept(o.head)
	return op
}

// direct reports whether messages are written from the memory that they are in.
func (o *nativeOutbox) direct() bool { return o.poll != nil && !o.pipe.context.opts.Checksum }

// writePieces writes of the pieces what it can while the peer takes them in, and
// returns what is left. An error comes again when that is written.
func (o *nativeOutbox) writePieces() [][]byte {
	left := o.pieces
	for range writeRounds {
		n, err := o.poll.TryWrite(left...)
		left = behind(left, n)
		if err != nil || len(left) == 0 || !o.poll.Room() {
			break
		}
	}
	return left
}

// writeRounds is how often a message goes on to be written when there is room
// again: a peer that takes in little at a time does not hold up its writer.
const writeRounds = 128

// behind is what of the pieces is behind n bytes.
func behind(pieces [][]byte, n int) [][]byte {
	for len(pieces) > 0 && n >= len(pieces[0]) {
		n -= len(pieces[0])
		pieces = pieces[1:]
	}
	if n > 0 {
		pieces[0] = pieces[0][n:]
	}
	return pieces
}

// mostInline is up to how many bytes a part of the next message travels inside it.
func (o *nativeOutbox) mostInline(size *sizer, packed *packing) int {
	if packed == nil && size.data <= inlineRing {
		return o.inlineLimit()
	}
	return inlinePart
}

// inlineLimit is the most that does.
func (o *nativeOutbox) inlineLimit() int {
	if o.direct() {
		return inlineRing
	}
	return inlinePart
}

// appendInline appends the memory of the inline parts, none of which is compressed.
func (o *nativeOutbox) appendInline(pieces [][]byte, m *Message) [][]byte {
	for i := range m.Payloads {
		if o.frame.Payloads[i].Inline {
			pieces = append(pieces, m.Payloads[i].Data)
		}
	}
	for i := range m.Tensors {
		if o.frame.Tensors[i].Inline {
			pieces = m.Tensors[i].Buffer.AppendSegments(pieces)
		}
	}
	return pieces
}

// putOff leaves to the run loop what could not be written.
func (o *nativeOutbox) putOff(m *Message, left [][]byte, lend bool, room share) *watchedOp {
	if len(left) == 0 {
		o.room.giveBack(room)
		return nil
	}
	defer o.signal()
	size := sizeOf(left)
	if lend && slices.ContainsFunc(left, func(p []byte) bool { return len(p) > inlinePart }) {
		return o.lend(m, left, room)
	}
	b := o.blockFor(size)
	o.queue(b, room)
	b.data = joined(b.data, left)
	return nil
}

func sizeOf(pieces [][]byte) (n int) {
	for _, p := range pieces {
		n += len(p)
	}
	return n
}
