package ops

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// NLLLoss returns the negative log likelihood loss of logp, the logarithms of the probabilities of
// classes: for each target t the loss is -weight[t]·logp[t]. logp has the shape [C] or [N, C, ...]
// and the dtype F32 or F64. target, of I64, has the shape of logp without C and has class indices.
// weight is nil, which stands for 1 for each class, or has the shape [C] and the dtype of logp.
//
// loss has no dimensions, or the shape of target for ReductionNone. totalWeight, without dimensions,
// is the sum of the weights of all targets that are counted, by which ReductionMean divides. Both
// are new tensors of the dtype of logp.
//
// The error is a *ValueError if a shape, a dtype, an option or a target is invalid, a *LimitError,
// the error of ctx, or one of package tensor. On devices, whose memory the host does not read, the loss
// of an invalid target is NaN instead.
func (e *Engine) NLLLoss(ctx context.Context, logp, target, weight *tensor.Tensor, o NLLOptions) (loss,
	totalWeight *tensor.Tensor, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if err := checkFloat("nll_loss", logp); err != nil {
		return nil, nil, err
	}
	if !onHost(logp) {
		return e.deviceNLLLoss(ctx, logp, target, weight, o)
	}
	if logp.DType() == tensor.F32 {
		return nllLoss[float32](e, logp, target, weight, o)
	}
	return nllLoss[float64](e, logp, target, weight, o)
}

// nllLoss is NLLLoss for the dtype of T.
func nllLoss[T floatNum](e *Engine, logp, target, weight *tensor.Tensor, o NLLOptions) (loss,
	totalWeight *tensor.Tensor, err error) {
	c, err := newClassTargets[T](e, logp, target, weight, o)
	if err != nil {
		return nil, nil, err
	}
	from, owner, err := packed[T](e, logp)
	if err != nil {
		return nil, nil, err
	}
	if loss, totalWeight, err = c.loss(e, from, target.Shape(), o.Reduction); err != nil {
		return nil, nil, err
	}
	keepAlive(owner, c.owners[0], c.owners[1])
	return loss, totalWeight, nil
}

// loss returns the losses of NLLLoss, given the elements of logp and the shape of the targets. The
// sums are computed in float64. The errors are those of newTensor.
func (c *classTargets[T]) loss(e *Engine, logp []T, shape []int, r Reduction) (loss,
	totalWeight *tensor.Tensor, err error) {
	var each []T
	if r == ReductionNone {
		if loss, each, err = newTensor[T](e, shape...); err != nil {
			return nil, nil, err
		}
		clear(each)
	}
	sum, total := 0.0, 0.0
	for k := range c.target {
		at, w, ok := c.at(k)
		if !ok {
			continue
		}
		v := -w * logp[at]
		if each != nil {
			each[k] = v
		}
		sum += float64(v)
		total += float64(w)
	}
	if r == ReductionMean {
		sum /= total
	}
	if loss == nil {
		if loss, err = scalar(e, T(sum)); err != nil {
			return nil, nil, err
		}
	}
	totalWeight, err = scalar(e, T(total))
	return loss, totalWeight, err
}

// NLLLossBackward returns the gradient of logp for a call of NLLLoss with these arguments, which
// returned totalWeight. grad is the gradient of the loss. The result is a new contiguous tensor of
// the shape of logp, whose elements it does not use. The errors are those of NLLLoss.
func (e *Engine) NLLLossBackward(ctx context.Context, grad, logp, target, weight *tensor.Tensor,
	o NLLOptions, totalWeight *tensor.Tensor) (*tensor.Tensor, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := checkFloat("nll_loss", logp); err != nil {
		return nil, err
	}
	if !onHost(logp) {
		return e.deviceNLLLossBackward(ctx, grad, logp, target, weight, o, totalWeight)
	}
	if logp.DType() == tensor.F32 {
		return nllLossBackward[float32](e, grad, logp, target, weight, o, totalWeight)
	}
	return nllLossBackward[float64](e, grad, logp, target, weight, o, totalWeight)
}

// nllLossBackward is NLLLossBackward for the dtype of T.
func nllLossBackward[T floatNum](e *Engine, grad, logp, target, weight *tensor.Tensor, o NLLOptions,
	totalWeight *tensor.Tensor) (*tensor.Tensor, error) {
	c, err := newClassTargets[T](e, logp, target, weight, o)
	if err != nil {
		return nil, err
	}
	g, err := newLossGradients[T](e, "nll_loss", grad, logp, target.Shape(), o.Reduction, totalWeight)
	if err != nil {
		return nil, err
	}
	out, to, err := newTensor[T](e, logp.Shape()...)
	if err != nil {
		return nil, err
	}
	clear(to)
	for k := range c.target {
		if at, w, ok := c.at(k); ok {
			to[at] = -w * g.at(k)
		}
	}
	keepAlive(g.owner, c.owners[0], c.owners[1])
	return out, nil
}

// lossGradients is the gradients of the losses of single targets.
type lossGradients[T floatNum] struct {
	each  []T // nil if all are the same
	all   T
	owner *tensor.Tensor // of each
}

// newLossGradients returns the gradients of the losses of targets of the given shape, from grad, the
// gradient of the loss of the operator name that has reduced them by r, and totalWeight, as NLLLoss
// returned it. x is the input, whose dtype is that of T. The error is a *ValueError if a shape or a
// dtype is wrong, a *LimitError, or one of package tensor.
func newLossGradients[T floatNum](e *Engine, name string, grad, x *tensor.Tensor, shape []int,
	r Reduction, totalWeight *tensor.Tensor) (g lossGradients[T], err error) {
	if err := sameDType(x, grad); err != nil {
		return g, err
	}
	if r == ReductionNone {
		if err := checkGradShape(name, grad, shape); err != nil {
			return g, err
		}
		g.each, g.owner, err = packed[T](e, grad)
		return g, err
	}
	if g.all, err = scalarValue[T]("the gradient of "+name, grad, x); err != nil || r == ReductionSum {
		return g, err
	}
	total, err := scalarValue[T]("the total weight of "+name, totalWeight, x)
	g.all /= total
	return g, err
}

// at returns the gradient of the loss of target k.
func (g *lossGradients[T]) at(k int) T {
	if g.each != nil {
		return g.each[k]
	}
	return g.all
}
