package nop

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Decoder reads values from a slice, one element per call, in the order in which they were appended.
//
// It keeps its first error: from then on every method returns zero values and reads nothing, so a
// caller may read a whole message and check [Decoder.Err] once. Loops over a count end, because a
// failed count is 0.
//
// Nothing is copied or allocated unless a method's comment says so, and counts that exceed the
// remaining bytes fail. The zero Decoder reads from an empty slice.
type Decoder struct {
	buf []byte
	off int
	err error
}

// NewDecoder returns a Decoder that reads p. The Decoder keeps p, and the slices that Bytes returns
// are parts of p.
func NewDecoder(p []byte) Decoder { return Decoder{buf: p} }

// Err returns the first error of d, or nil. It is an [*Error] unless [Decoder.Fail] has set
// another.
func (d *Decoder) Err() error { return d.err }

// Fail sets err as the error of d, which Err returns, and drops the remaining bytes. If d has an
// error already, Fail does nothing. It is for values that are well-formed but invalid. err must not
// be nil.
func (d *Decoder) Fail(err error) {
	if d.err == nil {
		d.err = err
		d.buf = d.buf[:d.off]
	}
}

// Failf sets the error of d, as Fail does, to an [*Error] at the current offset. Its text is
// formatted as by fmt.Sprintf.
func (d *Decoder) Failf(format string, args ...any) { d.failAt(d.off, format, args...) }

func (d *Decoder) failAt(off int, format string, args ...any) {
	d.Fail(&Error{Offset: off, What: fmt.Sprintf(format, args...)})
}

// Finish ends the decoding. It returns the first error of d, an [*Error] if bytes remain unread,
// and otherwise nil.
func (d *Decoder) Finish() error {
	if n := d.remaining(); n > 0 {
		d.Failf("%d bytes too many", n)
	}
	return d.err
}

// Offset returns the number of bytes read so far.
func (d *Decoder) Offset() int { return d.off }

// remaining returns the number of bytes left to read.
func (d *Decoder) remaining() int { return len(d.buf) - d.off }

// next reads the next n bytes and returns them without a copy. The result is part of the input; an
// append to it does not overwrite later bytes. If fewer than n bytes remain, next sets the error of
// d and returns nil.
func (d *Decoder) next(n int) []byte {
	if n > d.remaining() {
		d.Failf("want %d bytes, %d left", n, d.remaining())
		return nil
	}
	p := d.buf[d.off : d.off+n : d.off+n]
	d.off += n
	return p
}

// prefix reads the next byte and returns it and true. If no byte remains it sets the error of d and
// returns 0 and false.
func (d *Decoder) prefix() (b byte, ok bool) {
	if d.remaining() == 0 {
		d.Failf("want a value, nothing left")
		return 0, false
	}
	b = d.buf[d.off]
	d.off++
	return b, true
}

// expect reads a prefix byte and reports whether it is want. If it is another one, or no byte
// remains, expect sets the error of d, in whose text kind is the name of the expected value.
func (d *Decoder) expect(want byte, kind string) bool {
	got, ok := d.prefix()
	if ok && got != want {
		d.failAt(d.off-1, "want %s (%02x), got %02x", kind, want, got)
		ok = false
	}
	return ok
}

