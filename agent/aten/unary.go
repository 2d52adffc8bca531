package aten

import (
	"math"
	"math/cmplx"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// mapElements returns a new tensor of the shape of t with f of each element of t, whose elements must
// have type S.
func mapElements[S, T tensor.Element](c *call, t *tensor.Tensor, f func(S) T) (*tensor.Tensor, error) {
	out, to, err := newTensor[T](c, t.Shape()...)
	if err != nil {
		return nil, err
	}
	return out, apply(c, to, t, f)
}

// unaryFunc returns a kernel that applies f to each real element, or z to each complex one. Half
// precision is computed as float32, and the results for integers and bools are F32.
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

// applySign returns a kernel that applies f to each element.
func applySign(f signFunc) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) { return c.applySign(f, c.tensor(0)) })
}

// applySign returns a new tensor with f of each element of x. The absolute values of complex numbers
// are real. The error is a *ValueError if x does not support f, or a *LimitError.
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

// signFuncOf returns f for elements of type T.
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

// power is a kernel that raises each element of a tensor to the power of a number.
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

// complexPower returns v to the power of e.
func complexPower(v complex128, e float64) complex128 {
	if math.IsNaN(e) { // cmplx.Pow panics if the base is zero
		return cmplx.NaN()
	}
	return cmplx.Pow(v, complex(e, 0))
}

// intPower returns a new tensor with each element of t, whose dtype is an integer, to the power of
// exponent. The error is a *ValueError for a negative exponent, or a *LimitError.
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
// negative; products wrap around.
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

// toFloat returns the number v as a float64.
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
