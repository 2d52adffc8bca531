package tensor

import (
	"math"
	"strconv"
)

// DType is the type of a tensor's elements. The zero DType is invalid.
type DType uint8

// The element types. The names contain the sizes in bits; C64 is two F32 and C128 two F64, the real
// part first.
const (
	Bool DType = iota + 1 // one byte, 0 or 1
	U8
	I8
	I16
	I32
	I64
	F16  // IEEE 754 half precision, see Float16
	BF16 // the upper half of an F32, see BFloat16
	F32
	F64
	C64
	C128
)

// dtypes is indexed by DType; its first entry describes the zero DType.
var dtypes = [...]struct {
	name string
	size int
}{
	{"none", 0},
	Bool: {"bool", 1},
	U8:   {"u8", 1},
	I8:   {"i8", 1},
	I16:  {"i16", 2},
	I32:  {"i32", 4},
	I64:  {"i64", 8},
	F16:  {"f16", 2},
	BF16: {"bf16", 2},
	F32:  {"f32", 4},
	F64:  {"f64", 8},
	C64:  {"c64", 8},
	C128: {"c128", 16},
}

// Valid reports whether d is one of the element types.
func (d DType) Valid() bool { return d > 0 && int(d) < len(dtypes) }

// Size returns the size of one element in bytes, 0 if d is not valid.
func (d DType) Size() int {
	if !d.Valid() {
		return 0
	}
	return dtypes[d].size
}

// String returns the short name, such as "f32", or "none" if d is not valid.
func (d DType) String() string {
	if !d.Valid() {
		return dtypes[0].name
	}
	return dtypes[d].name
}

// ParseDType returns the dtype with the given short name, such as "f32", as String returns it. If
// there is none it returns 0 and a *DTypeError.
func ParseDType(name string) (DType, error) {
	for d := Bool; d.Valid(); d++ {
		if dtypes[d].name == name {
			return d, nil
		}
	}
	return 0, &DTypeError{Name: name, Reason: "no such dtype; want one of bool, u8, i8, i16, i32, i64, f16, bf16, f32, f64, c64, c128"}
}

// Element is a Go type that represents one element of a tensor.
type Element interface {
	bool | uint8 | int8 | int16 | int32 | int64 |
		Float16 | BFloat16 | float32 | float64 | complex64 | complex128
}

// DTypeOf returns the dtype of a tensor whose elements have the Go type T.
func DTypeOf[T Element]() DType {
	var zero T
	switch any(zero).(type) {
	case bool:
		return Bool
	case uint8:
		return U8
	case int8:
		return I8
	case int16:
		return I16
	case int32:
		return I32
	case int64:
		return I64
	case Float16:
		return F16
	case BFloat16:
		return BF16
	case float32:
		return F32
	case float64:
		return F64
	case complex64:
		return C64
	default:
		return C128
	}
}

// Float16 is an IEEE 754 half precision number: 1 sign bit, 5 exponent bits, 10 fraction bits. It is a
// storage format; convert to float32 for arithmetic.
type Float16 uint16

// Bounds of half precision among the bits of positive float32 numbers.
const (
	f32Infinity  = 0x7f800000
	f16Overflow  = 0x47800000 // 2^16: any number from here on rounds to infinity
	f16Normal    = 0x38800000 // 2^-14: the smallest normal Float16
	f16Rebias    = 0x38000000 // difference of the exponent biases, 127-15
	f16DropBits  = 13         // fraction bits that a Float16 lacks
	f16Infinity  = 0x7c00
	f16QuietNaN  = 0x7e00
	f16SignShift = 16
)

// ToFloat16 rounds f to the nearest Float16, ties to even. Values whose magnitude is at least 65520
// become infinite. A NaN becomes a quiet NaN with the same sign and the upper bits of its payload.
func ToFloat16(f float32) Float16 {
	bits := math.Float32bits(f)
	sign := uint16(bits >> f16SignShift & 0x8000)
	bits &= 0x7fffffff
	switch {
	case bits > f32Infinity:
		return Float16(sign | f16QuietNaN | uint16(bits>>f16DropBits&0x3ff))
	case bits >= f16Overflow:
		return Float16(sign | f16Infinity)
	case bits >= f16Normal:
		// A carry out of the fraction moves into the exponent, as it should,
		// and from the largest exponent to infinity.
		odd := bits >> f16DropBits & 1
		return Float16(sign | uint16((bits-f16Rebias+0xfff+odd)>>f16DropBits))
	}
	// Subnormal results are multiples of 2^-24, which is the distance of
	// float32 numbers in [0.5, 1): the addition does the rounding.
	half := math.Float32bits(0.5)
	return Float16(sign | uint16(math.Float32bits(math.Float32frombits(bits)+0.5)-half))
}

// Float32 returns the value of h as a float32, which is exact. A NaN becomes a quiet NaN with the
// same sign and payload.
func (h Float16) Float32() float32 {
	sign := uint32(h&0x8000) << f16SignShift
	exponent, fraction := h&f16Infinity, uint32(h&0x3ff)
	switch {
	case exponent == f16Infinity && fraction != 0:
		return math.Float32frombits(sign | 0x7fc00000 | fraction<<f16DropBits)
	case exponent == f16Infinity:
		return math.Float32frombits(sign | f32Infinity)
	case exponent == 0:
		return math.Float32frombits(sign | math.Float32bits(float32(fraction)*0x1p-24))
	}
	return math.Float32frombits(sign | (uint32(h&0x7fff)<<f16DropBits + f16Rebias))
}

// String returns the number in decimal, with as few digits as its float32 value needs: 0.5, 1e-05,
// +Inf, NaN.
func (h Float16) String() string { return strconv.FormatFloat(float64(h.Float32()), 'g', -1, 32) }

// BFloat16 is the upper half of a float32: 1 sign bit, 8 exponent bits, 7 fraction bits. It is a
// storage format; convert to float32 for arithmetic.
type BFloat16 uint16

// ToBFloat16 rounds f to the nearest BFloat16, ties to even. Values too large for the type become
// infinite. A NaN becomes a quiet NaN with the same sign and the upper bits of its payload.
func ToBFloat16(f float32) BFloat16 {
	bits := math.Float32bits(f)
	if bits&0x7fffffff > f32Infinity {
		return BFloat16(bits>>16 | 0x40)
	}
	return BFloat16((bits + 0x7fff + bits>>16&1) >> 16)
}

// Float32 returns the value of b as a float32, which is exact. A NaN keeps its bits.
func (b BFloat16) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }

// String returns the number in decimal, with as few digits as its float32 value needs: 0.5, 1e-05,
// +Inf, NaN.
func (b BFloat16) String() string { return strconv.FormatFloat(float64(b.Float32()), 'g', -1, 32) }
