package ops

import (
	"context"
	"math"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// ReluBackward returns the gradient of x for out = relu(x), given grad, the gradient of out: grad
// where out is positive or NaN, and 0 elsewhere. out may be x itself. The result is a new contiguous
// tensor.
//
// grad and out must have the same shape and the same dtype, F32 or F64. The error is a *ValueError
// if they do not, a *LimitError, the error of ctx, or one of package tensor.
func (e *Engine) ReluBackward(ctx context.Context, grad, out *tensor.Tensor) (*tensor.Tensor, error) {
	if !onHost(grad) {
		return e.deviceReluBackward(ctx, grad, out)
	}
	return e.backward(ctx, "relu", grad, out, reluGradients32, reluGradients64)
}

// TanhBackward returns the gradient of x for out = tanh(x), given grad, the gradient of out:
// grad·(1-out²), in a new contiguous tensor. Arguments and errors are those of ReluBackward.
func (e *Engine) TanhBackward(ctx context.Context, grad, out *tensor.Tensor) (*tensor.Tensor, error) {
	if !onHost(grad) {
		return e.deviceSigmoidalBackward(ctx, "tanh", grad, out)
	}
	return e.backward(ctx, "tanh", grad, out, tanhGradients[float32], tanhGradients[float64])
}

// SigmoidBackward returns the gradient of x for out = sigmoid(x), given grad, the gradient of out:
// grad·(1-out)·out, in a new contiguous tensor. Arguments and errors are those of ReluBackward.
func (e *Engine) SigmoidBackward(ctx context.Context, grad, out *tensor.Tensor) (*tensor.Tensor, error) {
	if !onHost(grad) {
		return e.deviceSigmoidalBackward(ctx, "sigmoid", grad, out)
	}
	return e.backward(ctx, "sigmoid", grad, out, sigmoidGradients[float32], sigmoidGradients[float64])
}

// SqrtBackward returns the gradient of x for out = sqrt(x), given grad, the gradient of out:
// grad/(2·out), in a new contiguous tensor. Arguments and errors are those of ReluBackward.
func (e *Engine) SqrtBackward(ctx context.Context, grad, out *tensor.Tensor) (*tensor.Tensor, error) {
	if !onHost(grad) {
		if err := checkGrad("sqrt", grad, out); err != nil {
			return nil, err
		}
		q, err := e.Div(ctx, grad, out)
		if err != nil {
			return nil, err
		}
		return q, e.MulNumberInPlace(ctx, q, Float(0.5))
	}
	return e.backward(ctx, "sqrt", grad, out, sqrtGradients[float32], sqrtGradients[float64])
}

// PowBackward returns the gradient of x for x raised to the power of exponent, given grad, the
// gradient of the result: grad·exponent·x^(exponent-1), in a new contiguous tensor. It is 0 if
// exponent is 0. Arguments and errors are those of ReluBackward.
func (e *Engine) PowBackward(ctx context.Context, grad, x *tensor.Tensor,
	exponent float64) (*tensor.Tensor, error) {
	return e.backward(ctx, "pow", grad, x,
		func(to, grad, x []float32) { powGradients(to, grad, x, exponent) },
		func(to, grad, x []float64) { powGradients(to, grad, x, exponent) })
}

// checkGrad returns a *ValueError unless grad, the gradient of the result of the operator name, and
// x, the result or an argument, have the same shape and the same dtype, F32 or F64.
func checkGrad(name string, grad, x *tensor.Tensor) error {
	if err := checkFloat(name, x); err != nil {
		return err
	}
	if err := sameDType(x, grad); err != nil {
		return err
	}
	return checkGradShape(name, grad, x.Shape())
}

// checkFloat returns nil if x has the dtype F32 or F64, and otherwise a *ValueError with the name of
// the operator.
func checkFloat(name string, x *tensor.Tensor) error {
	if d := x.DType(); d != tensor.F32 && d != tensor.F64 {
		return valueErrorf("\"%s\" not implemented for '%s'", name, torchNames[d])
	}
	return nil
}

// checkGradShape returns nil if grad has the given shape, and otherwise a *ValueError with the name
// of the operator.
func checkGradShape(name string, grad *tensor.Tensor, shape []int) error {
	if !slices.Equal(grad.Shape(), shape) {
		return valueErrorf("the gradient of %s must have the shape %v, not %v", name, shape, grad.Shape())
	}
	return nil
}

// backward returns a new tensor of the shape of x, which f32 or f64 computes from the elements of
// grad and x: both functions set all elements of to from those with the same index in the other
// slices, which have the same length. The errors are those of ReluBackward.
func (e *Engine) backward(ctx context.Context, name string, grad, x *tensor.Tensor,
	f32 func(to, grad, x []float32), f64 func(to, grad, x []float64)) (*tensor.Tensor, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := checkGrad(name, grad, x); err != nil {
		return nil, err
	}
	if x.DType() == tensor.F32 {
		return backward(e, grad, x, f32)
	}
	return backward(e, grad, x, f64)
}

// backward is Engine.backward for the dtype of T. The errors are those of packed and newTensor.
func backward[T floatNum](e *Engine, grad, x *tensor.Tensor, f func(to, grad, x []T)) (*tensor.Tensor, error) {
	g, gradOwner, err := packed[T](e, grad)
	if err != nil {
		return nil, err
	}
	v, owner, err := packed[T](e, x)
	if err != nil {
		return nil, err
	}
	out, to, err := newTensor[T](e, x.Shape()...)
	if err != nil {
		return nil, err
	}
	f(to, g, v)
	keepAlive(gradOwner, owner)
	return out, nil
}

// reluGradients32 selects the bits of each element, and not its value, because the compiler does that
// without a branch: one that depends on random signs takes eight times as long.
func reluGradients32(to, grad, out []float32) {
	grad, out = grad[:len(to)], out[:len(to)]
	for i := range to {
		bits := math.Float32bits(grad[i])
		if out[i] <= 0 {
			bits = 0
		}
		to[i] = math.Float32frombits(bits)
	}
}

// reluGradients64 is reluGradients32 for F64.
func reluGradients64(to, grad, out []float64) {
	grad, out = grad[:len(to)], out[:len(to)]
	for i := range to {
		bits := math.Float64bits(grad[i])
		if out[i] <= 0 {
			bits = 0
		}
		to[i] = math.Float64frombits(bits)
	}
}

func tanhGradients[T floatNum](to, grad, out []T) {
	grad, out = grad[:len(to)], out[:len(to)]
	for i := range to {
		to[i] = grad[i] * (1 - out[i]*out[i])
	}
}

func sigmoidGradients[T floatNum](to, grad, out []T) {
	grad, out = grad[:len(to)], out[:len(to)]
	for i := range to {
		to[i] = grad[i] * (1 - out[i]) * out[i]
	}
}

func sqrtGradients[T floatNum](to, grad, out []T) {
	grad, out = grad[:len(to)], out[:len(to)]
	for i := range to {
		to[i] = grad[i] / (2 * out[i])
	}
}

// powGradients sets each element of to to grad·exponent·x^(exponent-1), or to 0 if exponent is 0.
// Powers other than the first and the second are computed in float64.
func powGradients[T floatNum](to, grad, x []T, exponent float64) {
	grad, x = grad[:len(to)], x[:len(to)]
	switch exponent {
	case 0:
		clear(to)
	case 1:
		copy(to, grad)
	case 2:
		for i := range to {
			to[i] = grad[i] * (2 * x[i])
		}
	case 3:
		for i := range to {
			to[i] = grad[i] * (3 * x[i] * x[i])
		}
	default:
		for i := range to {
			to[i] = grad[i] * T(exponent*math.Pow(float64(x[i]), exponent-1))
		}
	}
}
