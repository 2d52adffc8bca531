package tensor

import (
	"bytes"
	"math/cmplx"
	"runtime"
	"slices"
	"unsafe"
)

// bytesOf returns the memory of values as bytes, without a copy.
func bytesOf[T Element](values []T) []byte {
	var zero T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(zero)))
}

// load reads one element from the first bytes of p, which need not be aligned. It panics if p is
// shorter than an element. For a bool any byte but 0 is true.
func load[T Element](p []byte) (value T) {
	if b, ok := any(&value).(*bool); ok {
		*b = p[0] != 0
		return value
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&value)), unsafe.Sizeof(value)), p)
	return value
}

// store writes value to the first bytes of p, which need not be aligned. If p is shorter than an
// element it writes only as many bytes as fit.
func store[T Element](p []byte, value T) {
	copy(p, unsafe.Slice((*byte)(unsafe.Pointer(&value)), unsafe.Sizeof(value)))
}

// checkType returns a *DTypeError unless T represents the elements of t.
func checkType[T Element](t *Tensor) error {
	if want := DTypeOf[T](); t.dtype != want {
		return &DTypeError{Name: t.dtype.String(), Reason: "is not the " + want.String() + " of the Go type"}
	}
	return nil
}

// writable returns the bytes of the whole storage of t for writing, not a copy. The caller must keep t
// alive while it uses them. The error is ErrReadOnly, ErrReleased or a *DeviceError.
func (t *Tensor) writable() ([]byte, error) {
	if t.ReadOnly() {
		return nil, ErrReadOnly
	}
	return t.storage.Bytes()
}

// Data returns the elements of a contiguous tensor in row-major order, not a copy. The caller must not
// change them. The slice does not keep t alive: call runtime.KeepAlive(t) after its last use.
//
// The error is a *DTypeError if T does not represent the elements of t or if a bool tensor has bytes
// other than 0 and 1, ErrNotContiguous, ErrReleased, a *DeviceError, or ErrUnaligned for unaligned
// memory that was not allocated by this package.
func Data[T Element](t *Tensor) ([]T, error) {
	if err := checkType[T](t); err != nil {
		return nil, err
	}
	if !t.IsContiguous() {
		return nil, ErrNotContiguous
	}
	p, err := t.storage.Bytes()
	if err != nil {
		return nil, err
	}
	size := t.dtype.Size()
	p = p[t.offset*size:][:t.ByteSize()]
	if t.dtype == Bool && !validBools(p) {
		return nil, &DTypeError{Name: t.dtype.String(), Reason: "has bytes other than 0 and 1"}
	}
	var zero T
	first := unsafe.Pointer(unsafe.SliceData(p))
	if uintptr(first)%unsafe.Alignof(zero) != 0 {
		return nil, ErrUnaligned
	}
	return unsafe.Slice((*T)(first), t.Len()), nil
}

// MutableData returns the elements of a contiguous tensor for reading and writing, not a copy. The
// slice does not keep t alive: call runtime.KeepAlive(t) after its last use. The error is ErrReadOnly
// or one of those of Data.
func MutableData[T Element](t *Tensor) ([]T, error) {
	if t.ReadOnly() {
		return nil, ErrReadOnly
	}
	return Data[T](t)
}

// validBools reports whether every byte of p is 0 or 1, so that p may be used as a []bool.
func validBools(p []byte) bool {
	for _, b := range p {
		if b > 1 {
			return false
		}
	}
	return true
}

// byteOffset returns the offset in bytes, from the start of the storage, of the element at index. The
// error is a *ShapeError if index does not have one number for each dimension of t, or an *IndexError
// if a number is out of range.
func (t *Tensor) byteOffset(index []int) (int, error) {
	if len(index) != len(t.shape) {
		return 0, &ShapeError{Shape: t.shape, Reason: "does not have as many dimensions as the index"}
	}
	at := t.offset
	for i, x := range index {
		if x < 0 || x >= t.shape[i] {
			return 0, &IndexError{What: "element", Index: x, Len: t.shape[i]}
		}
		at += x * t.strides[i]
	}
	return at * t.dtype.Size(), nil
}

