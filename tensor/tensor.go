package tensor

import (
	"fmt"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Tensor is a strided view of a Storage. The element at index (i, j, ...) is element number offset +
// i*strides[0] + j*strides[1] + ... of the storage.
//
// Shape, strides, dtype and storage of a Tensor never change; only the elements can change.
type Tensor struct {
	storage *Storage
	dtype   DType
	shape   []int
	strides []int // in elements
	offset  int   // in elements
}

// Strided returns a tensor whose elements are those of s that shape, strides and offset describe;
// strides and offset are counted in elements of dtype. The tensor shares the memory of s and keeps
// s alive. With strides of zero, or small ones, elements share memory with each other. shape and
// strides are copied. The error is a *DTypeError if dtype is not valid, a *ShapeError if shape or
// strides are not valid or a stride is negative, or an *IndexError if offset or an element is
// outside s.
func Strided(s *Storage, dtype DType, shape, strides []int, offset int) (*Tensor, error) {
	if _, err := ByteSize(dtype, shape); err != nil {
		return nil, err
	}
	if err := checkStrided(shape, strides, offset, s.Len()/dtype.Size()); err != nil {
		return nil, err
	}
	t := newTensor(s, dtype, len(shape))
	t.offset = offset
	copy(t.shape, shape)
	copy(t.strides, strides)
	return t, nil
}

// inlineDims is the rank up to which shape and strides are allocated together with the Tensor.
const inlineDims = 4

// tensorWithDims is a Tensor allocated together with its shape and strides.
type tensorWithDims struct {
	Tensor
	dims [2 * inlineDims]int
}

// newTensor returns a tensor over s with offset 0 and with slices of length rank for shape and
// strides, whose contents the caller must fill in. The slices are new memory or memory of s that no
// other tensor uses.
func newTensor(s *Storage, dtype DType, rank int) *Tensor {
	if rank > inlineDims {
		dims := make([]int, 2*rank)
		return &Tensor{storage: s, dtype: dtype, shape: dims[:rank:rank], strides: dims[rank:]}
	}
	one := s.first.Swap(nil)
	if one == nil {
		one = &tensorWithDims{}
	}
	one.Tensor = Tensor{storage: s, dtype: dtype, shape: one.dims[:rank:rank], strides: one.dims[rank : 2*rank : 2*rank]}
	return &one.Tensor
}

// FromStorage returns a contiguous tensor of the first elements of s, in row-major order. The
// tensor shares the memory of s and keeps s alive; shape is copied. The error is a *DTypeError if
// dtype is not valid, a *ShapeError if shape is not valid, or an *IndexError if s is too small.
func FromStorage(s *Storage, dtype DType, shape ...int) (*Tensor, error) {
	size, err := ByteSize(dtype, shape)
	if err != nil {
		return nil, err
	}
	if size > s.Len() {
		return Strided(s, dtype, shape, rowMajor(shape), 0) // returns the error
	}
	t := newTensor(s, dtype, len(shape))
	copy(t.shape, shape)
	fillRowMajor(t.strides, shape)
	return t, nil
}

// Alloc returns a contiguous tensor in memory that it allocates from a. The contents are undefined.
// The error is a *DTypeError if dtype is not valid, a *ShapeError if shape is not valid, or the
// error of a.
func Alloc(a Allocator, dtype DType, shape ...int) (*Tensor, error) {
	size, err := ByteSize(dtype, shape)
	if err != nil {
		return nil, err
	}
	s, err := a.Alloc(size)
	if err != nil {
		return nil, err
	}
	return FromStorage(s, dtype, shape...)
}

// Zeros returns a contiguous tensor of zeros on the Go heap. The error is a *DTypeError if dtype is
// not valid, a *ShapeError if shape is not valid, or a *SizeError if the tensor is impossibly
// large.
func Zeros(dtype DType, shape ...int) (*Tensor, error) { return Alloc(Heap{}, dtype, shape...) }

// FromSlice returns a contiguous tensor of the elements of values, in row-major order. The tensor
// shares the memory of values, without a copy, and keeps it alive; shape is copied. The error is a
// *ShapeError unless shape is valid and has as many elements as values.
func FromSlice[T Element](values []T, shape ...int) (*Tensor, error) {
	n, err := NumElements(shape)
	if err != nil {
		return nil, err
	}
	if n != len(values) {
		return nil, &ShapeError{Shape: shape, Reason: fmt.Sprintf("does not fit %d values", len(values))}
	}
	return FromBuffer(device.Bytes(bytesOf(values)), DTypeOf[T](), shape...)
}

// Scalar returns a new tensor without dimensions, on the Go heap, whose only element is value.
func Scalar[T Element](value T) *Tensor {
	p := heapBytes(int(unsafe.Sizeof(value)))
	store(p, value)
	return &Tensor{storage: &Storage{buf: device.Bytes(p), host: p}, dtype: DTypeOf[T]()}
}

// FromBuffer returns a contiguous tensor in the memory of buf, for example from a pipe, without a
// copy. The tensor keeps that memory and the owner of buf alive. The error is a *DTypeError if
// dtype is not valid, a *ShapeError unless shape is valid and takes exactly the bytes of buf, or
// ErrNotContiguous if buf is host memory in several segments.
func FromBuffer(buf device.Buffer, dtype DType, shape ...int) (*Tensor, error) {
	size, err := ByteSize(dtype, shape)
	if err != nil {
		return nil, err
	}
	if size != buf.Len() {
		return nil, &ShapeError{Shape: shape, Reason: fmt.Sprintf("of %v takes %d bytes, the buffer has %d", dtype, size, buf.Len())}
	}
	s, err := NewStorage(buf, nil)
	if err != nil {
		return nil, err
	}
	return FromStorage(s, dtype, shape...)
}

// DType returns the type of the elements.
func (t *Tensor) DType() DType { return t.dtype }

// Rank returns the number of dimensions.
func (t *Tensor) Rank() int { return len(t.shape) }

// Shape returns the size of each dimension. The slice is t's own, which the caller must not change.
func (t *Tensor) Shape() []int { return t.shape }

// Strides returns, for each dimension, the distance in elements between neighbours. The slice is
// t's own, which the caller must not change.
func (t *Tensor) Strides() []int { return t.strides }

// Offset returns the position of the first element, counted in elements from the start of the storage.
func (t *Tensor) Offset() int { return t.offset }

// Storage returns the memory that t views, without a copy. Other tensors may share it.
func (t *Tensor) Storage() *Storage { return t.storage }

// Device returns the device on which the memory is.
func (t *Tensor) Device() device.Device { return t.storage.Device() }

// ReadOnly reports whether the storage of t is read-only, in which case the elements must not
// change.
func (t *Tensor) ReadOnly() bool { return t.storage.ReadOnly() }

// Len returns the number of elements.
func (t *Tensor) Len() int {
	n := 1
	for _, dim := range t.shape {
		n *= dim
	}
	return n
}

// ByteSize returns the number of elements of t times their size in bytes. The storage may be larger
// or, after Expand, smaller.
func (t *Tensor) ByteSize() int { return t.Len() * t.dtype.Size() }

// IsContiguous reports whether the elements are adjacent in memory, in row-major order. It is true
// for tensors without elements.
func (t *Tensor) IsContiguous() bool {
	step := 1
	for i := len(t.shape) - 1; i >= 0; i-- {
		if t.shape[i] != 1 && t.strides[i] != step {
			return t.Len() == 0
		}
		step *= t.shape[i]
	}
	return true
}

// Buffer returns the memory of a contiguous tensor's elements, without a copy, as a buffer for a
// pipe. The buffer and slices of it keep the memory alive. A caller that writes to the buffer must
// check ReadOnly first. The error is ErrNotContiguous if t is not contiguous, or ErrReleased after
// Release.
func (t *Tensor) Buffer() (device.Buffer, error) {
	if !t.IsContiguous() {
		return device.Buffer{}, ErrNotContiguous
	}
	buf, err := t.storage.Buffer()
	if err != nil {
		return device.Buffer{}, err
	}
	return buf.Slice(t.offset*t.dtype.Size(), t.ByteSize()), nil
}

// Release gives the memory of t's storage back to its allocator, for all tensors that share it,
// before they become unreachable. None of them may be in use any more. A second call does nothing;
// see Storage.Release.
func (t *Tensor) Release() { t.storage.Release() }

// String returns the dtype and the shape of t, such as "f32[3,4]", without the elements.
func (t *Tensor) String() string {
	text := t.dtype.String() + "["
	for i, dim := range t.shape {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprint(dim)
	}
	return text + "]"
}
