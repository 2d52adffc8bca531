package ops

import (
	"context"
	"math"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// CrossEntropy returns the loss that NLLLoss gives for the logarithm of the softmax of x along the
// dimension of the classes. x has the shape [C] or [N, C, ...] and the dtype F32 or F64; the other
// arguments and results are those of NLLLoss. logSoftmax, a new contiguous tensor of the shape of x,
// is the logarithm of the softmax, for CrossEntropyBackward. The errors are those of NLLLoss.
func (e *Engine) CrossEntropy(ctx context.Context, x, target, weight *tensor.Tensor, o NLLOptions) (loss,
	logSoftmax, totalWeight *tensor.Tensor, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, nil, err
	}
	if err := checkFloat("cross_entropy", x); err != nil {
		return nil, nil, nil, err
	}
	if !onHost(x) {
		return e.deviceCrossEntropy(ctx, x, target, weight, o)
	}
	if x.DType() == tensor.F32 {
		return crossEntropy[float32](e, x, target, weight, o)
	}
	return crossEntropy[float64](e, x, target, weight, o)
}

// crossEntropy is CrossEntropy for the dtype of T.
func crossEntropy[T floatNum](e *Engine, x, target, weight *tensor.Tensor, o NLLOptions) (loss,
	logSoftmax, totalWeight *tensor.Tensor, err error) {
	c, err := newClassTargets[T](e, x, target, weight, o)
	if err != nil {
		return nil, nil, nil, err
	}
	from, owner, err := packed[T](e, x)
	if err != nil {
		return nil, nil, nil, err
	}
	logSoftmax, to, err := newTensor[T](e, x.Shape()...)
	if err != nil {
		return nil, nil, nil, err
	}
	logSoftmaxLines(to, from, c.classes, c.inner)
	if loss, totalWeight, err = c.loss(e, to, target.Shape(), o.Reduction); err != nil {
		return nil, nil, nil, err
	}
	keepAlive(owner, logSoftmax, c.owners[0], c.owners[1])
	return loss, logSoftmax, totalWeight, nil
}

// logSoftmaxLines sets to to the logarithm of the softmax of x. Both are sequences of lines of size
// elements that are step apart. To avoid overflow the maximum of a line is subtracted before
// exponentials are computed. NaN and two infinities in a line give NaN.
func logSoftmaxLines[T floatNum](to, x []T, size, step int) {
	for block := 0; block < len(to); block += size * step {
		for first := block; first < block+step; first++ {
			top := math.Inf(-1)
			for i, at := 0, first; i < size; i, at = i+1, at+step {
				top = max(top, float64(x[at]))
			}
			sum := 0.0
			for i, at := 0, first; i < size; i, at = i+1, at+step {
				sum += math.Exp(float64(x[at]) - top)
			}
			logSum := top + math.Log(sum)
			for i, at := 0, first; i < size; i, at = i+1, at+step {
				to[at] = T(float64(x[at]) - logSum)
			}
		}
	}
}

// CrossEntropyBackward returns the gradient of x for a call of CrossEntropy with these arguments,
// which returned logSoftmax and totalWeight. grad is the gradient of the loss. The result is a new
// contiguous tensor of the shape of x. The errors are those of NLLLoss.
func (e *Engine) CrossEntropyBackward(ctx context.Context, grad, logSoftmax, target,
	weight *tensor.Tensor, o NLLOptions, totalWeight *tensor.Tensor) (*tensor.Tensor, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := checkFloat("cross_entropy", logSoftmax); err != nil {
		return nil, err
	}
	if !onHost(logSoftmax) {
		return e.deviceCrossEntropyBackward(ctx, grad, logSoftmax, target, weight, o, totalWeight)
	}
	if logSoftmax.DType() == tensor.F32 {
		return crossEntropyBackward[float32](e, grad, logSoftmax, target, weight, o, totalWeight)
	}
	return crossEntropyBackward[float64](e, grad, logSoftmax, target, weight, o, totalWeight)
}

// crossEntropyBackward is CrossEntropyBackward for the dtype of T. The gradient of a target's class
// is (p-1)·f and that of another class p·f, where p is the probability of the class and f the weight
// of the target times the gradient of its loss.
func crossEntropyBackward[T floatNum](e *Engine, grad, logSoftmax, target, weight *tensor.Tensor,
	o NLLOptions, totalWeight *tensor.Tensor) (*tensor.Tensor, error) {
	c, err := newClassTargets[T](e, logSoftmax, target, weight, o)
	if err != nil {
		return nil, err
	}
	g, err := newLossGradients[T](e, "cross_entropy", grad, logSoftmax, target.Shape(), o.Reduction, totalWeight)
	if err != nil {
		return nil, err
	}
	from, owner, err := packed[T](e, logSoftmax)
	if err != nil {
		return nil, err
	}
	out, to, err := newTensor[T](e, logSoftmax.Shape()...)
	if err != nil {
		return nil, err
	}
	for k := range c.target {
		position, w, ok := c.at(k)
		factor := float64(w) * float64(g.at(k))
		at := k/c.inner*c.classes*c.inner + k%c.inner
		for range c.classes {
			switch {
			case !ok:
				to[at] = 0
			case at == position:
				to[at] = T(math.Expm1(float64(from[at])) * factor)
			default:
				to[at] = T(math.Exp(float64(from[at])) * factor)
			}
			at += c.inner
		}
	}
	keepAlive(owner, g.owner, c.owners[0], c.owners[1])
	return out, nil
}
