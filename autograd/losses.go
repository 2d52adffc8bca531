package autograd

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// NLLLoss returns the negative log likelihood of the classes target by logp, their logarithmic
// probabilities of shape [classes] or [n, classes, ...]. target is I64, and has that shape without the
// dimension of the classes. weight has one factor for each class and the dtype of logp, or is nil; it gets
// no gradient. The result is a new tensor without dimensions, or of the shape of target for
// ops.ReductionNone.
func NLLLoss(ctx context.Context, logp, target, weight *Variable, o ops.NLLOptions) (*Variable, error) {
	t, w, err := lossArguments("nll_loss", logp, target, weight)
	if err != nil {
		return nil, err
	}
	loss, total, err := engineOf(ctx).NLLLoss(ctx, logp.value.dense, t, w, o)
	if err != nil {
		return nil, opError("nll_loss", err)
	}
	n := newNode(ctx, lossName(logp), logp)
	if n != nil {
		all := n.saveAll(logp, target, weight)
		n.backward = func(ctx context.Context, grads, out []Value) error {
			err := checkSaved(all)
			if err == nil {
				out[0].dense, err = engineOf(ctx).NLLLossBackward(ctx, grads[0].dense, all[0].value.dense, t, w, o, total)
			}
			return err
		}
	}
	return result(loss, n), nil
}

// lossName returns the name of the node of a loss for logarithmic probabilities x.
func lossName(x *Variable) string {
	if len(x.Shape()) > 2 {
		return "NllLoss2DBackward0"
	}
	return "NllLossBackward0"
}

// CrossEntropy returns NLLLoss of LogSoftmax of x along the dimension of the classes.
func CrossEntropy(ctx context.Context, x, target, weight *Variable, o ops.NLLOptions) (*Variable, error) {
	t, w, err := lossArguments("cross_entropy", x, target, weight)
	if err != nil {
		return nil, err
	}
	loss, logp, total, err := engineOf(ctx).CrossEntropy(ctx, x.value.dense, t, w, o)
	if err != nil {
		return nil, opError("cross_entropy", err)
	}
	n := newNode(ctx, lossName(x), x)
	if n != nil {
		all := n.saveAll(target, weight)
		n.backward = func(ctx context.Context, grads, out []Value) error {
			err := checkSaved(all)
			if err == nil {
				out[0].dense, err = engineOf(ctx).CrossEntropyBackward(ctx, grads[0].dense, logp, t, w, o, total)
			}
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
	if w, err = optional(op, weight); err != nil {
		return nil, nil, err
	}
	return target.value.dense, w, nil
}

// MSELoss returns the squared differences of the elements of x and y, which are dense, with broadcasting:
// their mean or their sum, a new tensor without dimensions, or a new tensor of all for ops.ReductionNone.
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
			x, err := xs.getDense()
			if err != nil {
				return err
			}
			y, err := ys.getDense()
			if err != nil {
				return err
			}
			needs := [2]bool{n.needs(0), n.needs(1)}
			out[0].dense, out[1].dense, err = engineOf(ctx).MSELossBackward(ctx, grads[0].dense, x, y, r, needs)
			return err
		}
	}
	return result(t, n), nil
}
