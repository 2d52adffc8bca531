package autograd

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Apply runs an operator of the application with the name name on args, and returns its results.
// forward computes them; a result may be the data of an argument itself. backward computes the
// gradients of args, one for each, from those of the results; a gradient may be the zero Value, also
// for an argument that requires none. It is called without recording a graph: gradients of gradients
// are not supported. The memory of the gradients that it returns belongs to the pass, unless it is that
// of grads.
//
// The functions keep what they need in variables that both use. Results that are not floating point
// numbers require no gradient. The errors are *OpError with that name.
func Apply(ctx context.Context, name string, args []*Variable, forward func(ctx context.Context) ([]Value, error),
	backward func(ctx context.Context, grads []Value) ([]Value, error),
) ([]*Variable, error) {
	values, err := forward(ctx)
	if err != nil {
		return nil, opError(name, err)
	}
	n := newNode(ctx, name, args...)
	results := make([]*Variable, len(values))
	for i, v := range values {
		if v.IsZero() {
			return nil, opError(name, fmt.Errorf("%w: result %d is no tensor", ErrNoGradient, i))
		}
		x := New(v.Shared())
		for _, arg := range args {
			if v.sharesMemory(arg.value) {
				x.version, x.isView = arg.version, true
			}
		}
		if isFloat(v.DType()) {
			n.addResult(x)
		}
		results[i] = x
	}
	if n != nil {
		n.saves = true
		n.backward = func(ctx context.Context, grads, out []Value) error {
			all, err := backward(ctx, grads)
			if err == nil && len(all) != len(out) {
				err = fmt.Errorf("%w: the backward function returned %d gradients for %d arguments", ErrNoGradient, len(all), len(out))
			}
			copy(out, all)
			return err
		}
	}
	return results, nil
}

func isFloat(d tensor.DType) bool {
	return d == tensor.F16 || d == tensor.BF16 || d == tensor.F32 || d == tensor.F64
}
