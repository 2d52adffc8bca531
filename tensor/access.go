package tensor

import (
	"runtime"
	"unsafe"
)

// bytesOf views values as bytes.
func bytesOf[T Element](values []T) []byte {
	var zero T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(zero)))
}

// load reads one element; p need not be aligned. Any byte but 0 is true.
func load[T Element](p []byte) (value T) {
	if b, ok := any(&value).(*bool); ok {
		*b = p[0] != 0
		return value
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&value)), unsafe.Sizeof(value)), p)
	return value
}

// store writes one element; p need not be aligned.
func store[T Element](p []byte, value T) {
	copy(p, unsafe.Slice((*byte)(unsafe.Pointer(&value)), unsafe.Sizeof(value)))
}

// checkType fails unless T represents the elements of t.
func checkType[T Element](t *Tensor) error {
	if want := DTypeOf[T](); t.dtype != want {
		return &DTypeError{Name: t.dtype.String(), Reason: "is not the " + want.String() + " of the Go type"}
	}
	return nil
}

// readable is the storage's bytes. Whoever uses them keeps t alive.
func (t *Tensor) readable() ([]byte, error) { return t.storage.Bytes() }

// writable is the storage's bytes unless the elements of t must not change.
func (t *Tensor) writable() ([]byte, error) {
	if t.ReadOnly() {
		return nil, ErrReadOnly
	}
	return t.storage.Bytes()
}

// Data is the elements of a contiguous tensor, to be read only. The slice does
// not keep t alive: call runtime.KeepAlive(t) behind its last use.
//
// The error is a *DTypeError, ErrNotContiguous, ErrReleased, a *DeviceError,
// or ErrUnaligned for memory from outside. A bool tensor must consist of the
// bytes 0 and 1, else the error is a *DTypeError.
func Data[T Element](t *Tensor) ([]T, error) {
	if err := checkType[T](t); err != nil {
		return nil, err
	}
	if !t.IsContiguous() {
		return nil, ErrNotContiguous
	}
	p, err := t.readable()
	if err != nil {
		return nil, err
	}
	size := t.dtype.Size()
	p = p[t.offset*size:][:t.ByteSize()]
	if t.dtype == Bool && !validBools(p) {
		return nil, &DTypeError{Name: t.dtype.String(), Reason: "has bytes other than 0 and 1"}
	}
	return cast[T](p)
}

// MutableData is Data for writing; the error may also be ErrReadOnly.
func MutableData[T Element](t *Tensor) ([]T, error) {
	if t.ReadOnly() {
		return nil, ErrReadOnly
	}
	return Data[T](t)
}

// cast views bytes as elements, if they are aligned.
func cast[T Element](p []byte) ([]T, error) {
	var zero T
	first := unsafe.Pointer(unsafe.SliceData(p))
	if uintptr(first)%unsafe.Alignof(zero) != 0 {
		return nil, ErrUnaligned
	}
	return unsafe.Slice((*T)(first), len(p)/int(unsafe.Sizeof(zero))), nil
}

// validBools reports whether p is a slice of Go bools.
func validBools(p []byte) bool {
	for _, b := range p {
		if b > 1 {
			return false
		}
	}
	return true
}

// place is the position of an element in the bytes of the storage.
func (t *Tensor) place(index []int) (int, error) {
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

// At reads one element. It is meant for tests and for a few elements; Data
// gives all of them.
func At[T Element](t *Tensor, index ...int) (value T, err error) {
	if err := checkType[T](t); err != nil {
		return value, err
	}
	at, err := t.place(index)
	if err != nil {
		return value, err
	}
	p, err := t.readable()
	if err != nil {
		return value, err
	}
	value = load[T](p[at:])
	runtime.KeepAlive(t)
	return value, nil
}

// Set writes one element. Where elements share memory, all that share it
// change. The error may be ErrReadOnly.
func Set[T Element](t *Tensor, value T, index ...int) error {
	if err := checkType[T](t); err != nil {
		return err
	}
	at, err := t.place(index)
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

// Fill writes the same value to every element. The error may be ErrReadOnly, or
// ErrOverlap as for CopyFrom.
func Fill[T Element](t *Tensor, value T) error {
	all, err := Scalar(value).Expand(t.shape...)
	if err != nil {
		return err
	}
	return t.CopyFrom(all)
}
