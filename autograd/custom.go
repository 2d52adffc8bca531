package autograd

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Apply runs an operator of the application with the name name on args, none of which is nil, and
// returns its results. forward computes them; a result may be the data of an argument itself, or share
// its memory.
//
// backward computes the gradients of args, one for each, from those of the results: each is a tensor,
// which is zero if nothing depends on that result, or the zero Value if the result is not of floating
// point numbers, which therefore requires no gradient. It must neither change nor keep their memory, but
// may return it. A gradient that it returns may be the zero Value, also for an argument that requires
// none. A leaf copies a gradient that is not made by Owned, unless it has the memory of one of grads.
//
// Neither function records a graph, so that each operator can be differentiated once. Variables that both
// use keep the data that backward needs; a pass that does not retain the graph drops backward and these.
//
// The errors of forward, and in a pass those of backward, are returned as *OpError with that name. Others
// match ErrNoFunction if a function is nil, ErrNoTensor for an argument or a result that is none, and in a
// pass ErrNoGradient for a wrong number of gradients, or are a *GradientError.
func Apply(ctx context.Context, name string, args []*Variable,
	forward func(ctx context.Context) ([]Value, error),
	backward func(ctx context.Context, grads []Value) ([]Value, error),
) ([]*Variable, error) {
	if forward == nil || backward == nil {
		return nil, opError(name, ErrNoFunction)
	}
	if err := present(name, args...); err != nil {
		return nil, err
	}
	values, err := forward(NoGrad(ctx))
	if err != nil {
		return nil, opError(name, err)
	}
	for i, v := range values {
		if v.IsZero() {
			return nil, opError(name, fmt.Errorf("%w: result %d is nil", ErrNoTensor, i))
		}
	}
	n := newNode(ctx, name, args...)
	results := make([]*Variable, len(values))
	numbers := make([]int, 0, len(values)) // of the results that have gradients
	for i, v := range values {
		x := New(v.Shared())
		for _, other := range append(args[:len(args):len(args)], results[:i]...) {
			if v.sharesMemory(other.value) {
				x.version, x.isView = other.version, true
				x.version.viewed.Store(true)
			}
		}
		if isFloat(v.DType()) {
			n.addResult(x)
			numbers = append(numbers, i)
		}
		results[i] = x
	}
	if n != nil {
		n.saves, n.takesSparse, n.isCustom = true, true, true
		n.backward = customBackward(len(values), numbers, backward)
	}
	return results, nil
}

// customBackward returns the backward function of an operator of the application with that number of
// results, of which those with the given numbers have gradients.
func customBackward(results int, numbers []int,
	backward func(ctx context.Context, grads []Value) ([]Value, error),
) backwardFunc {
	return func(ctx context.Context, grads, out []Value) error {
		all := make([]Value, results)
		for i, number := range numbers {
			all[number] = grads[i].Shared()
		}
		all, err := backward(ctx, all)
		if err == nil && len(all) != len(out) {
			err = fmt.Errorf("%w: the function returned an incorrect number of gradients (expected %d, got %d)",
				ErrNoGradient, len(out), len(all))
		}
		copy(out, all)
		return err
	}
}

// isFloat reports whether d is a type of floating point numbers.
func isFloat(d tensor.DType) bool {
	return d == tensor.F16 || d == tensor.BF16 || d == tensor.F32 || d == tensor.F64
}
