package aten

import (
	"errors"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Constraints of the types in which kernels compute. Bools are computed as bytes, half
// precision as float32.
type (
	integer interface {
		uint8 | int8 | int16 | int32 | int64
	}
	floatNum interface{ float32 | float64 }
	realNum  interface{ integer | floatNum }
	cmplxNum interface{ complex64 | complex128 }
	number   interface{ realNum | cmplxNum }
	half     interface {
		tensor.Float16 | tensor.BFloat16
		Float32() float32
	}
)

// computeType returns the dtype in which kernels compute with elements of dtype d: U8 for Bool, F32
// for F16 and BF16, and d itself for all others.
func computeType(d tensor.DType) tensor.DType {
	switch d {
	case tensor.Bool:
		return tensor.U8
	case tensor.F16, tensor.BF16:
		return tensor.F32
	}
	return d
}

// elements returns the elements of t in row-major order. The slice is the memory of t itself or
// that of a copy, so the caller must not modify it, and must keep t alive (runtime.KeepAlive) while
// it uses the slice. T must be the Go type of the dtype of t. The error is a *LimitError if a copy
// would be too large, or an error of package tensor.
func elements[T tensor.Element](c *call, t *tensor.Tensor) ([]T, error) {
	t, err := c.contiguous(t)
	if err != nil {
		return nil, err
	}
	data, err := tensor.Data[T](t)
	if !errors.Is(err, tensor.ErrUnaligned) {
		return data, err
	}
	if t, err = c.clone(t); err != nil {
		return nil, err
	}
	return tensor.Data[T](t)
}

// newTensor returns a new tensor of zeros with elements of type T, and a slice of its memory
// through which the caller can set the elements. The slice does not keep the tensor alive; the
// caller must. The errors are those of checkSize.
func newTensor[T tensor.Element](c *call, shape ...int) (*tensor.Tensor, []T, error) {
	t, err := c.zeros(tensor.DTypeOf[T](), shape...)
	if err != nil {
		return nil, nil, err
	}
	data, err := tensor.MutableData[T](t)
	return t, data, err
}

// cast returns t itself if it has dtype d, and otherwise a new tensor with its elements converted
// to d. To an integer dtype, fractions are dropped and integers wrap around. To Bool, 0 becomes
// false and any other number true. A complex number loses its imaginary part unless d is complex.
// The error is a *LimitError or an error of package tensor.
func (c *call) cast(t *tensor.Tensor, d tensor.DType) (*tensor.Tensor, error) {
	if t.DType() == d {
		return t, nil
	}
	switch d {
	case tensor.Bool:
		if isComplex(t.DType()) { // drops the imaginary part, as other casts do
			var err error
			if t, err = c.cast(t, tensor.F64); err != nil {
				return nil, err
			}
		}
		return c.nonzeroMask(t)
	case tensor.U8:
		return castReal[uint8](c, t)
	case tensor.I8:
		return castReal[int8](c, t)
	case tensor.I16:
		return castReal[int16](c, t)
	case tensor.I32:
		return castReal[int32](c, t)
	case tensor.I64:
		return castReal[int64](c, t)
	case tensor.F16:
		return castHalf(c, t, tensor.ToFloat16)
	case tensor.BF16:
		return castHalf(c, t, tensor.ToBFloat16)
	case tensor.F32:
		return castReal[float32](c, t)
	case tensor.F64:
		return castReal[float64](c, t)
	case tensor.C64:
		return castComplex[complex64](c, t)
	default:
		return castComplex[complex128](c, t)
	}
}

// castReal returns a new tensor with the elements of t, which may have any dtype, converted to T:
// true to 1, false to 0, and a complex number to its real part. The error is a *LimitError or an
// error of package tensor.
func castReal[T realNum](c *call, t *tensor.Tensor) (*tensor.Tensor, error) {
	out, to, err := newTensor[T](c, t.Shape()...)
	if err != nil {
		return nil, err
	}
	switch t.DType() {
	case tensor.Bool:
		err = apply(c, to, t, func(v bool) T {
			if v {
				return 1
			}
			return 0
		})
	case tensor.U8:
		err = convert[uint8](c, to, t)
	case tensor.I8:
		err = convert[int8](c, to, t)
	case tensor.I16:
		err = convert[int16](c, to, t)
	case tensor.I32:
		err = convert[int32](c, to, t)
	case tensor.I64:
		err = convert[int64](c, to, t)
	case tensor.F16:
		err = apply(c, to, t, func(v tensor.Float16) T { return T(v.Float32()) })
	case tensor.BF16:
		err = apply(c, to, t, func(v tensor.BFloat16) T { return T(v.Float32()) })
	case tensor.F32:
		err = convert[float32](c, to, t)
	case tensor.F64:
		err = convert[float64](c, to, t)
	case tensor.C64:
		err = apply(c, to, t, func(v complex64) T { return T(real(v)) })
	default:
		err = apply(c, to, t, func(v complex128) T { return T(real(v)) })
	}
	return out, err
}

// convert stores element i of t, in row-major order, in to[i], converted from S to T. S must be the
// Go type of the dtype of t, and len(to) at least the number of elements of t. The errors are those
// of elements.
func convert[S, T realNum](c *call, to []T, t *tensor.Tensor) error {
	from, err := elements[S](c, t)
	if err != nil {
		return err
	}
	for i, v := range from {
		to[i] = T(v)
	}
	return nil
}

// apply calls f for each element of t and stores the result for element i, in row-major order, in
// to[i]. S must be the Go type of the dtype of t, and len(to) at least the number of elements of t.
// The errors are those of elements.
func apply[S tensor.Element, T any](c *call, to []T, t *tensor.Tensor, f func(S) T) error {
	from, err := elements[S](c, t)
	if err != nil {
		return err
	}
	for i, v := range from {
		to[i] = f(v)
	}
	return nil
}

// castHalf returns a new tensor with the elements of t, which may have any dtype. It casts them to
// float32 and converts each to the half-precision type T with round. The error is a *LimitError or
// an error of package tensor.
func castHalf[T half](c *call, t *tensor.Tensor, round func(float32) T) (*tensor.Tensor, error) {
	t, err := c.cast(t, tensor.F32)
	if err != nil {
		return nil, err
	}
	out, to, err := newTensor[T](c, t.Shape()...)
	if err != nil {
		return nil, err
	}
	return out, apply(c, to, t, round)
}

// castComplex returns a new tensor with the elements of t, which may have any dtype, converted to
// the complex type T. Numbers that are not complex get the imaginary part 0. The error is a
// *LimitError or an error of package tensor.
func castComplex[T cmplxNum](c *call, t *tensor.Tensor) (*tensor.Tensor, error) {
	if !isComplex(t.DType()) {
		var err error
		if t, err = c.cast(t, tensor.F64); err != nil {
			return nil, err
		}
	}
	out, to, err := newTensor[T](c, t.Shape()...)
	if err != nil {
		return nil, err
	}
	switch t.DType() {
	case tensor.C64:
		err = apply(c, to, t, func(v complex64) T { return T(v) })
	case tensor.C128:
		err = apply(c, to, t, func(v complex128) T { return T(v) })
	default:
		err = apply(c, to, t, func(v float64) T { return T(complex(v, 0)) })
	}
	return out, err
}

// nonzeroMask returns a new tensor of bools with the shape of t. An element is true if the element
// of t is not zero, or is true. The error is a *LimitError or an error of package tensor.
func (c *call) nonzeroMask(t *tensor.Tensor) (*tensor.Tensor, error) {
	if d := computeType(t.DType()); d == tensor.F32 {
		var err error
		if t, err = c.cast(t, d); err != nil {
			return nil, err
		}
	}
	out, to, err := newTensor[bool](c, t.Shape()...)
	if err != nil {
		return nil, err
	}
	switch t.DType() {
	case tensor.Bool:
		err = apply(c, to, t, func(v bool) bool { return v })
	case tensor.U8:
		err = apply(c, to, t, nonzero[uint8])
	case tensor.I8:
		err = apply(c, to, t, nonzero[int8])
	case tensor.I16:
		err = apply(c, to, t, nonzero[int16])
	case tensor.I32:
		err = apply(c, to, t, nonzero[int32])
	case tensor.I64:
		err = apply(c, to, t, nonzero[int64])
	case tensor.F32:
		err = apply(c, to, t, nonzero[float32])
	case tensor.F64:
		err = apply(c, to, t, nonzero[float64])
	case tensor.C64:
		err = apply(c, to, t, nonzero[complex64])
	default:
		err = apply(c, to, t, nonzero[complex128])
	}
	return out, err
}

func nonzero[T number](v T) bool { return v != 0 }

// scalar returns a new tensor of dtype d without dimensions. Its one element is the number v, a
// bool, int64 or float64, converted to d as cast does. For a v of another type scalar panics. The
// errors are those of cast.
func (c *call) scalar(v Value, d tensor.DType) (*tensor.Tensor, error) {
	switch v := v.(type) {
	case bool:
		return c.cast(tensor.Scalar(v), d)
	case int64:
		return c.cast(tensor.Scalar(v), d)
	}
	return c.cast(tensor.Scalar(v.(float64)), d)
}

// operand returns v, a tensor or a number, as a tensor of dtype computeType(d). It casts v to d
// first, which may round or wrap. If v is a tensor that needs no cast, the result is v itself. The
// error is a *LimitError or an error of package tensor.
func (c *call) operand(v Value, d tensor.DType) (*tensor.Tensor, error) {
	t, ok := v.(*tensor.Tensor)
	var err error
	if ok {
		t, err = c.cast(t, d)
	} else {
		t, err = c.scalar(v, d)
	}
	if err != nil {
		return nil, err
	}
	return c.cast(t, computeType(d))
}
