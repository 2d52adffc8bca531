package tensor

import (
	"bytes"
	"math/cmplx"
	"runtime"
	"slices"
	"unsafe"
)

// bytesOf returns the memory of values as bytes, without a copy. The result shares memory with
// values and keeps it alive.
func bytesOf[T Element](values []T) []byte {
	var zero T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(zero)))
}

// load reads one element from the first bytes of p, which need not be aligned and must hold at least
// one element. For a bool any byte but 0 is true.
func load[T Element](p []byte) (value T) {
	if b, ok := any(&value).(*bool); ok {
		*b = p[0] != 0
		return value
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&value)), unsafe.Sizeof(value)), p)
	return value
}

// store writes the bytes of value to the start of p, which need not be aligned. If p is shorter
// than an element, store writes only as many bytes as fit and does not panic.
func store[T Element](p []byte, value T) {
	copy(p, unsafe.Slice((*byte)(unsafe.Pointer(&value)), unsafe.Sizeof(value)))
}

// checkType returns nil if the elements of t have the Go type T, and otherwise a *DTypeError.
func checkType[T Element](t *Tensor) error {
	if want := DTypeOf[T](); t.dtype != want {
		return &DTypeError{Name: t.dtype.String(), Reason: "is not the " + want.String() + " of the Go type"}
	}
	return nil
}

// writable returns the bytes of t's whole storage, without a copy, for writing. The slice does not
// keep t alive: the caller must, while it uses the bytes. The error is ErrReadOnly if the storage
// is read-only, ErrReleased after Release, or a *DeviceError if the host cannot address the memory.
func (t *Tensor) writable() ([]byte, error) {
	if t.ReadOnly() {
		return nil, ErrReadOnly
	}
	return t.storage.Bytes()
}

// Data returns the elements of a contiguous tensor in row-major order, without a copy. The caller
// must not change them. The slice does not keep t alive: call runtime.KeepAlive(t) after its last
// use.
//
// The error is a *DTypeError if T is not the Go type of t's elements or if a bool tensor has bytes
// other than 0 and 1. It is ErrNotContiguous if t is not contiguous, ErrReleased after Release, a
// *DeviceError if the host cannot address the memory, and ErrUnaligned if the memory was not
// allocated by this package and is not aligned for T.
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

// MutableData returns the elements of a contiguous tensor in row-major order for reading and
// writing, without a copy: writes to the slice change t. The slice does not keep t alive: call
// runtime.KeepAlive(t) after its last use. The error is ErrReadOnly if the storage is read-only, or
// one of the errors that Data returns.
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

// byteOffset returns the offset, in bytes from the start of the storage, of the element at index.
// The error is a *ShapeError if index does not have one number for each dimension of t, or an
// *IndexError if a number is outside its dimension.
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

// At returns the element at index, which has one number for each dimension. It is meant for tests
// and for a few elements; Data returns all of them. The error is a *DTypeError if T is not the Go
// type of t's elements, a *ShapeError for a wrong number of indices, an *IndexError for one that is
// out of range, ErrReleased after Release, or a *DeviceError if the host cannot address the memory.
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

// Set writes value to the element at index, which has one number for each dimension. If several
// elements share that memory, as after Expand, all of them change. The error is ErrReadOnly if the
// storage is read-only, or one of the errors that At returns. After an error t is unchanged.
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

// Fill sets every element of t to value. The error is a *DTypeError if T is not the Go type of t's
// elements, ErrReadOnly if the storage is read-only, ErrOverlap if elements of t may share memory,
// ErrReleased after Release, or a *DeviceError if the host cannot address the memory. After an
// error t is unchanged.
func Fill[T Element](t *Tensor, value T) error {
	all, err := Scalar(value).Expand(t.shape...)
	if err != nil {
		return err
	}
	return t.CopyFrom(all)
}

// Equal reports whether a and b have the same dtype, the same shape, and bit for bit the same
// elements: a NaN equals itself, and zero does not equal minus zero. The error is ErrReleased after
// Release, a *DeviceError if the host cannot address the memory, or a *SizeError for an expanded
// tensor that is too large to copy. Tensors of different dtypes or shapes give false without an
// error.
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

// packed returns the bytes of t's elements in row-major order, and the tensor that owns them: t
// itself if t is contiguous, otherwise a contiguous copy on the Go heap. The caller must keep that
// tensor alive while it uses the bytes, and must not write to them. The error is ErrReleased after
// Release, a *DeviceError if the host cannot address the memory, or a *SizeError for an expanded
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

// AllClose reports whether a and b have the same dtype and shape, and for each pair of elements x
// of a and y of b |x-y| is at most atol + rtol*|y|. An infinity is close only to the same infinity,
// and a NaN to nothing. Elements are compared as complex128, so integers beyond 2^53 lose
// precision. The error is ErrReleased after Release, a *DeviceError if the host cannot address the
// memory, or a *SizeError for an expanded tensor that is too large to copy. Tensors of different
// dtypes or shapes give false without an error.
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

// complexAt returns the element that the first bytes of p hold in the given dtype, converted to
// complex128. dtype must be valid, and p must hold at least one element.
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
