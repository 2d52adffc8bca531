package ops

import (
	"context"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// onHost reports whether t is memory that the host can address.
func onHost(t *tensor.Tensor) bool {
	d := t.Device()
	return d.Kind == device.KindCPU || d.IsZero()
}

// kernelsOf returns the kernels for operators on x and y, or nil if both are on the host. y may be
// nil. The error is a *DeviceMismatchError if they are on different devices, or a
// *tensor.DeviceError if the engine has no kernels for their device.
func (e *Engine) kernelsOf(x, y *tensor.Tensor) (Kernels, error) {
	if onHost(x) && (y == nil || onHost(y)) {
		return nil, nil
	}
	d := x.Device()
	if y != nil && y.Device() != d {
		return nil, &DeviceMismatchError{First: d, Second: y.Device()}
	}
	if k := e.ByKind[d.Kind]; k != nil {
		return k, nil
	}
	return nil, &tensor.DeviceError{Device: d}
}

// checkDeviceDType returns nil if all tensors, of which some may be nil, have the dtype d, and
// otherwise a *ValueError: kernels of devices do not convert.
func checkDeviceDType(d tensor.DType, tensors ...*tensor.Tensor) error {
	for _, t := range tensors {
		if t != nil && t.DType() != d {
			return valueErrorf("%v on %v must be cast to %v, which devices do not do", t, t.Device(), d)
		}
	}
	return nil
}

// deviceEmpty returns a new tensor with undefined contents on the device of like.
func (e *Engine) deviceEmpty(ctx context.Context, k Kernels, like *tensor.Tensor,
	shape []int) (*tensor.Tensor, error) {
	if err := e.checkSize(like.DType(), shape); err != nil {
		return nil, err
	}
	return k.Alloc(ctx, like.Device(), like.DType(), shape...)
}

// deviceBinary is binary for tensors on the device of k.
func (e *Engine) deviceBinary(ctx context.Context, k Kernels, op opcode, x *tensor.Tensor,
	y secondOperand, d tensor.DType, alpha Number) (*tensor.Tensor, error) {
	if err := checkDeviceDType(d, x, y.tensor); err != nil {
		return nil, err
	}
	shape := x.Shape()
	if y.tensor != nil {
		var err error
		if shape, err = broadcast(shape, y.tensor.Shape()); err != nil {
			return nil, err
		}
	}
	out, err := e.deviceEmpty(ctx, k, x, shape)
	if err != nil {
		return nil, err
	}
	return out, e.deviceCombine(ctx, k, op, out, x, y, alpha)
}

// deviceCombine sets out to the results of op, one of opAdd to opDiv, for the elements of x and y,
// which are broadcast to the shape of out. x may be out.
func (e *Engine) deviceCombine(ctx context.Context, k Kernels, op opcode, out, x *tensor.Tensor,
	y secondOperand, alpha Number) error {
	x, err := expandTo(x, out.Shape())
	if err != nil {
		return err
	}
	t := y.tensor
	if t == nil && op == opMul {
		return k.Scale(ctx, out, x, y.number)
	}
	if t == nil {
		if t, err = e.deviceNumber(ctx, k, x, y.number); err != nil {
			return err
		}
	}
	if t, err = expandTo(t, out.Shape()); err != nil {
		return err
	}
	switch op {
	case opAdd:
		return k.Add(ctx, out, x, t, alpha)
	case opSub:
		return k.Sub(ctx, out, x, t, alpha)
	case opMul:
		return k.Mul(ctx, out, x, t)
	default:
		return k.Div(ctx, out, x, t)
	}
}

// expandTo returns t itself if it has the given shape, and otherwise a view of t in that shape.
func expandTo(t *tensor.Tensor, shape []int) (*tensor.Tensor, error) {
	if slices.Equal(t.Shape(), shape) {
		return t, nil
	}
	return t.Expand(shape...)
}

// deviceNumber returns n as a new tensor without dimensions, with the dtype of like and on its
// device.
func (e *Engine) deviceNumber(ctx context.Context, k Kernels, like *tensor.Tensor,
	n Number) (*tensor.Tensor, error) {
	t, err := k.Alloc(ctx, like.Device(), like.DType())
	if err != nil {
		return nil, err
	}
	return t, k.Fill(ctx, t, n)
}

// deviceSum returns the sums of x over dims, sorted numbers from 0, as a new tensor on the device of
// k. The tensor keeps these dimensions with size 1 if keep is true.
func (e *Engine) deviceSum(ctx context.Context, k Kernels, x *tensor.Tensor, dims []int,
	keep bool) (*tensor.Tensor, error) {
	if err := e.checkSize(x.DType(), x.Shape()); err != nil { // x may be expanded
		return nil, err
	}
	kept := slices.Clone(x.Shape())
	for _, dim := range dims {
		kept[dim] = 1
	}
	out, err := e.deviceEmpty(ctx, k, x, kept)
	if err != nil {
		return nil, err
	}
	if err := k.Sum(ctx, out, x, dims); err != nil || keep {
		return out, err
	}
	for i := len(dims) - 1; i >= 0; i-- {
		if out, err = out.Select(dims[i], 0); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// deviceClone returns a contiguous copy of x on the device of k.
func (e *Engine) deviceClone(ctx context.Context, k Kernels, x *tensor.Tensor) (*tensor.Tensor, error) {
	out, err := e.deviceEmpty(ctx, k, x, x.Shape())
	if err != nil {
		return nil, err
	}
	return out, k.Copy(ctx, out, x)
}

// deviceSeparate returns y, or a copy if it is a different view of the storage of x. y may be nil.
func (e *Engine) deviceSeparate(ctx context.Context, k Kernels, x, y *tensor.Tensor) (*tensor.Tensor, error) {
	if y == nil || y.Storage() != x.Storage() || sameElements(x, y) {
		return y, nil
	}
	return e.deviceClone(ctx, k, y)
}

// deviceMatMul returns the products of the matrices in the last two dimensions of x and y, which
// must have at least two each and fit together, as a new tensor on the device of k. The dimensions
// before these are broadcast. The error is a *SizeError if they cannot be, a *ValueError for
// different dtypes, a *LimitError, or an error of k.
func (e *Engine) deviceMatMul(ctx context.Context, k Kernels, x, y *tensor.Tensor) (*tensor.Tensor, error) {
	if err := checkDeviceDType(x.DType(), y); err != nil {
		return nil, err
	}
	xs, ys := x.Shape(), y.Shape()
	a, b := len(xs)-2, len(ys)-2
	batch, err := broadcast(xs[:a], ys[:b])
	if err != nil {
		return nil, err
	}
	batch = slices.Clip(batch)
	out, err := e.deviceEmpty(ctx, k, x, append(batch, xs[a], ys[b+1]))
	if err != nil {
		return nil, err
	}
	if x, err = expandTo(x, append(batch, xs[a:]...)); err != nil {
		return nil, err
	}
	if y, err = expandTo(y, append(batch, ys[b:]...)); err != nil {
		return nil, err
	}
	return out, k.MatMul(ctx, out, x, y)
}
