package ops

import (
	"context"
	"math"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Softmax returns exp(v) divided by the sum of exp(v) along dimension dim, for each element v of x,
// as a new contiguous tensor of the shape of x. A negative dim counts from the last dimension. The
// error is a *ValueError if the dtype is not floating point or the dimension does not exist, a
// *LimitError, or an error of package tensor.
func (e *Engine) Softmax(ctx context.Context, x *tensor.Tensor, dim int) (*tensor.Tensor, error) {
	return e.softmax(ctx, x, dim, false)
}

// LogSoftmax returns the logarithms of the results of Softmax, with its errors.
func (e *Engine) LogSoftmax(ctx context.Context, x *tensor.Tensor, dim int) (*tensor.Tensor, error) {
	return e.softmax(ctx, x, dim, true)
}

// softmax is Softmax, or LogSoftmax if logarithm is true.
func (e *Engine) softmax(ctx context.Context, x *tensor.Tensor, dim int, logarithm bool) (*tensor.Tensor, error) {
	d := x.DType()
	if !isFloat(d) {
		return nil, valueErrorf("softmax is not implemented for '%s'", torchNames[d])
	}
	dim, err := wrapDim(dim, x.Rank())
	if err != nil {
		return nil, err
	}
	if !onHost(x) {
		return e.deviceSoftmax(ctx, x, dim, logarithm)
	}
	if x, err = e.computable(x, d); err != nil {
		return nil, err
	}
	last := x.Rank() - 1
	moved := last > 0 && dim != last
	if moved {
		if x, err = x.Transpose(dim, last); err != nil {
			return nil, err
		}
	}
	if x.DType() == tensor.F32 {
		x, err = softmaxTensor[float32](e, x, logarithm)
	} else {
		x, err = softmaxTensor[float64](e, x, logarithm)
	}
	if err != nil {
		return nil, err
	}
	if moved {
		if x, err = x.Transpose(dim, last); err != nil {
			return nil, err
		}
		if x, err = e.contiguous(x); err != nil {
			return nil, err
		}
	}
	return e.cast(x, d)
}

// softmaxTensor returns a new tensor with the softmax of x along its last dimension, or the
// logarithm of it if logarithm is true. T must be the Go type of the dtype of x. The error is a
// *LimitError or an error of package tensor.
func softmaxTensor[T floatNum](e *Engine, x *tensor.Tensor, logarithm bool) (*tensor.Tensor, error) {
	n := 1
	if rank := x.Rank(); rank > 0 {
		n = x.Shape()[rank-1]
	}
	return mapped(e, x, func(out, x []T) {
		for at := 0; at < len(out); at += n {
			softmaxRow(out[at:at+n], x[at:at+n], logarithm)
		}
	})
}

// softmaxRow sets out to the softmax of row, or to its logarithm if logarithm is true. row must not
// be empty, and out must be as long. To avoid overflow it subtracts the maximum of row before it
// computes exponentials.
func softmaxRow[T floatNum](out, row []T, logarithm bool) {
	top := float64(row[argMax(row)])
	sum := 0.0
	if logarithm {
		for _, v := range row {
			sum += math.Exp(float64(v) - top)
		}
		logSum := top + math.Log(sum)
		for i, v := range row {
			out[i] = T(float64(v) - logSum)
		}
		return
	}
	for i, v := range row {
		p := math.Exp(float64(v) - top)
		sum += p
		out[i] = T(p)
	}
	for i, p := range out {
		out[i] = T(float64(p) / sum)
	}
}
