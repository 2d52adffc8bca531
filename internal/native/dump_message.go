package native

import (
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/compress"
)

func messageKind(kind byte) string {
	if kind == KindMessage {
		return messageFrame
	}
	return "unknown"
}

// checkMessage returns what is wrong with a whole frame.
func checkMessage(frame []byte) error {
	h, err := DecodeMessageHeader(frame, generous)
	if err != nil {
		return err
	}
	body, err := bodyOf(h, frame)
	if err != nil {
		return err
	}
	return new(Message).Decode(body, generous)
}

// bodyOf takes the body out of a frame that was dumped.
func bodyOf(h Header, frame []byte) ([]byte, error) {
	if len(frame) < HeaderSize+h.Rest() {
		return nil, fault("frame", "crc", "missing")
	}
	return h.Body(frame[HeaderSize:])
}

// dumpedPart is what the entry of a payload or tensor says of the sections
// behind the entries.
type dumpedPart struct {
	name                     string
	source, target, metadata uint64
	compressed, isInline     bool
	length                   uint64 // of what travels
}

// message prints the body of a MESSAGE.
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
	part.isInline = d.number(1, name+" flags", flagNames("inline"))&flagInline != 0
	part.compressed = d.number(1, name+" codec", codecName) != 0
	d.number(2, "reserved", decimal)
	return part
}

func (d *dumper) tensor(name string) dumpedPart {
	part := dumpedPart{name: name}
	part.length = d.number(8, name+" length", sizeText)
	part.metadata = d.number(4, name+" metadata", sizeText)
	part.isInline = d.number(1, name+" flags", flagNames("inline", "target named"))&flagInline != 0
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

// devices prints those of TARGETS.
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
