package ops

import (
	"context"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Cast returns t itself if it has the dtype d, and otherwise a new tensor with its elements
// converted to d. To an integer dtype, fractions are dropped and integers wrap around. To Bool, 0
// becomes false and any other number true. A complex number loses its imaginary part unless d is
// complex. The error is a *LimitError or an error of package tensor, for example if d is not valid.
func (e *Engine) Cast(_ context.Context, t *tensor.Tensor, d tensor.DType) (*tensor.Tensor, error) {
	if !d.Valid() {
		return nil, &tensor.DTypeError{Name: d.String(), Reason: "is not an element type"}
	}
	return e.cast(t, d)
}

// cast is Cast for a valid dtype.
func (e *Engine) cast(t *tensor.Tensor, d tensor.DType) (*tensor.Tensor, error) {
	if t.DType() == d {
		return t, nil
	}
	switch d {
	case tensor.Bool:
		if isComplex(t.DType()) { // drops the imaginary part, as other casts do
			var err error
			if t, err = e.cast(t, tensor.F64); err != nil {
				return nil, err
			}
		}
		return e.nonzeroMask(t)
	case tensor.U8:
		return castReal[uint8](e, t)
	case tensor.I8:
		return castReal[int8](e, t)
	case tensor.I16:
		return castReal[int16](e, t)
	case tensor.I32:
		return castReal[int32](e, t)
	case tensor.I64:
		return castReal[int64](e, t)
	case tensor.F16:
		return castHalf(e, t, roundFloat16s)
	case tensor.BF16:
		return castHalf(e, t, roundBFloat16s)
	case tensor.F32:
		return castReal[float32](e, t)
	case tensor.F64:
		return castReal[float64](e, t)
	case tensor.C64:
		return castComplex[complex64](e, t)
	default:
		return castComplex[complex128](e, t)
	}
}

// computable returns t cast to d, and then to computeType(d). The first cast may round or wrap. The
// errors are those of Cast.
func (e *Engine) computable(t *tensor.Tensor, d tensor.DType) (*tensor.Tensor, error) {
	if t.DType() == d && computeType(d) == d {
		return t, nil
	}
	t, err := e.cast(t, d)
	if err != nil {
		return nil, err
	}
	return e.cast(t, computeType(d))
}

// castReal returns a new tensor with the elements of t, which may have any dtype, converted to T:
// true to 1, false to 0, and a complex number to its real part. The error is a *LimitError or an
// error of package tensor.
func castReal[T realNum](e *Engine, t *tensor.Tensor) (*tensor.Tensor, error) {
	switch t.DType() {
	case tensor.Bool:
		return mapped(e, t, convertBools[T])
	case tensor.U8:
		return mapped(e, t, convertNumbers[uint8, T])
	case tensor.I8:
		return mapped(e, t, convertNumbers[int8, T])
	case tensor.I16:
		return mapped(e, t, convertNumbers[int16, T])
	case tensor.I32:
		return mapped(e, t, convertNumbers[int32, T])
	case tensor.I64:
		return mapped(e, t, convertNumbers[int64, T])
	case tensor.F16:
		return mapped(e, t, convertFloat16s[T])
	case tensor.BF16:
		return mapped(e, t, convertBFloat16s[T])
	case tensor.F32:
		return mapped(e, t, convertNumbers[float32, T])
	case tensor.F64:
		return mapped(e, t, convertNumbers[float64, T])
	case tensor.C64:
		return mapped(e, t, func(out []T, x []complex64) {
			for i, v := range x {
				out[i] = T(real(v))
			}
		})
	default:
		return mapped(e, t, func(out []T, x []complex128) {
			for i, v := range x {
				out[i] = T(real(v))
			}
		})
	}
}

// mapped returns a new tensor of the shape of t whose elements f computes from those of t. S must
// be the Go type of the dtype of t. f gets all elements at once, in row-major order, and must set
// all of out, which is as long as x, without modifying x. The error is a *LimitError or an error of
// package tensor.
func mapped[S, T tensor.Element](e *Engine, t *tensor.Tensor,
	f func(out []T, x []S)) (*tensor.Tensor, error) {
	out, to, err := newTensor[T](e, t.Shape()...)
	if err != nil {
		return nil, err
	}
	from, err := elements[S](e, t)
	if err != nil {
		return nil, err
	}
	f(to, from)
	runtime.KeepAlive(t)
	return out, nil
}

func convertNumbers[S, T realNum](out []T, x []S) {
	for i, v := range x {
		out[i] = T(v)
	}
}

func convertBools[T realNum](out []T, x []bool) {
	for i, v := range x {
		out[i] = 0
		if v {
			out[i] = 1
		}
	}
}

func convertFloat16s[T realNum](out []T, x []tensor.Float16) {
	for i, v := range x {
		out[i] = T(v.Float32())
	}
}

func convertBFloat16s[T realNum](out []T, x []tensor.BFloat16) {
	for i, v := range x {
		out[i] = T(v.Float32())
	}
}

// castHalf returns a new tensor with the elements of t, which may have any dtype. It casts them to
// float32 and converts these to a half-precision type with round. The error is a *LimitError or an
// error of package tensor.
func castHalf[T tensor.Element](e *Engine, t *tensor.Tensor,
	round func(out []T, x []float32)) (*tensor.Tensor, error) {
	t, err := e.cast(t, tensor.F32)
	if err != nil {
		return nil, err
	}
	return mapped(e, t, round)
}

func roundFloat16s(out []tensor.Float16, x []float32) {
	for i, v := range x {
		out[i] = tensor.ToFloat16(v)
	}
}

func roundBFloat16s(out []tensor.BFloat16, x []float32) {
	for i, v := range x {
		out[i] = tensor.ToBFloat16(v)
	}
}

// castComplex returns a new tensor with the elements of t, which may have any dtype, converted to
// the complex type T. Numbers that are not complex get the imaginary part 0. The error is a
// *LimitError or an error of package tensor.
func castComplex[T complexNum](e *Engine, t *tensor.Tensor) (*tensor.Tensor, error) {
	switch t.DType() {
	case tensor.C64:
		return mapped(e, t, convertComplex[complex64, T])
	case tensor.C128:
		return mapped(e, t, convertComplex[complex128, T])
	}
	t, err := e.cast(t, tensor.F64)
	if err != nil {
		return nil, err
	}
	return mapped(e, t, func(out []T, x []float64) {
		for i, v := range x {
			out[i] = T(complex(v, 0))
		}
	})
}

func convertComplex[S, T complexNum](out []T, x []S) {
	for i, v := range x {
		out[i] = T(v)
	}
}

// nonzeroMask returns a new tensor of bools with the shape of t. An element is true if the element
// of t is not zero, or is true. The error is a *LimitError or an error of package tensor.
func (e *Engine) nonzeroMask(t *tensor.Tensor) (*tensor.Tensor, error) {
	switch t.DType() {
	case tensor.F16, tensor.BF16:
		t, err := e.cast(t, tensor.F32)
		if err != nil {
			return nil, err
		}
		return mapped(e, t, nonzeros[float32])
	case tensor.Bool:
		return mapped(e, t, func(out, x []bool) { copy(out, x) })
	case tensor.U8:
		return mapped(e, t, nonzeros[uint8])
	case tensor.I8:
		return mapped(e, t, nonzeros[int8])
	case tensor.I16:
		return mapped(e, t, nonzeros[int16])
	case tensor.I32:
		return mapped(e, t, nonzeros[int32])
	case tensor.I64:
		return mapped(e, t, nonzeros[int64])
	case tensor.F32:
		return mapped(e, t, nonzeros[float32])
	case tensor.F64:
		return mapped(e, t, nonzeros[float64])
	case tensor.C64:
		return mapped(e, t, nonzeros[complex64])
	default:
		return mapped(e, t, nonzeros[complex128])
	}
}

func nonzeros[T number](out []bool, x []T) {
	for i, v := range x {
		out[i] = v != 0
	}
}
