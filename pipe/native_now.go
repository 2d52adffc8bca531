package pipe

// writeNow writes the described message straight from its memory, if nothing waits
// to be written before it and the stream does not make anybody wait; what there is
// no room for waits in a block. It reports false if it did nothing. The caller
// holds mu.
func (o *nativeOutbox) writeNow(m *Message, room share) bool {
	if !o.free() {
		return false
	}
	o.head = o.frame.AppendHead(o.head[:0], false)
	o.pieces = o.appendInline(append(o.pieces[:0], o.head), m)
	o.putOff(o.writePieces(), room)
	clear(o.pieces)
	o.head = kept(o.head)
	return true
}

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

// free reports whether a message can be written at once.
func (o *nativeOutbox) free() bool {
	return o.poll != nil && !o.writing && o.blocks.Len() == 0 && o.stopped == nil && !o.pipe.context.opts.Checksum
}

// mostInline is up to how many bytes a part of the next message travels inside it:
// more where nothing is under way and the peer looks for the message.
func (o *nativeOutbox) mostInline(packed *packing) int {
	if packed == nil && len(o.ops) == 0 && o.free() && o.poll.Expected() {
		return inlineMessage
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
func (o *nativeOutbox) putOff(left [][]byte, room share) {
	if len(left) == 0 {
		o.room.giveBack(room)
		return
	}
	size := 0
	for _, p := range left {
		size += len(p)
	}
	b := o.blockFor(size)
	b.room.add(room)
	for _, p := range left {
		b.data = append(b.data, p...)
	}
	o.signal()
}