// At returns the element at index, which has one number for each dimension. It is meant for tests and
// for a few elements; Data returns all of them. The error is a *DTypeError, a *ShapeError for a wrong
// number of indices, an *IndexError, ErrReleased or a *DeviceError.
func At[T Element](t *Tensor, index ...int) (value T, err error) {
	if err := checkType[T](t); err != nil {
		return value, err
	}
	at, err := t.byteOffset(index)
	if err != nil {
		return value, err
	}
	p, err := t.storage.Bytes()
	if err != nil {
		return value, err
	}
	value = load[T](p[at:])
	runtime.KeepAlive(t)
	return value, nil
}

// Set writes the element at index, which has one number for each dimension. If several elements share
// that memory, as after Expand, all of them change. The errors are those of At, and ErrReadOnly.
func Set[T Element](t *Tensor, value T, index ...int) error {
	if err := checkType[T](t); err != nil {
		return err
	}
	at, err := t.byteOffset(index)
	if err != nil {
		return err
	}
	p, err := t.writable()
	if err != nil {
		return err
	}
	store(p[at:], value)
	runtime.KeepAlive(t)
	return nil
}

// Fill sets every element of t to value. The error is a *DTypeError, ErrReadOnly, ErrOverlap if
// elements of t share memory, ErrReleased or a *DeviceError.
func Fill[T Element](t *Tensor, value T) error {
	all, err := Scalar(value).Expand(t.shape...)
	if err != nil {
		return err
	}
	return t.CopyFrom(all)
}

// Equal reports whether a and b have the same dtype, shape and bits: a NaN equals itself, zero does not
// equal minus zero. The error is ErrReleased, a *DeviceError, or a *SizeError for an expanded tensor
// that is too large to copy.
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

// packed returns the bytes of the elements of t in row-major order, and the tensor that the caller must
// keep alive while it uses them: t if it is contiguous, otherwise a contiguous copy. The caller must
// not write to the bytes. The error is ErrReleased, a *DeviceError, or a *SizeError for an expanded
// tensor that is too large to copy.
func (t *Tensor) packed() ([]byte, *Tensor, error) {
	c, err := t.Contiguous()
	if err != nil {
		return nil, nil, err
	}
	p, err := c.storage.Bytes()
	if err != nil {
		return nil, nil, err
	}
	return p[c.offset*c.dtype.Size():][:c.ByteSize()], c, nil
}

// AllClose reports whether a and b have the same dtype and shape, and the difference of each pair of
// elements is at most atol + rtol*|b|. An infinity is close only to the same infinity, and a NaN to
// nothing. Elements are compared as complex128, so integers beyond 2^53 lose precision. The error is
// ErrReleased, a *DeviceError, or a *SizeError for an expanded tensor that is too large to copy.
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
		x, y := complexAt(a.dtype, p[i:]), complexAt(b.dtype, q[i:])
		near = x == y || cmplx.Abs(x-y) <= atol+rtol*cmplx.Abs(y) && !cmplx.IsInf(y)
	}
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
	return near, nil
}

// complexAt returns the first element of p, whose elements have the valid type dtype. It panics if p is
// shorter than an element.
func complexAt(dtype DType, p []byte) complex128 {
	real := 0.0
	switch dtype {
	case Bool, U8:
		real = float64(p[0])
	case I8:
		real = float64(load[int8](p))
	case I16:
		real = float64(load[int16](p))
	case I32:
		real = float64(load[int32](p))
	case I64:
		real = float64(load[int64](p))
	case F16:
		real = float64(load[Float16](p).Float32())
	case BF16:
		real = float64(load[BFloat16](p).Float32())
	case F32:
		real = float64(load[float32](p))
	case F64:
		real = load[float64](p)
	case C64:
		return complex128(load[complex64](p))
	default:
		return load[complex128](p)
	}
	return complex(real, 0)
}