// fixed reads a little-endian number of width bytes: 1, 2, 4 or 8. If fewer bytes remain it sets
// the error of d and returns 0.
func (d *Decoder) fixed(width int) uint64 {
	p := d.next(width)
	switch len(p) {
	case 1:
		return uint64(p[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(p))
	case 4:
		return uint64(binary.LittleEndian.Uint32(p))
	case 8:
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

// Bytes reads a string and returns it, without a copy, as a slice of the input. The result is
// empty, possibly nil, if the next value is not a complete string, or after an earlier error.
func (d *Decoder) Bytes() []byte {
	if !d.expect(prefixString, "a string") {
		return nil
	}
	return d.next(d.count(1))
}

// Array reads the header of an array whose elements are not integers, and returns the number of
// elements. The caller must then read the elements. minSize is the minimum encoded size of an
// element in bytes, at least 1. If the remaining bytes cannot contain that many elements, or the
// next value is no such array, Array sets the error of d and returns 0. So a caller may allocate
// memory for all elements.
func (d *Decoder) Array(minSize int) int {
	if !d.expect(prefixArray, "an array") {
		return 0
	}
	return d.count(minSize)
}

// Map reads the header of a map and returns the number of its entries. The caller must then read
// the key and the value of each entry; keys may come in any order and more than once. minSize is
// the minimum encoded size of an entry in bytes, at least 1. If the remaining bytes cannot contain
// that many entries, or the next value is no map, Map sets the error of d and returns 0.
func (d *Decoder) Map(minSize int) int {
	if !d.expect(prefixMap, "a map") {
		return 0
	}
	return d.count(minSize)
}

// Struct reads the header of a structure. The caller must then read the members. If the next value
// is not a structure with that number of members, Struct sets the error of d.
func (d *Decoder) Struct(members int) {
	d.exactly(prefixStruct, "a structure", members)
}

// Pair reads the header of a pair; the caller must then read its two values. If the next value is
// not a pair, Pair sets the error of d.
func (d *Decoder) Pair() { d.exactly(prefixArray, "a pair", 2) }

// Variant reads the header of a variant and returns the index of its alternative. The caller must
// then read the value; after -1, the empty variant, the value is an empty optional. If the next
// value is no variant, Variant sets the error of d and returns 0.
func (d *Decoder) Variant() int32 {
	if !d.expect(prefixVariant, "a variant") {
		return 0
	}
	return d.Int32()
}

// Empty reads an empty optional and returns true. If the next value is not an empty optional, it reads
// nothing and returns false; the caller then reads the value of the optional.
func (d *Decoder) Empty() bool {
	if d.remaining() == 0 || d.buf[d.off] != prefixEmpty {
		return false
	}
	d.off++
	return true
}

// exactly reads a header that begins with the byte prefix. If the next value begins with another
// byte, or the count in its header is not parts, exactly sets the error of d. kind names the
// expected value in the error.
func (d *Decoder) exactly(prefix byte, kind string, parts int) {
	start := d.off
	if !d.expect(prefix, kind) {
		return
	}
	if n := d.Uint64(); n != uint64(parts) {
		d.failAt(start, "want %s of %d, got %d", kind, parts, n)
	}
}

// count reads the number of elements of a value and returns it. If the remaining bytes cannot
// contain that many elements of minSize bytes each, it sets the error of d and returns 0. minSize
// must be at least 1.
func (d *Decoder) count(minSize int) int {
	start := d.off
	n := d.Uint64()
	remaining := uint64(d.remaining())
	if n > remaining || n*uint64(minSize) > remaining {
		d.failAt(start, "count of %d parts, the bytes left hold at most %d", n, remaining/uint64(minSize))
		return 0
	}
	return int(n)
}

// Uint64 reads an unsigned integer that is encoded in at most 8 bytes. If the next value is
// anything else, it sets the error of d and returns 0, as it does after an earlier error.
func (d *Decoder) Uint64() uint64 { return d.unsigned(prefixU64) }

// Uint32 reads an unsigned integer that is encoded in at most 4 bytes. If the next value is
// anything else, it sets the error of d and returns 0, even if a wider encoding has a value that
// fits, as in libnop. It also returns 0 after an earlier error.
func (d *Decoder) Uint32() uint32 { return uint32(d.unsigned(prefixU32)) }

// Int64 reads a signed integer that is encoded in at most 8 bytes. If the next value is anything
// else, it sets the error of d and returns 0, as it does after an earlier error.
func (d *Decoder) Int64() int64 { return d.signed(prefixI64) }

// Int32 reads a signed integer that is encoded in at most 4 bytes. If the next value is anything
// else, it sets the error of d and returns 0, even if a wider encoding has a value that fits, as in
// libnop. It also returns 0 after an earlier error.
func (d *Decoder) Int32() int32 { return int32(d.signed(prefixI32)) }

// Bool reads a boolean. If the next value is not one, it sets the error of d and returns false, as
// it does after an earlier error.
func (d *Decoder) Bool() bool {
	b, ok := d.prefix()
	if ok && b > 1 {
		d.failAt(d.off-1, "want a truth value (00 or 01), got %02x", b)
		return false
	}
	return b == 1
}

// Uint64s reads an array of 64-bit integers, appends its elements to dst and returns the extended
// slice. If the next value is no such array, it sets the error of d and returns dst. It allocates
// only to extend dst, in proportion to the bytes that it reads.
func (d *Decoder) Uint64s(dst []uint64) []uint64 {
	start := d.off
	if !d.expect(prefixIntegers, "an array of integers") {
		return dst
	}
	size := d.count(1)
	if size%8 != 0 {
		d.failAt(start, "%d bytes are no array of 64-bit integers", size)
		return dst
	}
	raw := d.next(size)
	dst = slices.Grow(dst, len(raw)/8)
	for ; len(raw) > 0; raw = raw[8:] {
		dst = append(dst, binary.LittleEndian.Uint64(raw))
	}
	return dst
}

// unsigned reads and returns an unsigned integer. widest, one of prefixU8 to prefixU64, is the
// prefix of the widest encoding that is accepted. If the next value is anything else, unsigned sets
// the error of d and returns 0.
func (d *Decoder) unsigned(widest byte) uint64 {
	b, _ := d.prefix()
	if b <= maxPositive {
		return uint64(b)
	}
	if b < prefixU8 || b > widest {
		d.failAt(d.off-1, "want an unsigned integer (00..7f or 80..%02x), got %02x", widest, b)
		return 0
	}
	return d.fixed(1 << (b - prefixU8))
}

// signed reads and returns a signed integer. widest, one of prefixI8 to prefixI64, is the prefix of
// the widest encoding that is accepted. If the next value is anything else, signed sets the error
// of d and returns 0.
func (d *Decoder) signed(widest byte) int64 {
	b, _ := d.prefix()
	if b <= maxPositive || b >= minNegative {
		return int64(int8(b))
	}
	if b < prefixI8 || b > widest {
		d.failAt(d.off-1, "want a signed integer (00..7f, c0..ff or 84..%02x), got %02x", widest, b)
		return 0
	}
	width := 1 << (b - prefixI8)
	unused := 64 - 8*width
	return int64(d.fixed(width)<<unused) >> unused
}
