package aten

import (
	"math"
	"math/cmplx"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// mapElements returns a new tensor of the shape of t with the results of f for each element of t. S
// must be the Go type of the dtype of t. If the error, a *LimitError or one of package tensor, is
// not nil, the tensor must not be used.
func mapElements[S, T tensor.Element](c *call, t *tensor.Tensor, f func(S) T) (*tensor.Tensor, error) {
	out, to, err := newTensor[T](c, t.Shape()...)
	if err != nil {
		return nil, err
	}
	return out, apply(c, to, t, f)
}

// unaryFunc returns a kernel that applies f to each element of argument 0, or z if the elements are
// complex, and returns the results as a new tensor of the same dtype. For integers and bools the
// dtype is F32. The results are computed in float64 or complex128 and rounded. The error of the
// kernel is a *LimitError or an error of package tensor.
func unaryFunc(f func(float64) float64, z func(complex128) complex128) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		d := floatType(c.tensor(0).DType())
		t, err := c.operand(c.tensor(0), d)
		if err != nil {
			return nil, err
		}
		switch t.DType() {
		case tensor.F32:
			t, err = mapElements(c, t, func(v float32) float32 { return float32(f(float64(v))) })
		case tensor.F64:
			t, err = mapElements(c, t, f)
		case tensor.C64:
			t, err = mapElements(c, t, func(v complex64) complex64 { return complex64(z(complex128(v))) })
		default:
			t, err = mapElements(c, t, z)
		}
		if err != nil {
			return nil, err
		}
		return c.cast(t, d)
	})
}

func sigmoid(v float64) float64              { return 1 / (1 + math.Exp(-v)) }
func complexSigmoid(v complex128) complex128 { return 1 / (1 + cmplx.Exp(-v)) }

// signFunc selects a function of an element: negation, absolute value or relu.
type signFunc uint8

const (
	negate signFunc = iota
	absolute
	rectify
)

// applySign returns a kernel that applies f (negation, absolute value or relu) to each element of
// argument 0, and returns a new tensor. The errors are those of call.applySign.
func applySign(f signFunc) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) { return c.applySign(f, c.tensor(0)) })
}

// applySign applies f (negation, absolute value or relu) to each element of x and returns a new
// tensor. It has the dtype of x, but the absolute values of complex numbers are real. The error is
// a *ValueError for a tensor of bools and for relu of complex numbers, a *LimitError, or an error
// of package tensor.
func (c *call) applySign(f signFunc, x *tensor.Tensor) (*tensor.Tensor, error) {
	d := x.DType()
	if d == tensor.Bool {
		return nil, valueErrorf("negation, absolute values and relu of a bool tensor are not supported")
	}
	t, err := c.cast(x, computeType(d))
	if err != nil {
		return nil, err
	}
	switch t.DType() {
	case tensor.U8:
		t, err = mapElements(c, t, signFuncOf[uint8](f))
	case tensor.I8:
		t, err = mapElements(c, t, signFuncOf[int8](f))
	case tensor.I16:
		t, err = mapElements(c, t, signFuncOf[int16](f))
	case tensor.I32:
		t, err = mapElements(c, t, signFuncOf[int32](f))
	case tensor.I64:
		t, err = mapElements(c, t, signFuncOf[int64](f))
	case tensor.F32:
		t, err = mapElements(c, t, signFuncOf[float32](f))
	case tensor.F64:
		t, err = mapElements(c, t, signFuncOf[float64](f))
	case tensor.C64:
		switch f {
		case negate:
			return mapElements(c, t, func(v complex64) complex64 { return -v })
		case absolute:
			return mapElements(c, t, func(v complex64) float32 { return float32(cmplx.Abs(complex128(v))) })
		}
		return nil, valueErrorf("relu of a complex tensor is not supported")
	default:
		switch f {
		case negate:
			return mapElements(c, t, func(v complex128) complex128 { return -v })
		case absolute:
			return mapElements(c, t, cmplx.Abs)
		}
		return nil, valueErrorf("relu of a complex tensor is not supported")
	}
	if err != nil {
		return nil, err
	}
	return c.cast(t, d)
}

