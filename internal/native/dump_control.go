package native

import "fmt"

func controlKind(kind byte) string { return ControlKind(kind).String() }

// checkControl returns what is wrong with a whole frame.
func checkControl(frame []byte) error {
	h, err := DecodeControlHeader(frame, generous)
	if err != nil {
		return err
	}
	body, err := bodyOf(h, frame)
	if err != nil {
		return err
	}
	_, err = DecodeControl(ControlKind(h.Kind), body, generous)
	return err
}

// control prints the body of a control frame.
func (d *dumper) control() {
	kind := ControlKind(d.kind)
	switch {
	case kind == Ready:
		d.number(8, "transfer", transferName)
	case kind.hasNumber():
		d.number(8, "message", decimal)
	}
	switch kind {
	case Goodbye, Abort:
		d.bytes(uint64(d.end-d.off), "text")
	case Targets:
		d.devices(d.number(4, "count", decimal))
	case Ready:
		d.number(2, "lane", decimal)
		d.number(6, "reserved", decimal)
	}
}

func transferName(id uint64) string {
	return fmt.Sprintf("message %d, place %d", id>>16, id&0xffff)
}

// chunk prints a chunk of the bulk connection, and what a decoder says to it.
func (d *dumper) chunk() {
	start := d.off
	d.number(8, "transfer", transferName)
	length := d.number(4, "length", decimal)
	d.number(2, "lane", decimal)
	d.number(1, "flags", flagNames("checksum"))
	d.number(1, "reserved", decimal)
	d.bytes(length, "bytes")
	d.number(4, "status", statusName)
	d.number(4, "crc", hexadecimal)
	if size := uint64(d.off - start); size < ChunkHeaderSize+length+ChunkTrailerSize {
		d.note("cut")
	} else if err := checkChunk(d.p[start:d.off]); err != nil {
		d.note(err.Error())
	}
}

func statusName(v uint64) string {
	switch v {
	case 0:
		return "valid"
	case 1:
		return "void"
	}
	return "unknown"
}

// checkChunk returns what is wrong with a whole chunk.
func checkChunk(p []byte) error {
	h, err := DecodeChunkHeader(p)
	if err != nil {
		return err
	}
	front := p[:len(p)-ChunkTrailerSize]
	t, err := DecodeChunkTrailer(p[len(front):])
	if err != nil {
		return err
	}
	return t.Check(h, Sum(0, front))
}
