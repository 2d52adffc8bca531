package ops

import (
	"context"
	"math"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// SoftmaxBackward returns the gradient of x for out, the softmax of x along dimension dim, given
// grad, the gradient of out: out·(grad - s), where s is the sum of grad·out along dim. The result is
// a new contiguous tensor. A negative dim counts from the last dimension.
//
// grad and out must have the same shape and the same dtype, F32 or F64. The error is a *ValueError
// if they do not or if dim does not exist, a *LimitError, the error of ctx, or one of package
// tensor.
func (e *Engine) SoftmaxBackward(ctx context.Context, grad, out *tensor.Tensor,
	dim int) (*tensor.Tensor, error) {
	size, step, err := softmaxLines(out, dim)
	if err != nil {
		return nil, err
	}
	if !onHost(grad) {
		return e.deviceSoftmaxBackward(ctx, "softmax", grad, out, dim)
	}
	return e.backward(ctx, "softmax", grad, out,
		func(to, grad, out []float32) { softmaxGradients(to, grad, out, size, step) },
		func(to, grad, out []float64) { softmaxGradients(to, grad, out, size, step) })
}

// LogSoftmaxBackward returns the gradient of x for out, the logarithm of the softmax of x along
// dimension dim, given grad, the gradient of out: grad - exp(out)·s, where s is the sum of grad
// along dim. The result is a new contiguous tensor. Arguments and errors are those of
// SoftmaxBackward.
func (e *Engine) LogSoftmaxBackward(ctx context.Context, grad, out *tensor.Tensor,
	dim int) (*tensor.Tensor, error) {
	size, step, err := softmaxLines(out, dim)
	if err != nil {
		return nil, err
	}
	if !onHost(grad) {
		return e.deviceSoftmaxBackward(ctx, "log_softmax", grad, out, dim)
	}
	return e.backward(ctx, "log_softmax", grad, out,
		func(to, grad, out []float32) { logSoftmaxGradients(to, grad, out, size, step) },
		func(to, grad, out []float64) { logSoftmaxGradients(to, grad, out, size, step) })
}

// softmaxLines returns the size of dimension dim of t, and the distance between neighbours in that
// dimension if t is contiguous. The error is that of wrapDim.
func softmaxLines(t *tensor.Tensor, dim int) (size, step int, err error) {
	if dim, err = wrapDim(dim, t.Rank()); err != nil {
		return 0, 0, err
	}
	size, step = 1, 1
	if t.Rank() == 0 {
		return size, step, nil
	}
	for _, n := range t.Shape()[dim+1:] {
		step *= n
	}
	return t.Shape()[dim], step, nil
}

// softmaxGradients computes the gradient of softmax for contiguous tensors, each a sequence of lines
// of size elements that are step apart. Sums are computed in float64.
func softmaxGradients[T floatNum](to, grad, out []T, size, step int) {
	for block := 0; block < len(to); block += size * step {
		for first := block; first < block+step; first++ {
			sum := 0.0
			for i, at := 0, first; i < size; i, at = i+1, at+step {
				sum += float64(grad[at]) * float64(out[at])
			}
			for i, at := 0, first; i < size; i, at = i+1, at+step {
				to[at] = T(float64(out[at]) * (float64(grad[at]) - sum))
			}
		}
	}
}

// logSoftmaxGradients computes the gradient of the logarithm of softmax, as softmaxGradients does.
func logSoftmaxGradients[T floatNum](to, grad, out []T, size, step int) {
	for block := 0; block < len(to); block += size * step {
		for first := block; first < block+step; first++ {
			sum := 0.0
			for i, at := 0, first; i < size; i, at = i+1, at+step {
				sum += float64(grad[at])
			}
			for i, at := 0, first; i < size; i, at = i+1, at+step {
				to[at] = T(float64(grad[at]) - math.Exp(float64(out[at]))*sum)
			}
		}
	}
}
