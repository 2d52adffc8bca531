package nop

import (
	"encoding/binary"
	"slices"
)

// Uint64 reads an unsigned integer of at most 8 bytes.
func (d *Decoder) Uint64() uint64 { return d.unsigned(prefixU64) }

// Uint32 reads an unsigned integer of at most 4 bytes. A wider form fails also
// where the value would fit, as it does in libnop.
func (d *Decoder) Uint32() uint32 { return uint32(d.unsigned(prefixU32)) }

// Int64 reads a signed integer of at most 8 bytes.
func (d *Decoder) Int64() int64 { return d.signed(prefixI64) }

// Int32 reads a signed integer of at most 4 bytes. A wider form fails also
// where the value would fit, as it does in libnop.
func (d *Decoder) Int32() int32 { return int32(d.signed(prefixI32)) }

// Bool reads a truth value.
func (d *Decoder) Bool() bool {
	b, ok := d.prefix()
	if ok && b > 1 {
		d.failAt(d.off-1, "want a truth value (00 or 01), got %02x", b)
		return false
	}
	return b == 1
}

// Uint64s reads an array of 64-bit integers and appends its elements to dst,
// allocating what dst lacks and no more than the bytes read.
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
	raw := d.take(size)
	dst = slices.Grow(dst, len(raw)/8)
	for ; len(raw) > 0; raw = raw[8:] {
		dst = append(dst, binary.LittleEndian.Uint64(raw))
	}
	return dst
}

// unsigned reads an unsigned integer whose prefix is widest or narrower.
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

// signed reads a signed integer whose prefix is widest or narrower.
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
