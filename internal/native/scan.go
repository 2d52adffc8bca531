package native

import (
	"encoding/binary"
	"math"

	"github.com/tensorpipe-go/tensorpipe/internal/compress"
)

// scanner walks over the body of a MESSAGE once, to find out whether it is in
// order and where its sections start, before anything is allocated for it. The
// first error stays.
type scanner struct {
	body   []byte // or what comes before its inline bytes
	length uint64 // of the body
	limits Limits
	err    error

	payloads, tensors       int    // how many
	forms                   int    // how many of them are compressed
	kinds, metadata, inline uint64 // bytes of these sections
}

func (s *scanner) scan() {
	s.fixed()
	for i := 0; i < s.payloads && s.err == nil; i++ {
		s.scanPayload(i, s.payload(i))
	}
	for i := 0; i < s.tensors && s.err == nil; i++ {
		s.scanTensor(i, s.tensor(i))
	}
	if s.err == nil {
		s.checkSize()
	}
}

// CountParts is how many payloads and tensors the body of a MESSAGE announces,
// as far as it has room for them: of one that turns out to be wrong, anything up
// to that.
func CountParts(body []byte) (payloads, tensors int) {
	if len(body) < messageFixed {
		return 0, 0
	}
	count := func(at, size int) int {
		return int(min(uint64(binary.LittleEndian.Uint32(body[at:])), uint64(len(body)/size)))
	}
	return count(12, payloadEntry), count(16, tensorEntry)
}

// fixed takes the front of the body and makes sure that the tables behind it
// are there.
func (s *scanner) fixed() {
	if len(s.body) < messageFixed {
		s.err = fault(messageFrame, "length", "%d, want at least %d", len(s.body), messageFixed)
		return
	}
	left := binary.LittleEndian.Uint64(s.body)
	payloads, tensors := s.number(12), s.number(16)
	tables := uint64(payloads)*payloadEntry + uint64(tensors)*tensorEntry
	switch {
	case left > math.MaxInt64:
		s.err = fault(messageFrame, "time left", "%d ns", left)
	case payloads > uint32(s.limits.Payloads):
		s.err = exceeded(messageFrame, "payloads", uint64(payloads), uint64(s.limits.Payloads))
	case tensors > uint32(s.limits.Tensors):
		s.err = exceeded(messageFrame, "tensors", uint64(tensors), uint64(s.limits.Tensors))
	case s.number(20) != 0:
		s.err = fault(messageFrame, "reserved", "%#08x, want 0", s.number(20))
	case tables > uint64(len(s.body)-messageFixed):
		s.err = fault(messageFrame, "length", "%d payloads and %d tensors in %d bytes", payloads, tensors, len(s.body))
	default:
		s.payloads, s.tensors = int(payloads), int(tensors)
		s.metadata = uint64(s.number(8))
	}
}

// number is one of the numbers at the front.
func (s *scanner) number(at int) uint32 { return binary.LittleEndian.Uint32(s.body[at:]) }

// payload is the entry of the i-th payload.
func (s *scanner) payload(i int) []byte {
	return s.body[messageFixed+i*payloadEntry:][:payloadEntry]
}

// tensor is the entry of the i-th tensor.
func (s *scanner) tensor(i int) []byte {
	return s.body[messageFixed+s.payloads*payloadEntry+i*tensorEntry:][:tensorEntry]
}

// sections cuts what follows the entries.
func (s *scanner) sections() (forms, kinds, metadata, data []byte) {
	rest := s.body[s.entriesEnd():]
	forms = cut(&rest, uint64(s.forms)*formEntry)
	kinds = cut(&rest, s.kinds)
	metadata = cut(&rest, s.metadata)
	return forms, kinds, metadata, rest
}

// entriesEnd is where the entries end.
func (s *scanner) entriesEnd() int {
	return messageFixed + s.payloads*payloadEntry + s.tensors*tensorEntry
}

