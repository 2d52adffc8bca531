package ops

import (
	"context"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// To returns x on the device d: x itself if it is there, and otherwise a contiguous copy in new memory. The copy to a
// device is only enqueued: it is valid on the stream that ctx has for d, and x may be changed at once, in the order of its
// own stream. For a copy to the host, To waits until the work of the device is done. From one kind of devices to another
// the copy goes through the host.
//
// The error is a *tensor.DeviceError if the engine has no kernels for a device, a *LimitError, that of the kernels or of a
// stream, or the cause of ctx if that ends during the wait.
func (e *Engine) To(ctx context.Context, x *tensor.Tensor, d device.Device) (*tensor.Tensor, error) {
	toHost := d.Kind == device.KindCPU
	switch {
	case x.Device() == d || toHost && onHost(x):
		return x, nil
	case !toHost && !onHost(x) && x.Device().Kind != d.Kind:
		var err error
		if x, err = e.To(ctx, x, device.CPU()); err != nil {
			return nil, err
		}
	}
	elsewhere := d
	if toHost {
		elsewhere = x.Device()
	}
	k := e.ByKind[elsewhere.Kind]
	if k == nil {
		return nil, &tensor.DeviceError{Device: elsewhere}
	}
	if toHost {
		return e.toHost(ctx, k, x)
	}
	if err := e.checkSize(x.DType(), x.Shape()); err != nil {
		return nil, err
	}
	x, err := e.unshared(ctx, x)
	if err != nil {
		return nil, err
	}
	out, err := k.Alloc(ctx, d, x.DType(), x.Shape()...)
	if err != nil {
		return nil, err
	}
	return out, move(k, out, x)
}

// unshared returns x as a contiguous tensor whose memory the caller of To does not change: a copy if x is on the host.
func (e *Engine) unshared(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	if onHost(x) {
		return e.Clone(ctx, x)
	}
	return e.Contiguous(ctx, x)
}

// toHost is To for x on a device of k.
func (e *Engine) toHost(ctx context.Context, k Kernels, x *tensor.Tensor) (*tensor.Tensor, error) {
	x, err := e.Contiguous(ctx, x)
	if err != nil {
		return nil, err
	}
	out, err := e.empty(x.DType(), x.Shape()...)
	if err != nil {
		return nil, err
	}
	if err := move(k, out, x); err != nil {
		return nil, err
	}
	from, err := x.Buffer()
	if err != nil || from.Stream() == nil {
		return out, err // without streams it is complete
	}
	if err := from.Stream().Synchronize(ctx); err != nil {
		if ctx.Err() != nil { // the device may still write to out
			go func() {
				_ = from.Stream().Synchronize(context.WithoutCancel(ctx))
				runtime.KeepAlive(out)
			}()
		}
		return nil, err
	}
	return out, nil
}

// move enqueues a copy of the elements of src to dst. Both are contiguous, and have the same dtype and shape.
func move(k Kernels, dst, src *tensor.Tensor) error {
	to, err := dst.Buffer()
	if err != nil {
		return err
	}
	from, err := src.Buffer()
	if err != nil {
		return err
	}
	return k.Move(to, from)
}