// signFuncOf returns the function that f selects (negation, absolute value or relu) for elements of
// type T. Integers wrap around; NaN stays NaN.
func signFuncOf[T realNum](f signFunc) func(T) T {
	switch f {
	case negate:
		return func(v T) T { return -v }
	case absolute:
		return func(v T) T {
			if v <= 0 {
				return 0 - v // converts minus zero to zero
			}
			return v
		}
	default:
		return func(v T) T {
			if v < 0 {
				return 0
			}
			return v
		}
	}
}

// power is the kernel of aten::pow: it returns a new tensor with each element of argument 0 raised
// to the power of argument 1, a number. The dtype is the one to which both are promoted. The error
// is a *ValueError for an integer to a negative power, a *LimitError, or an error of package
// tensor.
func power(c *call) (*tensor.Tensor, error) {
	base, exponent := c.tensor(0), c.args[1]
	d := resultType(base, exponent)
	t, err := c.operand(base, d)
	if err != nil {
		return nil, err
	}
	e := toFloat(exponent)
	switch t.DType() {
	case tensor.F32:
		t, err = mapElements(c, t, func(v float32) float32 { return float32(math.Pow(float64(v), e)) })
	case tensor.F64:
		t, err = mapElements(c, t, func(v float64) float64 { return math.Pow(v, e) })
	case tensor.C64:
		t, err = mapElements(c, t, func(v complex64) complex64 { return complex64(complexPower(complex128(v), e)) })
	case tensor.C128:
		t, err = mapElements(c, t, func(v complex128) complex128 { return complexPower(v, e) })
	default:
		t, err = c.intPower(t, exponent)
	}
	if err != nil {
		return nil, err
	}
	return c.cast(t, d)
}

// complexPower returns v to the power of e. If e is NaN, so is the result.
func complexPower(v complex128, e float64) complex128 {
	if math.IsNaN(e) { // cmplx.Pow panics if the base is zero
		return cmplx.NaN()
	}
	return cmplx.Pow(v, complex(e, 0))
}

// intPower returns a new tensor with each element of t, whose dtype must be an integer dtype,
// raised to the power of exponent, an int64 or bool; products wrap around. The error is a
// *ValueError if exponent is negative, a *LimitError, or an error of package tensor.
func (c *call) intPower(t *tensor.Tensor, exponent Value) (*tensor.Tensor, error) {
	e := int64(toFloat(exponent))
	if n, ok := exponent.(int64); ok {
		e = n
	}
	if e < 0 {
		return nil, valueErrorf("Integers to negative integer powers are not allowed.")
	}
	switch t.DType() {
	case tensor.U8:
		return mapElements(c, t, intPowFunc[uint8](e))
	case tensor.I8:
		return mapElements(c, t, intPowFunc[int8](e))
	case tensor.I16:
		return mapElements(c, t, intPowFunc[int16](e))
	case tensor.I32:
		return mapElements(c, t, intPowFunc[int32](e))
	default:
		return mapElements(c, t, intPowFunc[int64](e))
	}
}

// intPowFunc returns a function that raises an integer to the power of exponent, which must not be
// negative. Products that overflow T wrap around.
func intPowFunc[T integer](exponent int64) func(T) T {
	return func(base T) T {
		out := T(1)
		for e := exponent; e > 0; e >>= 1 {
			if e&1 == 1 {
				out *= base
			}
			base *= base
		}
		return out
	}
}

// toFloat returns the number v, a bool, int64 or float64, as a float64: 1 for true and 0 for false.
// For another type it panics.
func toFloat(v Value) float64 {
	switch v := v.(type) {
	case bool:
		if v {
			return 1
		}
		return 0
	case int64:
		return float64(v)
	}
	return v.(float64)
}
