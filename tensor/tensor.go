package tensor

import (
	"fmt"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Tensor is a strided view of a Storage. The element at index (i, j, ...) is
// the storage's element number offset + i*strides[0] + j*strides[1] + ...
//
// A Tensor never changes what it describes; only the elements can change.
type Tensor struct {
	storage *Storage
	dtype   DType
	shape   []int
	strides []int // in elements
	offset  int   // in elements
}

// Strided views the elements of s that shape, strides and offset, counted in
// elements, describe. Strides must not be negative; with strides of zero, or
// small ones, elements share memory. The slices are copied. The error is a
// *DTypeError, a *ShapeError, or an *IndexError where an element would lie
// outside of s.
func Strided(s *Storage, dtype DType, shape, strides []int, offset int) (*Tensor, error) {
	if _, err := ByteSize(dtype, shape); err != nil {
		return nil, err
	}
	if err := checkStrided(shape, strides, offset, s.Len()/dtype.Size()); err != nil {
		return nil, err
	}
	t := blank(s, dtype, len(shape))
	t.offset = offset
	copy(t.shape, shape)
	copy(t.strides, strides)
	return t, nil
}

// fewDims is the rank up to which shape and strides lie beside the Tensor.
const fewDims = 4

// roomyTensor is a Tensor beside its shape and strides.
type roomyTensor struct {
	Tensor
	dims [2 * fewDims]int
}

// blank is a tensor whose shape and strides are to be filled in.
func blank(s *Storage, dtype DType, rank int) *Tensor {
	if rank > fewDims {
		dims := make([]int, 2*rank)
		return &Tensor{storage: s, dtype: dtype, shape: dims[:rank:rank], strides: dims[rank:]}
	}
	one := s.first.Swap(nil)
	if one == nil {
		one = &roomyTensor{}
	}
	one.Tensor = Tensor{storage: s, dtype: dtype, shape: one.dims[:rank:rank], strides: one.dims[rank : 2*rank : 2*rank]}
	return &one.Tensor
}

// FromStorage views the first elements of s in row-major order. The error is
// that of Strided.
func FromStorage(s *Storage, dtype DType, shape ...int) (*Tensor, error) {
	size, err := ByteSize(dtype, shape)
	if err != nil {
		return nil, err
	}
	if size > s.Len() {
		return Strided(s, dtype, shape, rowMajor(shape), 0) // which says what is wrong
	}
	t := blank(s, dtype, len(shape))
	copy(t.shape, shape)
	fillRowMajor(t.strides, shape)
	return t, nil
}

// Alloc makes a contiguous tensor with undefined contents in memory from a.
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

// Zeros makes a contiguous tensor of zeros on the Go heap.
func Zeros(dtype DType, shape ...int) (*Tensor, error) { return Alloc(Heap{}, dtype, shape...) }

// FromSlice makes a contiguous tensor of values, in row-major order. It keeps
// the slice, not a copy. The error is a *ShapeError unless the shape has as
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

// Scalar makes a tensor of no dimensions.
func Scalar[T Element](value T) *Tensor {
	p := heapBytes(int(unsafe.Sizeof(value)))
	store(p, value)
	return &Tensor{storage: &Storage{buf: device.Bytes(p), host: p}, dtype: DTypeOf[T]()}
}

// FromBuffer makes a contiguous tensor of memory that came from elsewhere, as
// from a pipe. It keeps the memory, and with it the Buffer's owner. The error
// is a *ShapeError unless the tensor fills buf exactly, or ErrNotContiguous if
// buf has several segments.
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

// DType is the type of the elements.
func (t *Tensor) DType() DType { return t.dtype }

// Rank is the number of dimensions.
func (t *Tensor) Rank() int { return len(t.shape) }

// Shape is the size of each dimension. The caller must not change it.
func (t *Tensor) Shape() []int { return t.shape }

// Strides is the distance in elements between neighbours, for each dimension.
// The caller must not change it.
func (t *Tensor) Strides() []int { return t.strides }

// Offset is the place of the first element, counted in elements from the start
// of the storage.
func (t *Tensor) Offset() int { return t.offset }

// Storage is the memory that t views.
func (t *Tensor) Storage() *Storage { return t.storage }

// Device is where the memory lives.
func (t *Tensor) Device() device.Device { return t.storage.Device() }

// ReadOnly reports whether the elements must not change.
func (t *Tensor) ReadOnly() bool { return t.storage.ReadOnly() }

// Len is the number of elements.
func (t *Tensor) Len() int {
	n := 1
	for _, dim := range t.shape {
		n *= dim
	}
	return n
}

// ByteSize is the number of bytes of the elements of t; the storage may have
// more, or, after Expand, less.
func (t *Tensor) ByteSize() int { return t.Len() * t.dtype.Size() }

// IsContiguous reports whether the elements lie one behind the other in
// row-major order. Tensors without elements are contiguous.
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

// Buffer is the memory of a contiguous tensor as a pipe takes it. The Buffer
// and its slices keep the memory alive. Who writes to it has asked ReadOnly
// before. The error is ErrNotContiguous or ErrReleased.
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

// Release gives the memory back, for all tensors that share the storage; see
// Storage.Release.
func (t *Tensor) Release() { t.storage.Release() }

// String describes t without its elements, as in "f32[3,4]".
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
