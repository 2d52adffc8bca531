package ops

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// deviceTargets is the targets of a loss over classes on a device. The tensors have the shape of the
// input, but size 1 in the dimension of the classes.
type deviceTargets struct {
	kernels Kernels
	dim     int            // of the classes
	indices *tensor.Tensor // the targets
	weights *tensor.Tensor // of the targets, 0 for ignored ones
	ignored int64
}

// newDeviceTargets is newClassTargets on the device of x.
func (e *Engine) newDeviceTargets(ctx context.Context, x, target, weight *tensor.Tensor, o NLLOptions) (*deviceTargets, error) {
	if err := checkClassTargets(x, target, weight, o); err != nil {
		return nil, err
	}
	k, err := e.kernelsOf(x, target)
	if err != nil {
		return nil, err
	}
	t := &deviceTargets{kernels: k, dim: classDim(x), ignored: o.ignored()}
	if t.indices, err = target.Unsqueeze(t.dim); err != nil {
		return nil, err
	}
	if weight == nil {
		if weight, err = e.deviceNumber(ctx, k, x, Int(1)); err != nil {
			return nil, err
		}
	} else {
		if _, err := e.kernelsOf(x, weight); err != nil {
			return nil, err
		}
		for range x.Shape()[t.dim+1:] {
			if weight, err = weight.Unsqueeze(weight.Rank()); err != nil {
				return nil, err
			}
		}
	}
	if weight, err = weight.Expand(x.Shape()...); err != nil {
		return nil, err
	}
	t.weights, err = e.deviceTake(ctx, k, weight, t.indices, t.dim, t.ignored)
	return t, err
}

// deviceNLLLoss is NLLLoss on a device.
func (e *Engine) deviceNLLLoss(ctx context.Context, logp, target, weight *tensor.Tensor, o NLLOptions) (loss,
	totalWeight *tensor.Tensor, err error) {
	t, err := e.newDeviceTargets(ctx, logp, target, weight, o)
	if err != nil {
		return nil, nil, err
	}
	each, err := e.deviceTake(ctx, t.kernels, logp, t.indices, t.dim, t.ignored)
	if err != nil {
		return nil, nil, err
	}
	if err := e.MulInPlace(ctx, each, t.weights); err != nil {
		return nil, nil, err
	}
	if err := e.MulNumberInPlace(ctx, each, Int(-1)); err != nil {
		return nil, nil, err
	}
	if totalWeight, err = e.Sum(ctx, t.weights, nil, false, 0); err != nil {
		return nil, nil, err
	}
	if o.Reduction == ReductionNone {
		loss, err = each.Select(t.dim, 0)
		return loss, totalWeight, err
	}
	if loss, err = e.Sum(ctx, each, nil, false, 0); err == nil && o.Reduction == ReductionMean {
		err = e.DivInPlace(ctx, loss, totalWeight)
	}
	return loss, totalWeight, err
}

// gradients returns the gradients of the losses of single targets, times their weights. The arguments
// are those of newLossGradients.
func (t *deviceTargets) gradients(ctx context.Context, e *Engine, name string, grad, x, target *tensor.Tensor,
	r Reduction, totalWeight *tensor.Tensor) (*tensor.Tensor, error) {
	var err error
	if r == ReductionNone {
		if err := sameDType(x, grad); err != nil {
			return nil, err
		}
		if err := checkGradShape(name, grad, target.Shape()); err != nil {
			return nil, err
		}
		if grad, err = grad.Unsqueeze(t.dim); err != nil {
			return nil, err
		}
	} else if err := checkScalar("the gradient of "+name, grad, x); err != nil {
		return nil, err
	}
	if r == ReductionMean {
		if err := checkScalar("the total weight of "+name, totalWeight, x); err != nil {
			return nil, err
		}
		if grad, err = e.Div(ctx, grad, totalWeight); err != nil {
			return nil, err
		}
	}
	return e.Mul(ctx, t.weights, grad)
}

// put returns a new tensor of the shape of x with the elements of values at the targets, and otherwise
// zeros.
func (t *deviceTargets) put(ctx context.Context, e *Engine, x, values *tensor.Tensor) (*tensor.Tensor, error) {
	out, err := e.deviceEmpty(ctx, t.kernels, x, x.Shape())
	if err != nil {
		return nil, err
	}
	return out, t.kernels.Put(ctx, out, values, t.indices, t.dim)
}

