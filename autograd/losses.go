package autograd

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// NLLLoss returns the negative log likelihood of the classes target, I64 of shape [n], by logp, their
// logarithmic probabilities of shape [n, classes]. weight has one factor for each class, or is nil.
func NLLLoss(ctx context.Context, logp, target, weight *Variable, o ops.NLLOptions) (*Variable, error) {
	t, w, err := lossArguments("nll_loss", logp, target, weight)
	if err != nil {
		return nil, err
	}
	loss, total, err := engineOf(ctx).NLLLoss(ctx, logp.value.dense, t, w, o)
	if err != nil {
		return nil, opError("nll_loss", err)
	}
	n := newNode(ctx, "NllLossBackward0", logp)
	if n != nil {
		s, targets := n.save(logp), n.save(target)
		n.backward = func(ctx context.Context, grads, out []Value) error {
			v, err := s.get()
			if err != nil {
				return err
			}
			if _, err := targets.get(); err != nil {
				return err
			}
			out[0].dense, err = engineOf(ctx).NLLLossBackward(ctx, grads[0].dense, v.dense, t, w, o, total)
			return err
		}
	}
	return result(loss, n), nil
}

// CrossEntropy returns NLLLoss of LogSoftmax of x, along dimension 1.
func CrossEntropy(ctx context.Context, x, target, weight *Variable, o ops.NLLOptions) (*Variable, error) {
	t, w, err := lossArguments("cross_entropy", x, target, weight)
	if err != nil {
		return nil, err
	}
	loss, logp, total, err := engineOf(ctx).CrossEntropy(ctx, x.value.dense, t, w, o)
	if err != nil {
		return nil, opError("cross_entropy", err)
	}
	n := newNode(ctx, "NllLossBackward0", x)
	if n != nil {
		targets := n.save(target)
		n.backward = func(ctx context.Context, grads, out []Value) (err error) {
			if _, err := targets.get(); err != nil {
				return err
			}
			out[0].dense, err = engineOf(ctx).CrossEntropyBackward(ctx, grads[0].dense, logp, t, w, o, total)
			return err
		}
	}
	return result(loss, n), nil
}

// lossArguments returns the tensors of target and weight, which may be nil.
func lossArguments(op string, x, target, weight *Variable) (t, w *tensor.Tensor, err error) {
	if err := dense(op, x, target); err != nil {
		return nil, nil, err
	}
	if weight != nil {
		if err := dense(op, weight); err != nil {
			return nil, nil, err
		}
		w = weight.value.dense
	}
	return target.value.dense, w, nil
}

// MSELoss returns the squared differences of the elements of x and y, with broadcasting: their mean,
// their sum, or each, as r says.
func MSELoss(ctx context.Context, x, y *Variable, r ops.Reduction) (*Variable, error) {
	if err := dense("mse_loss", x, y); err != nil {
		return nil, err
	}
	t, err := engineOf(ctx).MSELoss(ctx, x.value.dense, y.value.dense, r)
	if err != nil {
		return nil, opError("mse_loss", err)
	}
	n := newNode(ctx, "MseLossBackward0", x, y)
	if n != nil {
		xs, ys := n.save(x), n.save(y)
		n.backward = func(ctx context.Context, grads, out []Value) error {
			xv, err := xs.get()
			if err != nil {
				return err
			}
			yv, err := ys.get()
			if err != nil {
				return err
			}
			needs := [2]bool{n.needs(0), n.needs(1)}
			out[0].dense, out[1].dense, err = engineOf(ctx).MSELossBackward(ctx, grads[0].dense, xv.dense, yv.dense, r, needs)
			return err
		}
	}
	return result(t, n), nil
}
