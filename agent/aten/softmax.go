package aten

import (
	"math"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// softmax is a kernel of exp(x) as a share of their sum, or of its logarithm.
func softmax(logarithm bool) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		x := c.tensor(0)
		d, err := c.dtype(2, x.DType())
		if err != nil {
			return nil, err
		}
		if !isFloat(d) {
			return nil, fault("softmax is not implemented for '%s'", torchNames[d])
		}
		dim, err := c.dim(1, x.Rank())
		if err != nil {
			return nil, err
		}
		if x, err = c.operand(x, d); err != nil {
			return nil, err
		}
		last := x.Rank() - 1
		if last > 0 {
			if x, err = x.Transpose(dim, last); err != nil {
				return nil, err
			}
		}
		if x, err = c.softmaxRows(x, logarithm); err != nil {
			return nil, err
		}
		if last > 0 {
			if x, err = x.Transpose(dim, last); err != nil {
				return nil, err
			}
		}
		if x, err = c.contiguous(x); err != nil {
			return nil, err
		}
		return c.cast(x, d)
	})
}

// softmaxRows goes along the last dimension.
func (c *call) softmaxRows(x *tensor.Tensor, logarithm bool) (*tensor.Tensor, error) {
	if x.DType() == tensor.F32 {
		return shares[float32](c, x, logarithm)
	}
	return shares[float64](c, x, logarithm)
}

func shares[T floatNum](c *call, x *tensor.Tensor, logarithm bool) (*tensor.Tensor, error) {
	out, to, err := fresh[T](c, x.Shape()...)
	if err != nil {
		return nil, err
	}
	from, err := elements[T](c, x)
	if err != nil {
		return nil, err
	}
	n := 1
	if rank := x.Rank(); rank > 0 {
		n = x.Shape()[rank-1]
	}
	for at := 0; at < len(to); at += n {
		shareRow(to[at:at+n], from[at:at+n], logarithm)
	}
	return out, nil
}

// shareRow takes the largest off first, so that nothing overflows.
func shareRow[T floatNum](out, row []T, logarithm bool) {
	top := float64(row[largest(row)])
	sum := 0.0
	for _, v := range row {
		sum += math.Exp(float64(v) - top)
	}
	shift := top + math.Log(sum)
	for i, v := range row {
		if logarithm {
			out[i] = T(float64(v) - shift)
		} else {
			out[i] = T(math.Exp(float64(v)-top) / sum)
		}
	}
}
