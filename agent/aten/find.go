package aten

import (
	"math"
	"math/cmplx"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// places lists the index of each element that is not zero, one in a row.
func places(c *call) (*tensor.Tensor, error) {
	x := c.tensor(0)
	truth, err := c.truth(x)
	if err != nil {
		return nil, err
	}
	found, err := elements[bool](c, truth)
	if err != nil {
		return nil, err
	}
	n := 0
	for _, yes := range found {
		if yes {
			n++
		}
	}
	out, to, err := fresh[int64](c, n, x.Rank())
	if err != nil {
		return nil, err
	}
	for i, yes := range found {
		if yes {
			unravel(to[:x.Rank()], i, x.Shape())
			to = to[x.Rank():]
		}
	}
	return out, nil
}

// unravel is the index of the i-th element.
func unravel(index []int64, i int, shape []int) {
	for dim := len(shape) - 1; dim >= 0; dim-- {
		index[dim] = int64(i % shape[dim])
		i /= shape[dim]
	}
}

// same reports whether two tensors have the same shape and numbers; their dtypes
// may differ.
func same(c *call) (Value, error) {
	x, y := c.tensor(0), c.tensor(1)
	if !slices.Equal(x.Shape(), y.Shape()) {
		return false, nil
	}
	d := computed(promote(x.DType(), y.DType()))
	x, err := c.cast(x, d)
	if err != nil {
		return nil, err
	}
	if y, err = c.cast(y, d); err != nil {
		return nil, err
	}
	out, err := c.compare(opEq, x, y)
	if err != nil {
		return nil, err
	}
	return c.every(out)
}

func sameDType(x, y *tensor.Tensor) error {
	if x.DType() != y.DType() {
		return fault("expected scalar type %s but found %s", torchNames[x.DType()], torchNames[y.DType()])
	}
	return nil
}

// every reports whether all bools are true.
func (c *call) every(t *tensor.Tensor) (Value, error) {
	all, err := elements[bool](c, t)
	if err != nil {
		return nil, err
	}
	return !slices.Contains(all, false), nil
}

// allClose reports whether each number of self is within atol + rtol*|other| of
// that of other.
func allClose(c *call) (Value, error) {
	x, y := c.tensor(0), c.tensor(1)
	if x.DType() != y.DType() {
		return nil, fault("%s did not match %s", torchNames[x.DType()], torchNames[y.DType()])
	}
	rtol, atol, nans := c.float(2), c.float(3), c.bool(4)
	if !(rtol >= 0) || !(atol >= 0) {
		return nil, fault("rtol and atol must be greater than or equal to zero, but got %v and %v", rtol, atol)
	}
	x, err := c.cast(x, tensor.C128)
	if err != nil {
		return nil, err
	}
	if y, err = c.cast(y, tensor.C128); err != nil {
		return nil, err
	}
	out, err := combineTensors(c, opEq, x, y, func(_ opcode, out []bool, x, y []complex128) {
		for i := range out {
			out[i] = near(x[i], y[i], rtol, atol) || nans && cmplx.IsNaN(x[i]) && cmplx.IsNaN(y[i])
		}
	})
	if err != nil {
		return nil, err
	}
	return c.every(out)
}

func near(x, y complex128, rtol, atol float64) bool {
	away := cmplx.Abs(x - y)
	return x == y || !math.IsInf(away, 0) && away <= atol+rtol*cmplx.Abs(y)
}
