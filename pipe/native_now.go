package pipe

// writeNow writes the described message straight from its memory, if nothing waits
// to be written before it and the stream does not make anybody wait; what there is
// no room for waits in a block. It reports false if it did nothing. The caller
// holds mu.
func (o *nativeOutbox) writeNow(m *Message, room share) bool {
	if o.poll == nil || o.writing || o.blocks.Len() > 0 || o.pipe.context.opts.Checksum || o.stopped != nil {
		return false
	}
	o.head = o.frame.AppendHead(o.head[:0], false)
	o.pieces = o.appendInline(append(o.pieces[:0], o.head), m)
	n, err := o.poll.TryWrite(o.pieces...) // an error comes again when the rest is written
	o.putOff(n, err, room)
	clear(o.pieces)
	o.head = kept(o.head)
	return true
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

// putOff leaves to the run loop what of the pieces is behind n bytes, which is
// nothing if all was written.
func (o *nativeOutbox) putOff(n int, err error, room share) {
	left := -n
	for _, p := range o.pieces {
		left += len(p)
	}
	if left == 0 && err == nil {
		o.room.giveBack(room)
		return
	}
	b := o.blockFor(left)
	b.room.add(room)
	for _, p := range o.pieces {
		done := min(n, len(p))
		b.data = append(b.data, p[done:]...)
		n -= done
	}
	o.signal()
}
