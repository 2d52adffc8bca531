package native

import (
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/compress"
)

// checkControl decodes frame, a whole frame of the control stream. It returns the error with which
// the decoder rejects the frame, or nil.
func checkControl(frame []byte) error {
	h, err := DecodeControlHeader(frame, dumpLimits)
	if err != nil {
		return err
	}
	body, err := bodyOf(h, frame)
	if err != nil {
		return err
	}
	_, err = DecodeControl(ControlKind(h.Kind), body, dumpLimits)
	return err
}

// control prints the body of a control frame of kind d.kind, which begins at d.off, and advances
// d.off past the printed fields.
func (d *dumper) control() {
	kind := ControlKind(d.kind)
	switch {
	case kind == Ready:
		d.number(8, "transfer", transferName)
	case kind == Credit:
		d.number(8, "bytes", decimal)
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
	sender := ""
	if id>>63 != 0 {
		sender = " of the server"
	}
	return fmt.Sprintf("message %d%s, place %d", id<<1>>17, sender, id&0xffff)
}

// chunk prints the chunk of the bulk connection at d.off and advances d.off past it. If the chunk
// is truncated it prints a remark, and if the chunk is invalid the error of the decoder.
func (d *dumper) chunk() {
	start := d.off
	d.number(8, "transfer", transferName)
	length := d.number(4, "length", decimal)
	d.number(2, "lane", decimal)
	d.number(1, "flags", flagNames("checksum", "eager"))
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

// checkChunk decodes p, a whole chunk with header and trailer, and verifies its checksum. It
// returns the error with which the decoder rejects the chunk, or nil.
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

// checkMessage decodes frame, a whole frame of the message stream. It returns the error with which
// the decoder rejects the frame, or nil.
func checkMessage(frame []byte) error {
	h, err := DecodeMessageHeader(frame, dumpLimits)
	if err != nil {
		return err
	}
	body, err := bodyOf(h, frame)
	if err != nil {
		return err
	}
	return new(Message).Decode(body, dumpLimits)
}

// bodyOf returns the body of frame, a whole frame with the decoded header h. The body aliases
// frame. If the header announces a checksum, bodyOf verifies it. If the checksum is missing or
// wrong, the error is an [*Error].
func bodyOf(h Header, frame []byte) ([]byte, error) {
	if len(frame) < HeaderSize+h.Remaining() {
		return nil, fault("frame", "crc", "missing")
	}
	return h.Body(frame[HeaderSize:])
}

// dumpedPart holds the sizes that the fixed fields of a payload or tensor give for its bytes in the
// later sections of a MESSAGE.
type dumpedPart struct {
	name                     string
	source, target, metadata uint64
	compressed, isInline     bool
	length                   uint64 // bytes sent: compressed if compressed is set
}

// message prints the body of a MESSAGE, which begins at d.off, and advances d.off past the fields
// that it has printed. It stops early if the body is truncated.
func (d *dumper) message() {
	d.number(8, "time left", timeLeft)
	metadata := d.number(4, "metadata", sizeText)
	payloads := d.number(4, "payloads", decimal)
	tensors := d.number(4, "tensors", decimal)
	d.number(4, "reserved", decimal)
	var parts []dumpedPart
	for i := uint64(0); i < payloads && d.off < d.end; i++ {
		parts = append(parts, d.payload(fmt.Sprintf("payload %d", i)))
	}
	for i := uint64(0); i < tensors && d.off < d.end; i++ {
		parts = append(parts, d.tensor(fmt.Sprintf("tensor %d", i)))
	}
	for i := range parts {
		if p := &parts[i]; p.compressed {
			p.length = d.number(8, p.name+" compressed", sizeText)
		}
	}
	for _, p := range parts {
		d.bytes(p.source, p.name+" source")
		d.bytes(p.target, p.name+" target")
	}
	d.bytes(metadata, "metadata")
	for _, p := range parts {
		d.bytes(p.metadata, p.name+" metadata")
	}
	for _, p := range parts {
		if p.isInline {
			d.bytes(p.length, p.name)
		}
	}
}

func (d *dumper) payload(name string) dumpedPart {
	part := dumpedPart{name: name}
	part.length = d.number(8, name+" length", sizeText)
	part.metadata = d.number(4, name+" metadata", sizeText)
	part.isInline = d.number(1, name+" flags", flagNames("inline", "eager"))&flagInline != 0
	part.compressed = d.number(1, name+" codec", codecName) != 0
	d.number(2, "reserved", decimal)
	return part
}

func (d *dumper) tensor(name string) dumpedPart {
	part := dumpedPart{name: name}
	part.length = d.number(8, name+" length", sizeText)
	part.metadata = d.number(4, name+" metadata", sizeText)
	part.isInline = d.number(1, name+" flags", flagNames("inline", "target named", "joined", "eager"))&flagInline != 0
	part.source = d.number(1, "source kind", sizeText)
	part.target = d.number(1, "target kind", sizeText)
	part.compressed = d.number(1, name+" codec", codecName) != 0
	d.number(4, "source index", decimal)
	d.number(4, "target index", decimal)
	d.number(8, "reserved", decimal)
	return part
}

func codecName(v uint64) string { return compress.Codec(v).String() }

func timeLeft(v uint64) string {
	if v == 0 {
		return "no deadline"
	}
	return time.Duration(v).String()
}

func sizeText(v uint64) string {
	if v == 1 {
		return "1 byte"
	}
	return fmt.Sprintf("%d bytes", v)
}

// devices prints the devices of a TARGETS frame, which begin at d.off: count of them, or as many as
// the body contains.
func (d *dumper) devices(count uint64) {
	for i := uint64(0); i < count && d.off < d.end; i++ {
		var named device.Device
		n := d.number(1, fmt.Sprintf("device %d", i), sizeText)
		named.Kind = string(d.p[d.off:][:min(n, uint64(d.end-d.off))])
		d.bytes(n, "kind")
		d.number(4, "index", func(v uint64) string {
			named.Index = int(v)
			return fmt.Sprintf("%d, as in %s", v, named)
		})
	}
}