func (s *scanner) scanPayload(i int, entry []byte) {
	flags, codec := entry[12], compress.Codec(entry[13])
	if flags&^flagInline != 0 {
		s.err = faultAt("payload", i, "flags", "unknown bits in %#02x", flags)
		return
	}
	if entry[14] != 0 || entry[15] != 0 {
		s.err = faultAt("payload", i, "reserved", "not 0")
		return
	}
	s.part("payload", i, entry, codec)
}

func (s *scanner) scanTensor(i int, entry []byte) {
	flags, source, target := entry[12], entry[13], entry[14]
	named := flags&flagNamed != 0
	sourceIndex, targetIndex := binary.LittleEndian.Uint32(entry[16:]), binary.LittleEndian.Uint32(entry[20:])
	bad := func(field, format string, args ...any) { s.err = faultAt("tensor", i, field, format, args...) }
	switch {
	case flags&^(flagInline|flagNamed) != 0:
		bad("flags", "unknown bits in %#02x", flags)
	case source == 0:
		bad("source kind", "empty")
	case named && target == 0:
		bad("target kind", "empty, yet the target is named")
	case !named && target != 0:
		bad("target kind", "%d bytes, yet the target is not named", target)
	case !named && targetIndex != 0:
		bad("target index", "%d, yet the target is not named", targetIndex)
	case max(int(source), int(target)) > s.limits.Kind:
		bad("device kind", "%w: %d bytes, at most %d", ErrLimit, max(source, target), s.limits.Kind)
	case max(sourceIndex, targetIndex) > math.MaxInt32:
		bad("device index", "%d, want 0..%d", max(sourceIndex, targetIndex), math.MaxInt32)
	case binary.LittleEndian.Uint64(entry[24:]) != 0:
		bad("reserved", "not 0")
	default:
		s.kinds += uint64(source) + uint64(target)
		s.part("tensor", i, entry, compress.Codec(entry[15]))
	}
}

// part counts what payloads and tensors have in common.
func (s *scanner) part(what string, i int, entry []byte, codec compress.Codec) {
	length := binary.LittleEndian.Uint64(entry)
	inline := entry[12]&flagInline != 0
	travels := length
	if codec != compress.None {
		travels = s.form(what, i, length, codec)
	}
	switch {
	case s.err != nil:
	case length > math.MaxInt64:
		s.err = faultAt(what, i, "length", "%d", length)
	case length == 0 && !inline:
		s.err = faultAt(what, i, "flags", "empty, yet not inline")
	case inline && travels > s.length-s.inline:
		s.err = faultAt(what, i, "length", "%d inline bytes in a body of %d", travels, s.length)
	default:
		s.metadata += uint64(binary.LittleEndian.Uint32(entry[8:]))
		if inline {
			s.inline += travels
		}
	}
}

// form is the length of the compressed form of a part of so many bytes.
func (s *scanner) form(what string, i int, length uint64, codec compress.Codec) uint64 {
	at := s.entriesEnd() + s.forms*formEntry
	if !codec.Known() {
		s.err = faultAt(what, i, "codec", "%d is not known", codec)
		return 0
	}
	if len(s.body) < at+formEntry {
		s.err = faultAt(what, i, "compressed length", "missing")
		return 0
	}
	form := binary.LittleEndian.Uint64(s.body[at:])
	if form == 0 || form >= length {
		s.err = faultAt(what, i, "compressed length", "%d, of a part of %d", form, length)
	}
	s.forms++
	return form
}

// checkSize compares what was announced with what is there.
func (s *scanner) checkSize() {
	descriptor := uint64(s.entriesEnd()+s.forms*formEntry) + s.kinds + s.metadata
	switch whole := descriptor + s.inline; {
	case whole != s.length:
		s.err = fault(messageFrame, "length", "%d, the parts make %d", s.length, whole)
	case descriptor > uint64(s.limits.Descriptor):
		s.err = exceeded(messageFrame, "descriptor", descriptor, uint64(s.limits.Descriptor))
	case s.inline > uint64(s.limits.Inline):
		s.err = exceeded(messageFrame, "inline bytes", s.inline, uint64(s.limits.Inline))
	}
}
