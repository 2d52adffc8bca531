package ops

import (
	"errors"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Engine has the allocator of results and the kernels that operators use. The zero Engine puts
// results on the Go heap, and computes on the host only. An Engine must not be modified while
// operators run; it may be used concurrently.
type Engine struct {
	// Alloc allocates the results, and the intermediate ones, on the host. Nil stands for tensor.Heap.
	Alloc tensor.Allocator

	// Gemm multiplies matrices of F32 and F64 on the host. Nil stands for loops in Go.
	Gemm Gemm

	// ByKind has the kernels for tensors that are not on the host, by the name of the device's kind.
	ByKind map[string]Kernels

	// MaxBytes bounds the bytes of each tensor that an operator allocates, intermediate results and
	// expanded views included. 0 is no limit. It does not bound the coalesced form of a sparse
	// argument, which is no larger than the argument.
	MaxBytes int
}

// checkSize returns nil if a contiguous tensor of this dtype and shape is within the limit of e, a
// *LimitError if it is larger, and the error of tensor.ByteSize if dtype or shape is invalid.
func (e *Engine) checkSize(dtype tensor.DType, shape []int) error {
	size, err := tensor.ByteSize(dtype, shape)
	if err != nil {
		return err
	}
	if e.MaxBytes > 0 && size > e.MaxBytes {
		return &LimitError{Bytes: size, Limit: e.MaxBytes}
	}
	return nil
}

// empty returns a new contiguous tensor with undefined contents. The errors are those of checkSize
// or of the allocator.
func (e *Engine) empty(dtype tensor.DType, shape ...int) (*tensor.Tensor, error) {
	if e.MaxBytes > 0 {
		if err := e.checkSize(dtype, shape); err != nil {
			return nil, err
		}
	}
	if e.Alloc == nil {
		return tensor.Zeros(dtype, shape...) // returns the other errors of checkSize
	}
	return tensor.Alloc(e.Alloc, dtype, shape...)
}

// zeros returns a new contiguous tensor of zeros, with the errors of empty.
func (e *Engine) zeros(dtype tensor.DType, shape ...int) (*tensor.Tensor, error) {
	t, err := e.empty(dtype, shape...)
	if err != nil || e.Alloc == nil || t.Len() == 0 {
		return t, err
	}
	return t, clearTensor(t)
}

// clearTensor sets all bytes of t, which must be contiguous, to zero. The error is tensor.ErrReadOnly
// or that of tensor.Storage.Bytes.
func clearTensor(t *tensor.Tensor) error {
	if t.ReadOnly() {
		return tensor.ErrReadOnly
	}
	p, err := t.Storage().Bytes()
	if err != nil {
		return err
	}
	clear(p[t.Offset()*t.DType().Size():][:t.ByteSize()])
	runtime.KeepAlive(t)
	return nil
}

// clone returns a contiguous copy of t, with the errors of empty and of tensor.Tensor.CloneIn.
func (e *Engine) clone(t *tensor.Tensor) (*tensor.Tensor, error) {
	if err := e.checkSize(t.DType(), t.Shape()); err != nil {
		return nil, err
	}
	if e.Alloc == nil {
		return t.Clone()
	}
	return t.CloneIn(e.Alloc)
}

// contiguous returns t itself if it is contiguous, and otherwise a contiguous copy.
func (e *Engine) contiguous(t *tensor.Tensor) (*tensor.Tensor, error) {
	if t.IsContiguous() {
		return t, nil
	}
	return e.clone(t)
}

// elements returns the elements of t in row-major order. The slice is the memory of t itself or
// that of a copy on the Go heap, so the caller must not modify it, and must keep t alive
// (runtime.KeepAlive) while it uses the slice. T must be the Go type of the dtype of t. The error is
// that of clone, or one of package tensor.
func elements[T tensor.Element](e *Engine, t *tensor.Tensor) ([]T, error) {
	if t.IsContiguous() {
		data, err := tensor.Data[T](t)
		if !errors.Is(err, tensor.ErrUnaligned) {
			return data, err
		}
	}
	if err := e.checkSize(t.DType(), t.Shape()); err != nil {
		return nil, err
	}
	t, err := t.Clone() // not from e.Alloc: only the Go heap keeps memory alive by a slice
	if err != nil {
		return nil, err
	}
	return tensor.Data[T](t)
}

// newTensor returns a new tensor of undefined elements of type T, and a slice of its memory through
// which the caller sets all of them. The slice does not keep the tensor alive; the caller must. The
// errors are those of empty.
func newTensor[T tensor.Element](e *Engine, shape ...int) (*tensor.Tensor, []T, error) {
	t, err := e.empty(tensor.DTypeOf[T](), shape...)
	if err != nil {
		return nil, nil, err
	}
	if t.DType() == tensor.Bool && e.Alloc != nil { // MutableData rejects bytes other than 0 and 1
		if err := clearTensor(t); err != nil {
			return nil, nil, err
		}
	}
	data, err := tensor.MutableData[T](t)
	return t, data, err
}
