package ops

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Kernels computes on the devices of one kind. The tensors of a call are all on one device, and of
// one dtype. They may have any strides, of which 0 repeats an element, but those of a destination
// never overlap each other. In-place operators pass elements of the destination as the first operand,
// and possibly as the second, in the same order; other operands share no memory with it.
//
// A kernel enqueues its work and need not wait for it. The work must run after the present work of
// the streams of all operands, and the destination is valid on its own stream afterwards. A kernel
// that lacks a dtype returns an error. Kernels may be called concurrently.
type Kernels interface {
	// Alloc returns a new contiguous tensor on d, with undefined contents, valid on the stream that
	// device.StreamFrom(ctx, d) names.
	Alloc(ctx context.Context, d device.Device, dtype tensor.DType, shape ...int) (*tensor.Tensor, error)

	// Fill sets each element of dst to value.
	Fill(ctx context.Context, dst *tensor.Tensor, value Number) error

	// Move copies the bytes of src to dst, of which one may be host memory, as device.Kind.Copy does.
	Move(dst, src device.Buffer) error

	// Copy copies the elements of src, which has the shape of dst.
	Copy(ctx context.Context, dst, src *tensor.Tensor) error

	// Add sets dst to x+alpha*y, Sub to x-alpha*y, Mul to x*y and Div to x/y, element by element. All
	// have the shape of dst.
	Add(ctx context.Context, dst, x, y *tensor.Tensor, alpha Number) error
	Sub(ctx context.Context, dst, x, y *tensor.Tensor, alpha Number) error
	Mul(ctx context.Context, dst, x, y *tensor.Tensor) error
	Div(ctx context.Context, dst, x, y *tensor.Tensor) error

	// Scale sets dst to factor*x, which has the shape of dst.
	Scale(ctx context.Context, dst, x *tensor.Tensor, factor Number) error

	// Sqrt sets dst to the square roots of x, which has the shape of dst.
	Sqrt(ctx context.Context, dst, x *tensor.Tensor) error

	// Sum sets dst to the sums of x over the dimensions dims, sorted numbers from 0. dst has the rank
	// of x, and size 1 in these dimensions.
	Sum(ctx context.Context, dst, x *tensor.Tensor, dims []int) error

	// MatMul sets dst to the products of the matrices in the last two dimensions of x and y. All three
	// have the same rank, at least 2, and the same sizes in the other dimensions.
	MatMul(ctx context.Context, dst, x, y *tensor.Tensor) error
}