// deviceNLLLossBackward is NLLLossBackward on a device.
func (e *Engine) deviceNLLLossBackward(ctx context.Context, grad, logp, target, weight *tensor.Tensor,
	o NLLOptions, totalWeight *tensor.Tensor) (*tensor.Tensor, error) {
	t, err := e.newDeviceTargets(ctx, logp, target, weight, o)
	if err != nil {
		return nil, err
	}
	g, err := t.gradients(ctx, e, "nll_loss", grad, logp, target, o.Reduction, totalWeight)
	if err != nil {
		return nil, err
	}
	if err := e.MulNumberInPlace(ctx, g, Int(-1)); err != nil {
		return nil, err
	}
	return t.put(ctx, e, logp, g)
}

// deviceCrossEntropy is CrossEntropy on a device.
func (e *Engine) deviceCrossEntropy(ctx context.Context, x, target, weight *tensor.Tensor, o NLLOptions) (loss,
	logSoftmax, totalWeight *tensor.Tensor, err error) {
	if err := checkClassTargets(x, target, weight, o); err != nil {
		return nil, nil, nil, err
	}
	if logSoftmax, err = e.deviceSoftmax(ctx, x, classDim(x), true); err != nil {
		return nil, nil, nil, err
	}
	loss, totalWeight, err = e.deviceNLLLoss(ctx, logSoftmax, target, weight, o)
	return loss, logSoftmax, totalWeight, err
}

// deviceCrossEntropyBackward is CrossEntropyBackward on a device. See crossEntropyBackward for the
// gradient.
func (e *Engine) deviceCrossEntropyBackward(ctx context.Context, grad, logSoftmax, target, weight *tensor.Tensor,
	o NLLOptions, totalWeight *tensor.Tensor) (*tensor.Tensor, error) {
	t, err := e.newDeviceTargets(ctx, logSoftmax, target, weight, o)
	if err != nil {
		return nil, err
	}
	g, err := t.gradients(ctx, e, "cross_entropy", grad, logSoftmax, target, o.Reduction, totalWeight)
	if err != nil {
		return nil, err
	}
	p, err := e.Exp(ctx, logSoftmax)
	if err != nil {
		return nil, err
	}
	if err := e.MulInPlace(ctx, p, g); err != nil {
		return nil, err
	}
	atTargets, err := t.put(ctx, e, logSoftmax, g)
	if err != nil {
		return nil, err
	}
	return p, e.SubInPlace(ctx, p, atTargets, Int(1))
}

// deviceMSELoss is MSELoss on a device.
func (e *Engine) deviceMSELoss(ctx context.Context, x, y *tensor.Tensor, r Reduction) (*tensor.Tensor, error) {
	d, err := e.Sub(ctx, x, y, Int(1))
	if err != nil {
		return nil, err
	}
	if err := e.MulInPlace(ctx, d, d); err != nil {
		return nil, err
	}
	switch r {
	case ReductionMean:
		return e.Mean(ctx, d, nil, false, 0)
	case ReductionSum:
		return e.Sum(ctx, d, nil, false, 0)
	}
	return d, nil
}

// deviceMSELossBackward is MSELossBackward on a device.
func (e *Engine) deviceMSELossBackward(ctx context.Context, grad, x, y *tensor.Tensor, r Reduction,
	needs [2]bool) (gx, gy *tensor.Tensor, err error) {
	d, err := e.Sub(ctx, x, y, Int(1))
	if err != nil {
		return nil, nil, err
	}
	if r == ReductionNone {
		err = checkGradShape("mse_loss", grad, d.Shape())
	} else {
		err = checkScalar("the gradient of mse_loss", grad, x)
	}
	if err != nil {
		return nil, nil, err
	}
	factor := 2.0
	if r == ReductionMean {
		factor /= float64(d.Len())
	}
	if err := e.MulNumberInPlace(ctx, d, Float(factor)); err != nil {
		return nil, nil, err
	}
	if err := e.MulInPlace(ctx, d, grad); err != nil {
		return nil, nil, err
	}
	if needs[0] {
		if gx, err = e.SumTo(ctx, d, x.Shape()...); err != nil {
			return nil, nil, err
		}
	}
	if needs[1] {
		if gy, err = e.SumTo(ctx, d, y.Shape()...); err != nil {
			return nil, nil, err
		}
		gy, err = e.Neg(ctx, gy)
	}
	return gx, gy, err
}
