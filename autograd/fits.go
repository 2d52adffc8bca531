package autograd

import (
	"context"
	"slices"
)

// Fits reports whether v, which must not be the zero Value, has the dtype and the shape of the result with
// that number of the operator, as a gradient of it that comes from another process must. It may be on
// another device, see OnDevice.
func (n *Node) Fits(output int, v Value) bool {
	f := n.form(output)
	return v.DType() == f.dtype && slices.Equal(v.Shape(), f.shape())
}

// OnDevice returns v, a gradient of the result with that number of the operator, on the device of the result:
// v itself if it is there, and otherwise a copy, see ops.Engine.To. Pass.Feed rejects gradients on other
// devices. The error is that of the copy, or a *ops.DeviceMismatchError if v is sparse.
func (n *Node) OnDevice(ctx context.Context, output int, v Value) (Value, error) {
	return n.form(output).move(ctx, v)
}
