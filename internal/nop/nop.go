// Package nop implements the part of libnop's binary encoding that TensorPipe uses.
//
// Every value starts with a prefix byte. Small integers are their own prefix; all other prefixes
// identify the kind of value and are followed by a count or by the value. Multi-byte numbers are
// little-endian:
//
//	00..7f         an integer from 0 to 127
//	c0..ff         an integer from -64 to -1
//	80 81 82 83    an unsigned integer of 1, 2, 4 or 8 bytes
//	84 85 86 87    a signed integer of 1, 2, 4 or 8 bytes
//	b8 index value a variant; index is signed, -1 marks the empty variant
//	b9 n value*n   a structure with n members
//	ba n value*n   an array, or a pair if n is 2
//	bb n (k v)*n   a map
//	bc n byte*n    an array of integers of fixed width, n counts bytes
//	bd n byte*n    a string
//	be             an empty optional; a full one is the bare value
//
// The encoding is not self-describing: a reader must know which value comes next. Therefore this
// package does not use reflection. Each Append function appends one element to a slice, and each method
// of [Decoder] reads one element from a slice:
//
//	p := nop.AppendStructHeader(nil, 2)
//	p = nop.AppendString(p, "cpu")
//	p = nop.AppendInt(p, 0)
//
//	d := nop.NewDecoder(p)
//	d.Struct(2)
//	kind, index := string(d.Bytes()), d.Int32()
//	err := d.Finish()
//
// Writers use the shortest form of a number; readers accept any form of the right signedness, as
// libnop's do.
package nop

import (
	"fmt"
)

// The prefix bytes. The prefixes of integers are in the order of their widths, so that the distance
// from the first is the binary logarithm of the width.
const (
	maxPositive = 0x7f // largest integer that is its own prefix
	minNegative = 0xc0 // -64, smallest integer that is its own prefix

	prefixU8  = 0x80
	prefixU16 = 0x81
	prefixU32 = 0x82
	prefixU64 = 0x83
	prefixI8  = 0x84
	prefixI16 = 0x85
	prefixI32 = 0x86
	prefixI64 = 0x87

	prefixVariant  = 0xb8
	prefixStruct   = 0xb9
	prefixArray    = 0xba
	prefixMap      = 0xbb
	prefixIntegers = 0xbc
	prefixString   = 0xbd
	prefixEmpty    = 0xbe
)

// Error reports where and why bytes are not the expected value. The peer uses another protocol or is
// faulty, and the connection cannot be used any more.
type Error struct {
	Offset int    // of the element that is wrong, in bytes
	What   string // the violation
}

func (e *Error) Error() string {
	return fmt.Sprintf("nop: byte %d: %s", e.Offset, e.What)
}
