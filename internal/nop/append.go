package nop

import (
	"encoding/binary"
	"math"
)

// AppendUint appends the shortest encoding of v to dst and returns the extended slice. The encoding
// does not depend on the width of the integer's type.
func AppendUint(dst []byte, v uint64) []byte {
	switch {
	case v <= maxPositive:
		return append(dst, byte(v))
	case v <= math.MaxUint8:
		return append(dst, prefixU8, byte(v))
	case v <= math.MaxUint16:
		return binary.LittleEndian.AppendUint16(append(dst, prefixU16), uint16(v))
	case v <= math.MaxUint32:
		return binary.LittleEndian.AppendUint32(append(dst, prefixU32), uint32(v))
	}
	return binary.LittleEndian.AppendUint64(append(dst, prefixU64), v)
}

// AppendInt appends the shortest encoding of v to dst and returns the extended slice. The encoding does
// not depend on the width of the integer's type. Only from 0 to 127 is it the same as that of
// AppendUint.
func AppendInt(dst []byte, v int64) []byte {
	switch {
	case v >= -64 && v <= maxPositive:
		return append(dst, byte(v))
	case v >= math.MinInt8 && v <= math.MaxInt8:
		return append(dst, prefixI8, byte(v))
	case v >= math.MinInt16 && v <= math.MaxInt16:
		return binary.LittleEndian.AppendUint16(append(dst, prefixI16), uint16(v))
	case v >= math.MinInt32 && v <= math.MaxInt32:
		return binary.LittleEndian.AppendUint32(append(dst, prefixI32), uint32(v))
	}
	return binary.LittleEndian.AppendUint64(append(dst, prefixI64), uint64(v))
}

// AppendBool appends the encoding of v, one byte, to dst and returns the extended slice.
func AppendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// AppendString appends the encoding of s to dst and returns the extended slice.
func AppendString(dst []byte, s string) []byte {
	return append(appendHeader(dst, prefixString, len(s)), s...)
}

// AppendBytes appends the encoding of p as a string to dst and returns the extended slice. libnop
// encodes strings with arbitrary contents in this way.
func AppendBytes(dst, p []byte) []byte {
	return append(appendHeader(dst, prefixString, len(p)), p...)
}

// AppendUint64s appends the encoding of v as an array of integers, each in 8 bytes, to dst and returns
// the extended slice.
func AppendUint64s(dst []byte, v []uint64) []byte {
	dst = appendHeader(dst, prefixIntegers, 8*len(v))
	for _, x := range v {
		dst = binary.LittleEndian.AppendUint64(dst, x)
	}
	return dst
}

// AppendArrayHeader appends the header of an array of n elements to dst and returns the extended
// slice. The caller must then append the n elements, which must not be integers (see AppendUint64s
// for those).
func AppendArrayHeader(dst []byte, n int) []byte { return appendHeader(dst, prefixArray, n) }

// AppendPairHeader appends the header of a pair to dst and returns the extended slice. The caller must
// then append its two values.
func AppendPairHeader(dst []byte) []byte { return appendHeader(dst, prefixArray, 2) }

// AppendMapHeader appends the header of a map of n entries to dst and returns the extended slice.
// The caller must then append n pairs of key and value.
func AppendMapHeader(dst []byte, n int) []byte { return appendHeader(dst, prefixMap, n) }

// AppendStructHeader appends the header of a structure with that number of members to dst and
// returns the extended slice. The caller must then append the members in order.
func AppendStructHeader(dst []byte, members int) []byte {
	return appendHeader(dst, prefixStruct, members)
}

// AppendVariantHeader appends the header of a variant to dst and returns the extended slice. index
// selects the alternative, counted from 0, or is -1 for the empty variant. The caller must then append
// the value, with AppendEmpty if the variant is empty.
func AppendVariantHeader(dst []byte, index int32) []byte {
	return AppendInt(append(dst, prefixVariant), int64(index))
}

// AppendEmpty appends an empty optional, or the value of an empty variant, to dst and returns the
// extended slice. An optional that is not empty is encoded as its value.
func AppendEmpty(dst []byte) []byte { return append(dst, prefixEmpty) }

func appendHeader(dst []byte, prefix byte, n int) []byte {
	return AppendUint(append(dst, prefix), uint64(n))
}
