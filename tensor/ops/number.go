package ops

import (
	"math"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Number is a number that is not a tensor, such as the factor of MulNumber. The zero Number is
// Int(0). In promotion a number counts only by its category (bool, integer, floating point), as in
// PyTorch: an integer tensor times Float(2) is F32, an F32 tensor times Int(2) remains F32.
type Number struct {
	kind  numberKind
	whole int64   // of Int and Bool
	real  float64 // of Float
}

// numberKind is the category of a Number.
type numberKind uint8

const (
	wholeNumber numberKind = iota
	realNumber
	boolNumber
)

// Int returns the integer n.
func Int(n int64) Number { return Number{whole: n} }

// Float returns the floating point number v.
func Float(v float64) Number { return Number{kind: realNumber, real: v} }

// Bool returns the truth value v, which is 1 or 0 in arithmetic.
func Bool(v bool) Number {
	n := Number{kind: boolNumber}
	if v {
		n.whole = 1
	}
	return n
}

// DType returns the dtype of a tensor that is made of n without a requested dtype: Bool, I64, or
// F32 for a floating point number.
func (n Number) DType() tensor.DType {
	switch n.kind {
	case boolNumber:
		return tensor.Bool
	case realNumber:
		return tensor.F32
	}
	return tensor.I64
}

// Float64 returns n as a float64, rounded if it is a large integer.
func (n Number) Float64() float64 {
	if n.kind == realNumber {
		return n.real
	}
	return float64(n.whole)
}

// Int64 returns n as an int64, without its fraction. If n is a floating point number outside the
// range of int64, or NaN, the result is arbitrary.
func (n Number) Int64() int64 {
	if n.kind == realNumber {
		return int64(n.real)
	}
	return n.whole
}

// isOne reports whether n is 1 in any category.
func (n Number) isOne() bool { return n.whole == 1 || n.kind == realNumber && n.real == 1 }

// negated returns -n. A Bool is returned itself.
func (n Number) negated() Number {
	switch n.kind {
	case wholeNumber:
		n.whole = -n.whole
	case realNumber:
		n.real = -n.real
	}
	return n
}

// fits reports whether n, without its fraction, is in the range of the dtype d. It is true if d is
// not an integer dtype. NaN and infinities are outside the range of every integer dtype.
func (n Number) fits(d tensor.DType) bool {
	if !isInt(d) || n.kind == wholeNumber && d == tensor.I64 {
		return true
	}
	low, high := -math.Ldexp(1, 8*d.Size()-1), math.Ldexp(1, 8*d.Size()-1)
	if d == tensor.U8 {
		low, high = 0, 256
	}
	v := math.Trunc(n.Float64())
	return v >= low && v < high
}

// realAs returns n as an element of dtype d, in the Go type in which kernels compute with d, which
// T must be. It converts as Cast does: integers wrap around, and halves are rounded.
func realAs[T realNum](n Number, d tensor.DType) T {
	switch d {
	case tensor.Bool:
		if n.Float64() != 0 {
			return 1
		}
		return 0
	case tensor.F16:
		return T(tensor.ToFloat16(realAs[float32](n, tensor.F32)).Float32())
	case tensor.BF16:
		return T(tensor.ToBFloat16(realAs[float32](n, tensor.F32)).Float32())
	}
	if n.kind == realNumber {
		return T(n.real)
	}
	return T(n.whole)
}

// complexAs returns n as an element of a complex dtype with the Go type T.
func complexAs[T complexNum](n Number) T { return T(complex(n.Float64(), 0)) }
