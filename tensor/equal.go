package tensor

import (
	"bytes"
	"math"
	"math/cmplx"
	"runtime"
	"slices"
)

// Equal reports whether a and b have the same dtype, shape and bits: a NaN
// equals itself, zero does not equal minus zero. The error is ErrReleased or a
// *DeviceError.
func Equal(a, b *Tensor) (bool, error) {
	if a.dtype != b.dtype || !slices.Equal(a.shape, b.shape) {
		return false, nil
	}
	p, a, err := a.packed()
	if err != nil {
		return false, err
	}
	q, b, err := b.packed()
	if err != nil {
		return false, err
	}
	same := bytes.Equal(p, q)
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
	return same, nil
}

// packed is the bytes of the elements of t in row-major order, and the tensor
// that keeps them alive.
func (t *Tensor) packed() ([]byte, *Tensor, error) {
	c, err := t.Contiguous()
	if err != nil {
		return nil, nil, err
	}
	p, err := c.readable()
	if err != nil {
		return nil, nil, err
	}
	return p[c.offset*c.dtype.Size():][:c.ByteSize()], c, nil
}

// AllClose reports whether a and b have the same dtype and shape and each
// element of a is within atol + rtol*|b| of that of b. Infinities are close to
// themselves only, a NaN to nothing. Elements are compared as C128, so that
// integers beyond 2^53 lose digits.
func AllClose(a, b *Tensor, rtol, atol float64) (bool, error) {
	if a.dtype != b.dtype || !slices.Equal(a.shape, b.shape) {
		return false, nil
	}
	p, a, err := a.packed()
	if err != nil {
		return false, err
	}
	q, b, err := b.packed()
	if err != nil {
		return false, err
	}
	near, size := true, a.dtype.Size()
	for i := 0; i < len(p) && near; i += size {
		x, y := number(a.dtype, p[i:]), number(b.dtype, q[i:])
		near = x == y || cmplx.Abs(x-y) <= atol+rtol*cmplx.Abs(y) && !cmplx.IsInf(y)
	}
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
	return near, nil
}

// number reads one element of any dtype.
func number(dtype DType, p []byte) complex128 {
	switch dtype {
	case C64:
		return complex128(load[complex64](p))
	case C128:
		return load[complex128](p)
	}
	return complex(real64(dtype, p), 0)
}

// real64 reads one element of a dtype that is not complex.
func real64(dtype DType, p []byte) float64 {
	switch dtype {
	case Bool, U8:
		return float64(p[0])
	case I8:
		return float64(load[int8](p))
	case I16:
		return float64(load[int16](p))
	case I32:
		return float64(load[int32](p))
	case I64:
		return float64(load[int64](p))
	case F16:
		return float64(load[Float16](p).Float32())
	case BF16:
		return float64(load[BFloat16](p).Float32())
	case F32:
		return float64(load[float32](p))
	case F64:
		return load[float64](p)
	}
	return math.NaN()
}
