package native

import (
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/compress"
)

// Decode decodes body, the whole body of a MESSAGE, into m. Metadata and Data of m alias body. If
// body is invalid or exceeds limits, the error is an [*Error] and m is unchanged.
func (m *Message) Decode(body []byte, limits Limits) error {
	return m.decode(&scanner{body: body, length: uint64(len(body)), limits: limits.WithDefaults()})
}

// decode validates the body of s and sets the fields of m, which alias that body. It sets Data only
// if the body contains the inline bytes. If the body is invalid or exceeds the limits of s, the
// error is an [*Error] and m is unchanged.
func (m *Message) decode(s *scanner) error {
	s.scan()
	if s.err != nil {
		return s.err
	}
	rest := s.body[s.entriesEnd():] // the sections after the entries
	compressedLengths := cut(&rest, uint64(s.compressedLengths)*compressedEntry)
	kinds := cut(&rest, s.kinds)
	metadata := cut(&rest, s.metadata)
	data := rest // empty if the body is only the descriptor
	hasInline := uint64(len(data)) == s.inline
	m.Timeout = time.Duration(binary.LittleEndian.Uint64(s.body))
	m.Metadata = cut(&metadata, uint64(binary.LittleEndian.Uint32(s.body[8:])))
	m.Payloads = slices.Grow(m.Payloads[:0], s.payloads)[:s.payloads]
	for i := range m.Payloads {
		m.Payloads[i].decode(s.payload(i), &compressedLengths, &metadata)
	}
	m.Tensors = slices.Grow(m.Tensors[:0], s.tensors)[:s.tensors]
	for i := range m.Tensors {
		entry := s.tensor(i)
		t := &m.Tensors[i]
		t.decode(entry, &compressedLengths, &metadata)
		t.Source.Kind = m.kinds.intern(cut(&kinds, uint64(entry[13])))
		t.Target.Kind = m.kinds.intern(cut(&kinds, uint64(entry[14])))
	}
	if hasInline {
		m.SetData(data)
	}
	return nil
}

// SetData sets the Data of the inline parts to consecutive pieces of inline, payloads before
// tensors. inline must have all inline bytes of the message. Data aliases inline.
func (m *Message) SetData(inline []byte) {
	for i := range m.Payloads {
		if p := &m.Payloads[i]; p.Inline {
			p.Data = cut(&inline, p.WireLength())
		}
	}
	for i := range m.Tensors {
		if t := &m.Tensors[i]; t.Inline {
			t.Data = cut(&inline, t.WireLength())
		}
	}
}

func (p *Payload) decode(entry []byte, compressedLengths, metadata *[]byte) {
	*p = Payload{
		Length:   binary.LittleEndian.Uint64(entry),
		Inline:   entry[12]&flagInline != 0,
		Eager:    entry[12]&flagEagerPayload != 0,
		Codec:    compress.Codec(entry[13]),
		Metadata: cut(metadata, uint64(binary.LittleEndian.Uint32(entry[8:]))),
	}
	if p.Codec != compress.None {
		p.CompressedLength = binary.LittleEndian.Uint64(cut(compressedLengths, compressedEntry))
	}
}

// decode sets t from entry, the fixed fields of a tensor on the wire, except Data and the kinds of
// the devices. It removes t's metadata from the front of *metadata, and lets t.Metadata refer to
// it. If t is compressed, it also removes the compressed length from the front of
// *compressedLengths. The body must have been validated, so that entry, *metadata and
// *compressedLengths are long enough.
func (t *Tensor) decode(entry []byte, compressedLengths, metadata *[]byte) {
	*t = Tensor{
		Length:   binary.LittleEndian.Uint64(entry),
		Inline:   entry[12]&flagInline != 0,
		Joined:   entry[12]&flagJoined != 0,
		Eager:    entry[12]&flagEager != 0,
		Codec:    compress.Codec(entry[15]),
		Metadata: cut(metadata, uint64(binary.LittleEndian.Uint32(entry[8:]))),
		Source:   device.Device{Index: int(binary.LittleEndian.Uint32(entry[16:]))},
		Target:   device.Device{Index: int(binary.LittleEndian.Uint32(entry[20:]))},
	}
	if t.Codec != compress.None {
		t.CompressedLength = binary.LittleEndian.Uint64(cut(compressedLengths, compressedEntry))
	}
}

