package ops

import (
	"context"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// deviceMap returns f of each element of x, which is on a device, as a new tensor.
func (e *Engine) deviceMap(ctx context.Context, f Function, x *tensor.Tensor) (*tensor.Tensor, error) {
	k, err := e.kernelsOf(x, nil)
	if err != nil {
		return nil, err
	}
	out, err := e.deviceEmpty(ctx, k, x, x.Shape())
	if err != nil {
		return nil, err
	}
	return out, k.Map(ctx, f, out, x)
}

// deviceReluBackward is ReluBackward on a device.
func (e *Engine) deviceReluBackward(ctx context.Context, grad, out *tensor.Tensor) (*tensor.Tensor, error) {
	if err := checkGrad("relu", grad, out); err != nil {
		return nil, err
	}
	k, err := e.kernelsOf(grad, out)
	if err != nil {
		return nil, err
	}
	to, err := e.deviceEmpty(ctx, k, out, out.Shape())
	if err != nil {
		return nil, err
	}
	return to, k.ReluBackward(ctx, to, grad, out)
}

// deviceSigmoidalBackward is TanhBackward or SigmoidBackward on a device: grad - grad·out² or
// grad·out - grad·out².
func (e *Engine) deviceSigmoidalBackward(ctx context.Context, name string, grad, out *tensor.Tensor) (*tensor.Tensor, error) {
	if err := checkGrad(name, grad, out); err != nil {
		return nil, err
	}
	product, err := e.Mul(ctx, grad, out)
	if err != nil {
		return nil, err
	}
	square, err := e.Mul(ctx, product, out)
	if err != nil {
		return nil, err
	}
	if name == "sigmoid" {
		grad = product
	}
	return e.Sub(ctx, grad, square, Int(1))
}

// deviceMaxDim is MaxDim on a device.
func (e *Engine) deviceMaxDim(ctx context.Context, x *tensor.Tensor, dim int, keep bool) (values, indices *tensor.Tensor, err error) {
	k, err := e.kernelsOf(x, nil)
	if err != nil {
		return nil, nil, err
	}
	if dim, err = wrapDim(dim, x.Rank()); err != nil {
		return nil, nil, err
	}
	if x.Rank() == 0 {
		if x, err = x.Unsqueeze(0); err != nil {
			return nil, nil, err
		}
		keep = false
	}
	if x.Shape()[dim] == 0 {
		return nil, nil, errNoExtreme
	}
	shape := slices.Clone(x.Shape())
	shape[dim] = 1
	if err := e.checkSize(tensor.I64, shape); err != nil {
		return nil, nil, err
	}
	if indices, err = k.Alloc(ctx, x.Device(), tensor.I64, shape...); err != nil {
		return nil, nil, err
	}
	if err := k.ArgMax(ctx, indices, x, dim); err != nil {
		return nil, nil, err
	}
	if values, err = e.deviceTake(ctx, k, x, indices, dim, -1); err != nil || keep {
		return values, indices, err
	}
	if values, err = values.Select(dim, 0); err != nil {
		return nil, nil, err
	}
	indices, err = indices.Select(dim, 0)
	return values, indices, err
}

// deviceTake returns the result of Kernels.Take as a new tensor.
func (e *Engine) deviceTake(ctx context.Context, k Kernels, x, indices *tensor.Tensor, dim int, ignored int64) (*tensor.Tensor, error) {
	out, err := e.deviceEmpty(ctx, k, x, indices.Shape())
	if err != nil {
		return nil, err
	}
	return out, k.Take(ctx, out, x, indices, dim, ignored)
}

// deviceSoftmax is Softmax, or LogSoftmax if logarithm is true, on a device. dim counts from 0.
func (e *Engine) deviceSoftmax(ctx context.Context, x *tensor.Tensor, dim int, logarithm bool) (*tensor.Tensor, error) {
	if x.Rank() == 0 {
		line, err := x.Unsqueeze(0)
		if err != nil {
			return nil, err
		}
		if line, err = e.deviceSoftmax(ctx, line, 0, logarithm); err != nil {
			return nil, err
		}
		return line.Select(0, 0)
	}
	if x.Len() == 0 {
		return e.deviceMap(ctx, FunctionExp, x)
	}
	top, _, err := e.deviceMaxDim(ctx, x, dim, true)
	if err != nil {
		return nil, err
	}
	shifted, err := e.Sub(ctx, x, top, Int(1))
	if err != nil {
		return nil, err
	}
	p, err := e.Exp(ctx, shifted)
	if err != nil {
		return nil, err
	}
	sum, err := e.Sum(ctx, p, []int{dim}, true, 0)
	if err != nil {
		return nil, err
	}
	if !logarithm {
		return p, e.DivInPlace(ctx, p, sum)
	}
	if sum, err = e.Log(ctx, sum); err != nil {
		return nil, err
	}
	return shifted, e.SubInPlace(ctx, shifted, sum, Int(1))
}

// deviceSoftmaxBackward is SoftmaxBackward, or LogSoftmaxBackward if that is the name, on a device.
func (e *Engine) deviceSoftmaxBackward(ctx context.Context, name string, grad, out *tensor.Tensor, dim int) (*tensor.Tensor, error) {
	if err := checkGrad(name, grad, out); err != nil {
		return nil, err
	}
	summed, p := grad, out
	var err error
	if name == "log_softmax" {
		p, err = e.Exp(ctx, out)
	} else {
		summed, err = e.Mul(ctx, grad, out)
	}
	if err != nil {
		return nil, err
	}
	sum, err := e.Sum(ctx, summed, []int{dim}, true, 0)
	if err != nil {
		return nil, err
	}
	if p, err = e.Mul(ctx, p, sum); err != nil {
		return nil, err
	}
	return e.Sub(ctx, summed, p, Int(1))
}
