package ops

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Kernels computes on the devices of one kind. The tensors of a call are all on one device, and of
// one dtype, but for indices. They may have any strides, of which 0 repeats an element, but those of a destination
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

	// Map sets dst to f of each element of x, which has the shape of dst. It returns a
	// *tensor.DeviceError for functions that it lacks.
	Map(ctx context.Context, f Function, dst, x *tensor.Tensor) error

	// ReluBackward sets dst to grad where out is positive or NaN, and to 0 elsewhere. All have one shape.
	ReluBackward(ctx context.Context, dst, grad, out *tensor.Tensor) error

	// Sum sets dst to the sums of x over the dimensions dims, sorted numbers from 0. dst has the rank
	// of x, and size 1 in these dimensions.
	Sum(ctx context.Context, dst, x *tensor.Tensor, dims []int) error

	// ArgMax sets dst, of dtype I64, to the indices of the largest elements of x along dimension dim, the
	// first one of several. NaN counts as the largest. dst has the shape of x, but size 1 in dim, where x
	// has at least one element.
	ArgMax(ctx context.Context, dst, x *tensor.Tensor, dim int) error

	// Take sets each element of dst to an element of x: that with the index in dimension dim which the
	// element of indices has, and in the other dimensions with the index of the element of dst. It is 0 for
	// the index ignored, and NaN for another one that is not below the size of dim. dst and indices, of
	// dtype I64, have one shape, and x has it too but for its size in dim.
	Take(ctx context.Context, dst, x, indices *tensor.Tensor, dim int, ignored int64) error

	// Put sets each element of dst to 0, but those whose index in dimension dim is that of indices to the
	// elements of x. x and indices, of dtype I64, have the shape of dst, but size 1 in dim.
	Put(ctx context.Context, dst, x, indices *tensor.Tensor, dim int) error

	// MatMul sets dst to the products of the matrices in the last two dimensions of x and y. All three
	// have the same rank, at least 2, and the same sizes in the other dimensions.
	MatMul(ctx context.Context, dst, x, y *tensor.Tensor) error
}

// Function is a function of one number.
type Function uint8

// The functions. Sigmoid is 1/(1+exp(-x)), and Relu x where it is positive or NaN, and otherwise 0.
const (
	FunctionExp Function = iota
	FunctionLog
	FunctionSqrt
	FunctionSin
	FunctionCos
	FunctionTanh
	FunctionSigmoid
	FunctionNeg
	FunctionAbs
	FunctionRelu
)
