package autograd

import "slices"

// Fits reports whether v, which must not be the zero Value, has the dtype and the shape of the result with
// that number of the operator, as a gradient of it that comes from another process must.
func (n *Node) Fits(output int, v Value) bool {
	f := n.form(output)
	return v.DType() == f.dtype && slices.Equal(v.Shape(), f.shape())
}
