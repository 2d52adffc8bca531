package tensor

import (
	"math"
	"strconv"
)

// Float16 is an IEEE 754 half precision number: 1 sign bit, 5 exponent bits,
// 10 fraction bits. It is a storage format; arithmetic happens in float32.
type Float16 uint16

// Bounds of half precision among the bits of positive float32 numbers.
const (
	f32Infinity  = 0x7f800000
	f16Overflow  = 0x47800000 // 2^16: rounds to infinity wherever its fraction is
	f16Normal    = 0x38800000 // 2^-14: the smallest normal Float16
	f16Rebias    = 0x38000000 // difference of the exponent biases, 127-15
	f16DropBits  = 13         // fraction bits that a Float16 lacks
	f16Infinity  = 0x7c00
	f16QuietNaN  = 0x7e00
	f16SignShift = 16
)

// ToFloat16 rounds f to the nearest Float16, ties to even. Numbers from 65520
// up become infinite. A NaN stays a NaN, made quiet, with the upper bits of
// its payload.
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

// Float32 is the number that h stands for; every Float16 is a float32. A NaN
// comes out quiet, with its payload.
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

// String prints the number as strconv does for a float32.
func (h Float16) String() string { return strconv.FormatFloat(float64(h.Float32()), 'g', -1, 32) }

// BFloat16 is the upper half of a float32: 1 sign bit, 8 exponent bits, 7
// fraction bits. It is a storage format; arithmetic happens in float32.
type BFloat16 uint16

// ToBFloat16 rounds f to the nearest BFloat16, ties to even. A NaN stays a
// NaN, made quiet, with the upper bits of its payload.
func ToBFloat16(f float32) BFloat16 {
	bits := math.Float32bits(f)
	if bits&0x7fffffff > f32Infinity {
		return BFloat16(bits>>16 | 0x40)
	}
	return BFloat16((bits + 0x7fff + bits>>16&1) >> 16)
}

// Float32 is the number that b stands for; every BFloat16 is a float32.
func (b BFloat16) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }

// String prints the number as strconv does for a float32.
func (b BFloat16) String() string { return strconv.FormatFloat(float64(b.Float32()), 'g', -1, 32) }