// cut removes the first n bytes from *p and returns them, in the same memory, with their capacity
// limited to n. *p must have n bytes. If n is 0, cut returns nil, so that the result retains no
// memory.
func cut(p *[]byte, n uint64) []byte {
	if n == 0 {
		return nil
	}
	head := (*p)[:n:n]
	*p = (*p)[n:]
	return head
}

// kindCache holds recently received device kinds, so that a message does not allocate their names
// again.
type kindCache struct {
	kinds [8]string
	next  int // index of the entry to replace
}

func (c *kindCache) intern(p []byte) string {
	if len(p) == 0 {
		return ""
	}
	if string(p) == device.KindCPU {
		return device.KindCPU
	}
	for _, k := range c.kinds {
		if k == string(p) {
			return k
		}
	}
	k := string(p)
	c.kinds[c.next] = k
	c.next = (c.next + 1) % len(c.kinds)
	return k
}

// scanner validates the body of a MESSAGE in one pass and finds the sizes of its sections, before
// anything is allocated for them. err is the first error.
type scanner struct {
	body   []byte // whole, or only the descriptor
	length uint64 // of the body
	limits Limits
	err    error

	payloads, tensors       int    // how many
	compressedLengths       int    // how many of both are compressed
	kinds, metadata, inline uint64 // bytes of these sections
	joinable                bool   // the last tensor that has a transfer may have others joined to it
	joined                  int    // the number of these
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

// CountParts returns the numbers of payloads and tensors that the body of a MESSAGE announces, each
// limited to the number for which the body has space. The body need not be valid.
func CountParts(body []byte) (payloads, tensors int) {
	if len(body) < messageFixed {
		return 0, 0
	}
	count := func(at, size int) int {
		return int(min(uint64(binary.LittleEndian.Uint32(body[at:])), uint64(len(body)/size)))
	}
	return count(12, payloadEntry), count(16, tensorEntry)
}

// fixed decodes the fixed part of the body: the counts of payloads and tensors, and the size of the
// metadata. If the body is too short for its entries, or a count is invalid or exceeds the limits,
// it sets s.err and leaves the counts at 0.
func (s *scanner) fixed() {
	if len(s.body) < messageFixed {
		s.err = fault(messageFrame, "length", "%d, want at least %d", len(s.body), messageFixed)
		return
	}
	left := binary.LittleEndian.Uint64(s.body)
	payloads, tensors := s.uint32At(12), s.uint32At(16)
	tables := uint64(payloads)*payloadEntry + uint64(tensors)*tensorEntry
	switch {
	case left > math.MaxInt64:
		s.err = fault(messageFrame, "time left", "%d ns", left)
	case payloads > uint32(s.limits.Payloads):
		s.err = exceeded(messageFrame, "payloads", uint64(payloads), uint64(s.limits.Payloads))
	case tensors > uint32(s.limits.Tensors):
		s.err = exceeded(messageFrame, "tensors", uint64(tensors), uint64(s.limits.Tensors))
	case s.uint32At(20) != 0:
		s.err = fault(messageFrame, "reserved", "%#08x, want 0", s.uint32At(20))
	case tables > uint64(len(s.body)-messageFixed):
		s.err = fault(messageFrame, "length", "%d payloads and %d tensors in %d bytes", payloads, tensors, len(s.body))
	default:
		s.payloads, s.tensors = int(payloads), int(tensors)
		s.metadata = uint64(s.uint32At(8))
	}
}

// uint32At returns the little-endian number in the four bytes of the body that begin at offset at.
// They must be within the fixed part of the body.
func (s *scanner) uint32At(at int) uint32 { return binary.LittleEndian.Uint32(s.body[at:]) }

// payload returns the fixed fields of the i-th payload, a slice of the body. The body must have
// this payload.
func (s *scanner) payload(i int) []byte {
	return s.body[messageFixed+i*payloadEntry:][:payloadEntry]
}

// tensor returns the fixed fields of the i-th tensor, a slice of the body. The body must have this
// tensor.
func (s *scanner) tensor(i int) []byte {
	return s.body[messageFixed+s.payloads*payloadEntry+i*tensorEntry:][:tensorEntry]
}

// entriesEnd returns the offset in the body of the first byte after the entries of payloads and
// tensors.
func (s *scanner) entriesEnd() int {
	return messageFixed + s.payloads*payloadEntry + s.tensors*tensorEntry
}

func (s *scanner) scanPayload(i int, entry []byte) {
	flags, codec := entry[12], compress.Codec(entry[13])
	if flags&^(flagInline|flagEagerPayload) != 0 {
		s.err = faultAt("payload", i, "flags", "unknown bits in %#02x", flags)
		return
	}
	if flags == flagInline|flagEagerPayload {
		s.err = faultAt("payload", i, "flags", "%#02x: inline, yet eager", flags)
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
	named, joined := flags&flagNamed != 0, flags&flagJoined != 0
	canJoin := named && compress.Codec(entry[15]) == compress.None
	sourceIndex, targetIndex := binary.LittleEndian.Uint32(entry[16:]), binary.LittleEndian.Uint32(entry[20:])
	bad := func(field, format string, args ...any) { s.err = faultAt("tensor", i, field, format, args...) }
	switch {
	case flags&^(flagInline|flagNamed|flagJoined|flagEager) != 0:
		bad("flags", "unknown bits in %#02x", flags)
	case flags&flagEager != 0 && (flags&(flagInline|flagJoined) != 0 || !named):
		bad("flags", "%#02x: eager without a transfer to a named target", flags)
	case joined && (flags&flagInline != 0 || !canJoin || !s.joinable):
		bad("flags", "%#02x, and there is no tensor to which it can be joined", flags)
	case joined && s.joined == MaxJoined:
		bad("flags", "%w: more than %d tensors are joined to one", ErrLimit, MaxJoined)
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
		switch {
		case joined:
			s.joined++
		case flags&flagInline == 0:
			s.joinable, s.joined = canJoin, 0
		}
		s.part("tensor", i, entry, compress.Codec(entry[15]))
	}
}

// part validates the fields that payloads and tensors have in common, and adds the sizes of this
// part to the sums s.metadata and s.inline. entry has the fixed fields of the i-th part of its
// kind; errors name the kind with the text what, "payload" or "tensor". If a field is invalid, part
// sets s.err.
func (s *scanner) part(what string, i int, entry []byte, codec compress.Codec) {
	length := binary.LittleEndian.Uint64(entry)
	inline := entry[12]&flagInline != 0
	travels := length
	if codec != compress.None {
		travels = s.compressedLength(what, i, length, codec)
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

// compressedLength reads the next compressed length in the body and returns it. It is that of the
// i-th payload or tensor, which has length bytes uncompressed; errors name the kind with the text
// what, "payload" or "tensor". If codec is not known, or the compressed length is missing,
// compressedLength sets s.err and returns 0. If the compressed length is 0 or not less than length,
// it sets s.err too.
func (s *scanner) compressedLength(what string, i int, length uint64, codec compress.Codec) uint64 {
	at := s.entriesEnd() + s.compressedLengths*compressedEntry
	if !codec.Known() {
		s.err = faultAt(what, i, "codec", "%d is not known", codec)
		return 0
	}
	if len(s.body) < at+compressedEntry {
		s.err = faultAt(what, i, "compressed length", "missing")
		return 0
	}
	compressedLength := binary.LittleEndian.Uint64(s.body[at:])
	if compressedLength == 0 || compressedLength >= length {
		s.err = faultAt(what, i, "compressed length", "%d, of a part of %d", compressedLength, length)
	}
	s.compressedLengths++
	return compressedLength
}

// checkSize sets s.err if the size of the body is not the sum of its sections, or if the descriptor or
// the inline bytes exceed the limits.
func (s *scanner) checkSize() {
	descriptor := uint64(s.entriesEnd()+s.compressedLengths*compressedEntry) + s.kinds + s.metadata
	switch whole := descriptor + s.inline; {
	case whole != s.length:
		s.err = fault(messageFrame, "length", "%d, the parts make %d", s.length, whole)
	case descriptor > uint64(s.limits.Descriptor):
		s.err = exceeded(messageFrame, "descriptor", descriptor, uint64(s.limits.Descriptor))
	case s.inline > uint64(s.limits.Inline):
		s.err = exceeded(messageFrame, "inline bytes", s.inline, uint64(s.limits.Inline))
	}
}
