package ops

import (
	"context"
	"math"
	"math/cmplx"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Exp returns a new tensor with the exponential of each element of x. The dtype is that of x, or
// F32 for integers and bools; results are computed in float64 or complex128 and rounded. The error
// is a *LimitError or an error of package tensor.
func (e *Engine) Exp(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	return e.analytic(ctx, FunctionExp, x)
}

// Log returns a new tensor with the natural logarithm of each element of x, as Exp does for the
// exponential.
func (e *Engine) Log(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	return e.analytic(ctx, FunctionLog, x)
}

// Sqrt returns a new tensor with the square root of each element of x, as Exp does for the
// exponential.
func (e *Engine) Sqrt(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	return e.analytic(ctx, FunctionSqrt, x)
}

// Sin returns a new tensor with the sine of each element of x, as Exp does for the exponential.
func (e *Engine) Sin(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	return e.analytic(ctx, FunctionSin, x)
}

// Cos returns a new tensor with the cosine of each element of x, as Exp does for the exponential.
func (e *Engine) Cos(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	return e.analytic(ctx, FunctionCos, x)
}

// Tanh returns a new tensor with the hyperbolic tangent of each element of x, as Exp does for the
// exponential.
func (e *Engine) Tanh(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	return e.analytic(ctx, FunctionTanh, x)
}

// Sigmoid returns a new tensor with 1/(1+exp(-v)) for each element v of x, as Exp does for the
// exponential.
func (e *Engine) Sigmoid(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	return e.analytic(ctx, FunctionSigmoid, x)
}

// Neg returns a new tensor with the elements of x with the opposite sign; integers wrap around. The
// error is a *ValueError for bools, a *LimitError, or an error of package tensor.
func (e *Engine) Neg(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	if !onHost(x) && x.DType() != tensor.Bool {
		return e.MulNumber(ctx, x, Int(-1))
	}
	return e.signed(ctx, FunctionNeg, x)
}

// Abs returns a new tensor with the absolute values of x, which are real if x is complex. The error
// is a *ValueError for bools, a *LimitError, or an error of package tensor.
func (e *Engine) Abs(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	return e.signed(ctx, FunctionAbs, x)
}

// Relu returns a new tensor with the elements of x, and 0 in place of negative ones; NaN remains.
// The error is a *ValueError for bools and complex numbers, a *LimitError, or an error of package
// tensor.
func (e *Engine) Relu(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	return e.signed(ctx, FunctionRelu, x)
}

// analytic returns a new tensor with f, one of FunctionExp to FunctionSigmoid, of each element of x.
func (e *Engine) analytic(ctx context.Context, f Function, x *tensor.Tensor) (*tensor.Tensor, error) {
	if !onHost(x) {
		return e.deviceMap(ctx, f, x)
	}
	d := floatType(x.DType())
	t, err := e.computable(x, d)
	if err != nil {
		return nil, err
	}
	switch t.DType() {
	case tensor.F32:
		t, err = mapped(e, t, func(out, x []float32) { realFunction(f, out, x) })
	case tensor.F64:
		t, err = mapped(e, t, func(out, x []float64) { realFunction(f, out, x) })
	case tensor.C64:
		t, err = mapped(e, t, func(out, x []complex64) { complexFunction(f, out, x) })
	default:
		t, err = mapped(e, t, func(out, x []complex128) { complexFunction(f, out, x) })
	}
	if err != nil {
		return nil, err
	}
	return e.cast(t, d)
}

// realFunction sets each element of out to f, one of FunctionExp to FunctionSigmoid, of the element of x with
// the same index.
func realFunction[T floatNum](f Function, out, x []T) {
	out = out[:len(x)]
	switch f {
	case FunctionExp:
		for i, v := range x {
			out[i] = T(math.Exp(float64(v)))
		}
	case FunctionLog:
		for i, v := range x {
			out[i] = T(math.Log(float64(v)))
		}
	case FunctionSqrt:
		for i, v := range x {
			out[i] = T(math.Sqrt(float64(v)))
		}
	case FunctionSin:
		for i, v := range x {
			out[i] = T(math.Sin(float64(v)))
		}
	case FunctionCos:
		for i, v := range x {
			out[i] = T(math.Cos(float64(v)))
		}
	case FunctionTanh:
		for i, v := range x {
			out[i] = T(math.Tanh(float64(v)))
		}
	default:
		for i, v := range x {
			out[i] = T(1 / (1 + math.Exp(-float64(v))))
		}
	}
}

// complexFunction is realFunction for complex numbers.
func complexFunction[T complexNum](f Function, out, x []T) {
	of := cmplx.Exp
	switch f {
	case FunctionLog:
		of = cmplx.Log
	case FunctionSqrt:
		of = cmplx.Sqrt
	case FunctionSin:
		of = cmplx.Sin
	case FunctionCos:
		of = cmplx.Cos
	case FunctionTanh:
		of = cmplx.Tanh
	case FunctionSigmoid:
		of = func(v complex128) complex128 { return 1 / (1 + cmplx.Exp(-v)) }
	}
	for i, v := range x {
		out[i] = T(of(complex128(v)))
	}
}

// signed returns a new tensor with f, one of FunctionNeg, FunctionAbs and FunctionRelu, of each element of x.
func (e *Engine) signed(ctx context.Context, f Function, x *tensor.Tensor) (*tensor.Tensor, error) {
	d := x.DType()
	if d == tensor.Bool {
		return nil, valueErrorf("negation, absolute values and relu of a bool tensor are not supported")
	}
	if !onHost(x) {
		return e.deviceMap(ctx, f, x)
	}
	t, err := e.computable(x, d)
	if err != nil {
		return nil, err
	}
	switch t.DType() {
	case tensor.U8:
		t, err = mapped(e, t, func(out, x []uint8) { signFunction(f, out, x) })
	case tensor.I8:
		t, err = mapped(e, t, func(out, x []int8) { signFunction(f, out, x) })
	case tensor.I16:
		t, err = mapped(e, t, func(out, x []int16) { signFunction(f, out, x) })
	case tensor.I32:
		t, err = mapped(e, t, func(out, x []int32) { signFunction(f, out, x) })
	case tensor.I64:
		t, err = mapped(e, t, func(out, x []int64) { signFunction(f, out, x) })
	case tensor.F32:
		t, err = mapped(e, t, func(out, x []float32) { signFunction(f, out, x) })
	case tensor.F64:
		t, err = mapped(e, t, func(out, x []float64) { signFunction(f, out, x) })
	case tensor.C64:
		return complexSign[complex64, float32](e, f, t)
	default:
		return complexSign[complex128, float64](e, f, t)
	}
	if err != nil {
		return nil, err
	}
	return e.cast(t, d)
}

// signFunction sets each element of out to f, one of FunctionNeg, FunctionAbs and FunctionRelu, of the element of x
// with the same index. Integers wrap around; NaN stays NaN.
func signFunction[T realNum](f Function, out, x []T) {
	out = out[:len(x)]
	switch f {
	case FunctionNeg:
		for i, v := range x {
			out[i] = -v
		}
	case FunctionAbs:
		for i, v := range x {
			if v <= 0 {
				v = 0 - v // converts minus zero to zero
			}
			out[i] = v
		}
	default:
		for i, v := range x {
			out[i] = max(v, 0)
		}
	}
}

// complexSign returns a new tensor with the negated elements of x, or their absolute values, which
// have the type R. The error is a *ValueError for another function.
func complexSign[T complexNum, R floatNum](e *Engine, f Function, x *tensor.Tensor) (*tensor.Tensor, error) {
	switch f {
	case FunctionNeg:
		return mapped(e, x, func(out, x []T) {
			for i, v := range x {
				out[i] = -v
			}
		})
	case FunctionAbs:
		return mapped(e, x, func(out []R, x []T) {
			for i, v := range x {
				out[i] = R(cmplx.Abs(complex128(v)))
			}
		})
	}
	return nil, valueErrorf("relu of a complex tensor is not supported")
}

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
