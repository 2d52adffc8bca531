package ops

import (
	"context"
	"math"
	"math/cmplx"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Pow returns a new tensor with each element of x raised to the power of exponent. The dtype is the
// one to which both are promoted; products of integers wrap around. The error is a *ValueError for
// integers to a negative power, a *LimitError, or an error of package tensor.
func (e *Engine) Pow(_ context.Context, x *tensor.Tensor, exponent Number) (*tensor.Tensor, error) {
	d := NumberResultType(x.DType(), exponent)
	t, err := e.computable(x, d)
	if err != nil {
		return nil, err
	}
	p := exponent.Float64()
	switch t.DType() {
	case tensor.F32:
		t, err = mapped(e, t, func(out, x []float32) { powReal(out, x, p) })
	case tensor.F64:
		t, err = mapped(e, t, func(out, x []float64) { powReal(out, x, p) })
	case tensor.C64:
		t, err = mapped(e, t, func(out, x []complex64) { powComplex(out, x, p) })
	case tensor.C128:
		t, err = mapped(e, t, func(out, x []complex128) { powComplex(out, x, p) })
	default:
		t, err = e.powIntegers(t, exponent.Int64())
	}
	if err != nil {
		return nil, err
	}
	return e.cast(t, d)
}

// powReal sets each element of out to the power p of the element of x with the same index.
func powReal[T floatNum](out, x []T, p float64) {
	out = out[:len(x)]
	if p == 2 {
		for i, v := range x {
			out[i] = v * v
		}
		return
	}
	for i, v := range x {
		out[i] = T(math.Pow(float64(v), p))
	}
}

// powComplex sets each element of out to the power p of the element of x with the same index. If p
// is NaN, so are the results.
func powComplex[T complexNum](out, x []T, p float64) {
	for i, v := range x {
		if math.IsNaN(p) { // cmplx.Pow panics if the base is zero
			out[i] = T(cmplx.NaN())
		} else {
			out[i] = T(cmplx.Pow(complex128(v), complex(p, 0)))
		}
	}
}

// powIntegers returns a new tensor with each element of t, whose dtype must be an integer dtype,
// raised to the power of p. The error is a *ValueError if p is negative, a *LimitError, or an error
// of package tensor.
func (e *Engine) powIntegers(t *tensor.Tensor, p int64) (*tensor.Tensor, error) {
	if p < 0 {
		return nil, valueErrorf("Integers to negative integer powers are not allowed.")
	}
	switch t.DType() {
	case tensor.U8:
		return mapped(e, t, func(out, x []uint8) { powInteger(out, x, p) })
	case tensor.I8:
		return mapped(e, t, func(out, x []int8) { powInteger(out, x, p) })
	case tensor.I16:
		return mapped(e, t, func(out, x []int16) { powInteger(out, x, p) })
	case tensor.I32:
		return mapped(e, t, func(out, x []int32) { powInteger(out, x, p) })
	default:
		return mapped(e, t, func(out, x []int64) { powInteger(out, x, p) })
	}
}

// powInteger sets each element of out to the power p, which must not be negative, of the element of
// x with the same index. Products that overflow T wrap around.
func powInteger[T integer](out, x []T, p int64) {
	for i, base := range x {
		power := T(1)
		for n := p; n > 0; n >>= 1 {
			if n&1 == 1 {
				power *= base
			}
			base *= base
		}
		out[i] = power
	}
}
