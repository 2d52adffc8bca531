package nop

import (
	"encoding/binary"
	"math"
)

// AppendUint appends an unsigned integer of any width in its shortest form.
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

// AppendInt appends a signed integer of any width in its shortest form. Signed and unsigned values have
// the same encoding from 0 to 127 only.
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

// AppendBool appends a boolean.
func AppendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// AppendString appends a string.
func AppendString(dst []byte, s string) []byte {
	return append(appendHeader(dst, prefixString, len(s)), s...)
}

// AppendBytes appends p as a string. libnop encodes strings with arbitrary contents in this way.
func AppendBytes(dst, p []byte) []byte {
	return append(appendHeader(dst, prefixString, len(p)), p...)
}

// AppendUint64s appends an array of integers, each in 8 bytes.
func AppendUint64s(dst []byte, v []uint64) []byte {
	dst = appendHeader(dst, prefixIntegers, 8*len(v))
	for _, x := range v {
		dst = binary.LittleEndian.AppendUint64(dst, x)
	}
	return dst
}

// AppendArrayHeader appends the header of an array; n elements follow, which must not be integers.
func AppendArrayHeader(dst []byte, n int) []byte { return appendHeader(dst, prefixArray, n) }

// AppendPairHeader appends the header of a pair; two values follow.
func AppendPairHeader(dst []byte) []byte { return appendHeader(dst, prefixArray, 2) }

// AppendMapHeader appends the header of a map; n pairs of key and value follow.
func AppendMapHeader(dst []byte, n int) []byte { return appendHeader(dst, prefixMap, n) }

// AppendStructHeader appends the header of a structure; its members follow in order.
func AppendStructHeader(dst []byte, members int) []byte {
	return appendHeader(dst, prefixStruct, members)
}

// AppendVariantHeader appends the header of a variant with its index-th alternative, counted from 0;
// the value follows. The empty variant has index -1 and an empty value.
func AppendVariantHeader(dst []byte, index int32) []byte {
	return AppendInt(append(dst, prefixVariant), int64(index))
}

// AppendEmpty appends an empty optional, or the value of an empty variant. A full optional is encoded
// as its value.
func AppendEmpty(dst []byte) []byte { return append(dst, prefixEmpty) }

func appendHeader(dst []byte, prefix byte, n int) []byte {
	return AppendUint(append(dst, prefix), uint64(n))
}
