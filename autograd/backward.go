package autograd

import (
	"context"
	"fmt"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// BackwardOption is an option of Backward.
type BackwardOption func(*backwardOptions)

type backwardOptions struct {
	retain bool
	grads  []Value
}

// RetainGraph keeps the tensors that the graph has saved, for another pass.
func RetainGraph() BackwardOption {
	return func(o *backwardOptions) { o.retain = true }
}

// WithGradients gives the gradients of the roots, one for each, of the same shapes. A root whose gradient
// is the zero Value, or without this option each root, must have one element, and the gradient 1. The
// memory of grads is read, and remains the caller's.
func WithGradients(grads ...Value) BackwardOption {
	return func(o *backwardOptions) { o.grads = append([]Value{}, grads...) }
}

// Backward computes the gradients of roots for all leaves that require one, and adds them to those of
// the leaves, see Variable.Grad. Roots may depend on each other, and occur more than once.
//
// The error is an *OpError with the name "backward" that matches ErrNoTensor, ErrNotRequired ErrNoGradient
// or ErrNotScalar, or is a *GradientError, if roots or their gradients are wrong; an *OpError with the name
// of the Node whose function failed, or which is released; or the cause of the end of ctx. After an
// error in a pass, some leaves may have their gradient.
func Backward(ctx context.Context, roots []*Variable, options ...BackwardOption) error {
	var o backwardOptions
	for _, f := range options {
		f(&o)
	}
	grads, err := rootGradients(ctx, roots, o.grads)
	if err != nil {
		return err
	}
	p := NewPass(o.retain, nil)
	for _, x := range roots {
		p.Add(x.Edge().Node)
	}
	for i, x := range roots {
		edge := x.Edge()
		all := make([]Value, edge.Node.outputs)
		all[edge.Output] = grads[i]
		if err := p.Feed(ctx, edge.Node, all...); err != nil {
			return err
		}
	}
	return p.Run(ctx)
}

// rootGradients returns the gradients of roots: those in given, or ones.
func rootGradients(ctx context.Context, roots []*Variable, given []Value) ([]Value, error) {
	if len(roots) == 0 {
		return nil, opError("backward", fmt.Errorf("%w: no tensors provided for gradient computation", ErrNoTensor))
	}
	if given != nil && len(given) != len(roots) {
		err := fmt.Errorf("%w: %d gradients for %d roots", ErrNoGradient, len(given), len(roots))
		return nil, opError("backward", err)
	}
	grads := make([]Value, len(roots))
	for i, x := range roots {
		switch {
		case x == nil:
			return nil, opError("backward", fmt.Errorf("%w: element %d of tensors is nil", ErrNoTensor, i))
		case !x.RequiresGrad():
			return nil, opError("backward", fmt.Errorf("element %d of tensors %w", i, ErrNotRequired))
		case given != nil && !given[i].IsZero():
			if !slices.Equal(given[i].Shape(), x.Shape()) {
				return nil, opError("backward", fmt.Errorf("the gradient of element %d: %w", i,
					&GradientError{Got: slices.Clone(given[i].Shape()), Want: slices.Clone(x.Shape())}))
			}
			grads[i] = given[i].Shared()
		default:
			g, err := Ones(ctx, x)
			if err != nil {
				return nil, err
			}
			grads[i] = g
		}
	}
	return grads, nil
}

// Ones returns the gradient of x, a Variable with one element, if it is a root. The error matches
// ErrNotScalar if x has no or more elements, or is sparse.
func Ones(ctx context.Context, x *Variable) (Value, error) {
	if x == nil {
		return Value{}, opError("backward", ErrNoTensor)
	}
	if n := x.value.dense; n == nil || n.Len() != 1 {
		return Value{}, opError("backward", fmt.Errorf("%w, not for %v", ErrNotScalar, x))
	}
	t, err := engineOf(ctx).FullOn(ctx, x.value.Device(), x.DType(), ops.Int(1), x.Shape()...)
	return Value{dense: t, unique: true}, opError("backward", err)
}

// addToLeaf adds grad to the gradient of x, a leaf that requires one.
func addToLeaf(ctx context.Context, x *Variable, grad Value) (err error) {
	l := x.accumulator()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grad, err = Accumulate(ctx, l.grad, grad)
	return err
}

// Accumulate returns the sum of old, a result of Accumulate or a zero Value, and grad. It keeps the
// memory of grad without a copy if nothing else holds it and it is contiguous, and otherwise copies
// it. It adds to old in place, unless old is sparse.
func Accumulate(ctx context.Context, old, grad Value) (Value, error) {
	switch {
	case grad.IsZero():
		return old, nil
	case !old.IsZero():
		return Owned(old).sum(ctx, grad.Shared())
	case grad.isMovable():
		return grad, nil
	}
	return grad.clone(ctx)
}
