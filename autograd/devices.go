package autograd

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// To returns x, which is dense, on the device d: x itself if it is there, and otherwise a copy in new memory. The
// gradient goes back to the device of x. Copies between devices are only enqueued; for one to the host,
// To waits until the work of the device is done, see ops.Engine.To.
func To(ctx context.Context, x *Variable, d device.Device) (*Variable, error) {
	if err := dense("to", x); err != nil {
		return nil, err
	}
	from := x.value.dense.Device()
	t, err := engineOf(ctx).To(ctx, x.value.dense, d)
	if err != nil {
		return nil, opError("to", err)
	}
	if t == x.value.dense {
		return x, nil
	}
	n := newNode(ctx, "ToCopyBackward0", x)
	if n != nil {
		n.backward = func(ctx context.Context, grads, out []Value) (err error) {
			out[0].dense, err = engineOf(ctx).To(ctx, grads[0].dense, from)
			return err
		}
	}
	return result(t, n), nil
}
