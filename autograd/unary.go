package autograd

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

type (
	unaryFunc     func(e *ops.Engine, ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error)
	unaryBackward func(e *ops.Engine, ctx context.Context, grad, saved *tensor.Tensor) (*tensor.Tensor, error)
)

// The tensor that the backward function of an operator on one tensor needs.
const (
	savesNothing = iota
	savesArgument
	savesResult
)

// unary returns the result of f for x. backward gets the gradient of the result and what saves
// selects.
func unary(ctx context.Context, op, name string, x *Variable, saves int, f unaryFunc,
	backward unaryBackward,
) (*Variable, error) {
	if err := dense(op, x); err != nil {
		return nil, err
	}
	t, err := f(engineOf(ctx), ctx, x.value.dense)
	if err != nil {
		return nil, opError(op, err)
	}
	n := newNode(ctx, name, x)
	r := result(t, n)
	if n == nil {
		return r, nil
	}
	var s saved
	switch saves {
	case savesArgument:
		s = n.save(x)
	case savesResult:
		s = n.save(r)
	}
	n.backward = func(ctx context.Context, grads, out []Value) error {
		t, err := s.getDense()
		if err == nil {
			out[0].dense, err = backward(engineOf(ctx), ctx, grads[0].dense, t)
		}
		return err
	}
	return r, nil
}

// Neg returns -x in new memory. x may be sparse.
func Neg(ctx context.Context, x *Variable) (*Variable, error) {
	if x != nil && x.value.sparse != nil {
		s, err := engineOf(ctx).NegSparse(ctx, x.value.sparse)
		if err != nil {
			return nil, opError("neg", err)
		}
		return sparseResult(ctx, "NegBackward0", s, x, -1), nil
	}
	return unary(ctx, "neg", "NegBackward0", x, savesNothing, (*ops.Engine).Neg,
		func(e *ops.Engine, ctx context.Context, grad, _ *tensor.Tensor) (*tensor.Tensor, error) {
			return e.Neg(ctx, grad)
		})
}

// Exp returns e to the power of each element of x, which is dense, in new memory. Like the other functions
// of each element it takes floating point numbers and integers, which give F32.
func Exp(ctx context.Context, x *Variable) (*Variable, error) {
	return unary(ctx, "exp", "ExpBackward0", x, savesResult, (*ops.Engine).Exp, (*ops.Engine).Mul)
}

// Log returns the natural logarithm of each element of x.
func Log(ctx context.Context, x *Variable) (*Variable, error) {
	return unary(ctx, "log", "LogBackward0", x, savesArgument, (*ops.Engine).Log,
		func(e *ops.Engine, ctx context.Context, grad, x *tensor.Tensor) (*tensor.Tensor, error) {
			return e.Div(ctx, grad, x)
		})
}

// Sqrt returns the square root of each element of x.
func Sqrt(ctx context.Context, x *Variable) (*Variable, error) {
	return unary(ctx, "sqrt", "SqrtBackward0", x, savesResult, (*ops.Engine).Sqrt, (*ops.Engine).SqrtBackward)
}

// Sin returns the sine of each element of x.
func Sin(ctx context.Context, x *Variable) (*Variable, error) {
	return unary(ctx, "sin", "SinBackward0", x, savesArgument, (*ops.Engine).Sin,
		func(e *ops.Engine, ctx context.Context, grad, x *tensor.Tensor) (*tensor.Tensor, error) {
			c, err := e.Cos(ctx, x)
			if err != nil {
				return nil, err
			}
			return e.Mul(ctx, grad, c)
		})
}

// Cos returns the cosine of each element of x.
func Cos(ctx context.Context, x *Variable) (*Variable, error) {
	return unary(ctx, "cos", "CosBackward0", x, savesArgument, (*ops.Engine).Cos,
		func(e *ops.Engine, ctx context.Context, grad, x *tensor.Tensor) (*tensor.Tensor, error) {
			s, err := e.Sin(ctx, x)
			if err != nil {
				return nil, err
			}
			if s, err = e.Mul(ctx, grad, s); err != nil {
				return nil, err
			}
			return e.Neg(ctx, s)
		})
}

// Tanh returns the hyperbolic tangent of each element of x.
func Tanh(ctx context.Context, x *Variable) (*Variable, error) {
	return unary(ctx, "tanh", "TanhBackward0", x, savesResult, (*ops.Engine).Tanh, (*ops.Engine).TanhBackward)
}

// Sigmoid returns 1/(1+exp(-v)) for each element v of x.
func Sigmoid(ctx context.Context, x *Variable) (*Variable, error) {
	return unary(ctx, "sigmoid", "SigmoidBackward0", x, savesResult,
		(*ops.Engine).Sigmoid, (*ops.Engine).SigmoidBackward)
}

// Relu returns max(v, 0) for each element v of x.
func Relu(ctx context.Context, x *Variable) (*Variable, error) {
	return unary(ctx, "relu", "ReluBackward0", x, savesResult, (*ops.Engine).Relu, (*ops.Engine).ReluBackward)
}

// Pow returns each element of x, which is dense, to the power of exponent, in new memory. The gradient is 0
// for the exponent 0.
func Pow(ctx context.Context, x *Variable, exponent float64) (*Variable, error) {
	return unary(ctx, "pow", "PowBackward0", x, savesArgument,
		func(e *ops.Engine, ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
			return e.Pow(ctx, x, number(exponent))
		},
		func(e *ops.Engine, ctx context.Context, grad, x *tensor.Tensor) (*tensor.Tensor, error) {
			return e.PowBackward(ctx, grad, x, exponent)
		})
}
