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

// Strided returns a view of the elements of s that shape, strides and offset, counted in elements,
// describe. With strides of zero, or small ones, elements share memory. Shape and strides are copied.
// The error is a *DTypeError, a *ShapeError, also for a negative stride, or an *IndexError if an
// element would be outside s.
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

// newTensor returns a tensor over s with offset 0 and slices of length rank for shape and strides,
// which the caller must fill in.
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

// FromStorage returns a contiguous view of the first elements of s, in row-major order. The error is a
// *DTypeError, a *ShapeError, or an *IndexError if s is too small.
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

// Alloc returns a contiguous tensor with undefined contents in memory from a. The error is a
// *DTypeError, a *ShapeError or that of a.
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

// Zeros returns a contiguous tensor of zeros on the Go heap. The error is a *DTypeError, a *ShapeError
// or a *SizeError.
func Zeros(dtype DType, shape ...int) (*Tensor, error) { return Alloc(Heap{}, dtype, shape...) }

// FromSlice returns a contiguous tensor of values, in row-major order. The elements are values itself,
// not a copy, and the tensor keeps the slice alive. The error is a *ShapeError unless the shape has as
// many elements as values.
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

// Scalar returns a tensor without dimensions whose only element is value.
func Scalar[T Element](value T) *Tensor {
	p := heapBytes(int(unsafe.Sizeof(value)))
	store(p, value)
	return &Tensor{storage: &Storage{buf: device.Bytes(p), host: p}, dtype: DTypeOf[T]()}
}

// FromBuffer returns a contiguous tensor of existing memory, for example from a pipe, without a copy.
// It keeps the memory and the Buffer's owner alive. The error is a *DTypeError, a *ShapeError unless
// the tensor occupies buf exactly, or ErrNotContiguous if buf has several segments.
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

// Shape returns the size of each dimension. The caller must not change the slice.
func (t *Tensor) Shape() []int { return t.shape }

// Strides returns, for each dimension, the distance in elements between neighbours. The caller must not
// change the slice.
func (t *Tensor) Strides() []int { return t.strides }

// Offset returns the position of the first element, counted in elements from the start of the storage.
func (t *Tensor) Offset() int { return t.offset }

// Storage returns the memory that t views.
func (t *Tensor) Storage() *Storage { return t.storage }

// Device returns the device on which the memory is.
func (t *Tensor) Device() device.Device { return t.storage.Device() }

// ReadOnly reports whether the storage of t is read-only: the elements must not change.
func (t *Tensor) ReadOnly() bool { return t.storage.ReadOnly() }

// Len returns the number of elements.
func (t *Tensor) Len() int {
	n := 1
	for _, dim := range t.shape {
		n *= dim
	}
	return n
}

// ByteSize returns the number of bytes of the elements of t; the storage may be larger, or, after
// Expand, smaller.
func (t *Tensor) ByteSize() int { return t.Len() * t.dtype.Size() }

// IsContiguous reports whether the elements are adjacent in row-major order. Tensors without elements
// are contiguous.
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

// Buffer returns the memory of a contiguous tensor, not a copy, for use with a pipe. The Buffer and its
// slices keep the memory alive. A caller that writes to the Buffer must check ReadOnly first. The error
// is ErrNotContiguous or ErrReleased.
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

// Release returns the memory of the storage, for all tensors that share it, before they become
// unreachable. None of them may be in use any more; see Storage.Release.
func (t *Tensor) Release() { t.storage.Release() }

// String returns a description of t without its elements, such as "f32[3,4]".
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
