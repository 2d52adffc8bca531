package aten

import (
	"errors"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// What the elements of dtypes are computed as. Bools are computed as bytes, half
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

// computed is the dtype that elements are cast to for computing.
func computed(d tensor.DType) tensor.DType {
	switch d {
	case tensor.Bool:
		return tensor.U8
	case tensor.F16, tensor.BF16:
		return tensor.F32
	}
	return d
}

// elements is the elements of t in row-major order, to be read only: its own
// memory where that will do, which whoever gave t keeps alive.
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

// fresh makes a tensor and its elements for writing.
func fresh[T tensor.Element](c *call, shape ...int) (*tensor.Tensor, []T, error) {
	t, err := c.zeros(tensor.DTypeOf[T](), shape...)
	if err != nil {
		return nil, nil, err
	}
	data, err := tensor.MutableData[T](t)
	return t, data, err
}

// cast is t with elements of dtype d: t itself where they are. Fractions are cut
// off, integers wrap around, imaginary parts are dropped.
func (c *call) cast(t *tensor.Tensor, d tensor.DType) (*tensor.Tensor, error) {
	if t.DType() == d {
		return t, nil
	}
	switch d {
	case tensor.Bool:
		return c.castBool(t)
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

func castReal[T realNum](c *call, t *tensor.Tensor) (*tensor.Tensor, error) {
	out, to, err := fresh[T](c, t.Shape()...)
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

// convert writes the elements of t, which are S, as T.
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

// apply writes f of each element of t.
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

func castHalf[T half](c *call, t *tensor.Tensor, round func(float32) T) (*tensor.Tensor, error) {
	t, err := c.cast(t, tensor.F32)
	if err != nil {
		return nil, err
	}
	out, to, err := fresh[T](c, t.Shape()...)
	if err != nil {
		return nil, err
	}
	return out, apply(c, to, t, round)
}

func castComplex[T cmplxNum](c *call, t *tensor.Tensor) (*tensor.Tensor, error) {
	if !isComplex(t.DType()) {
		var err error
		if t, err = c.cast(t, tensor.F64); err != nil {
			return nil, err
		}
	}
	out, to, err := fresh[T](c, t.Shape()...)
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

// castBool drops imaginary parts, as other casts do.
func (c *call) castBool(t *tensor.Tensor) (*tensor.Tensor, error) {
	if isComplex(t.DType()) {
		var err error
		if t, err = c.cast(t, tensor.F64); err != nil {
			return nil, err
		}
	}
	return c.truth(t)
}

// truth says of each element whether it is not zero.
func (c *call) truth(t *tensor.Tensor) (*tensor.Tensor, error) {
	if d := computed(t.DType()); d == tensor.F32 {
		var err error
		if t, err = c.cast(t, d); err != nil {
			return nil, err
		}
	}
	out, to, err := fresh[bool](c, t.Shape()...)
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

// scalar makes a tensor of no dimensions of a number.
func (c *call) scalar(v Value, d tensor.DType) (*tensor.Tensor, error) {
	switch v := v.(type) {
	case bool:
		return c.cast(tensor.Scalar(v), d)
	case int64:
		return c.cast(tensor.Scalar(v), d)
	}
	return c.cast(tensor.Scalar(v.(float64)), d)
}

// operand is an argument, tensor or number, cast to d and on to what that is
// computed as.
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
	return c.cast(t, computed(d))
}
