package ops

import (
	"context"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Linear returns x times the transpose of weight, plus bias, in new memory. x has the shape [..., in],
// weight [out, in] and bias [out]; the result has the shape [..., out]. A nil bias adds nothing; any
// other is broadcast to the result. All have the same dtype.
//
// The error is a *ValueError if the weight is not a matrix or the bias has more dimensions than the
// result, or one of those of MatMul.
func (e *Engine) Linear(ctx context.Context, x, weight, bias *tensor.Tensor) (*tensor.Tensor, error) {
	if weight.Rank() != 2 {
		return nil, valueErrorf("linear: the weight must be a matrix, but it is %dD", weight.Rank())
	}
	transposed, err := weight.Transpose(0, 1)
	if err != nil {
		return nil, err
	}
	return e.product(ctx, x, transposed, bias)
}

// LinearBackward returns the gradients of x, of weight and of a bias of shape [out] for a call of
// Linear, given grad, the gradient of its result, in new memory. grad has the shape [..., out]; its
// dimensions before the last are those of x. A result whose element of needs is false is nil. x may be
// nil if the gradient of weight is not needed, and weight if that of x is not.
//
// grad, x and weight must have the same dtype, F32 or F64. The error is a *ValueError if dtypes or
// shapes do not fit, a *LimitError, the error of ctx, or one of package tensor.
func (e *Engine) LinearBackward(ctx context.Context, grad, x, weight *tensor.Tensor, needs [3]bool) (gx,
	gw, gb *tensor.Tensor, err error) {
	if err := checkLinearBackward(grad, x, weight, needs); err != nil {
		return nil, nil, nil, err
	}
	if needs[0] {
		if gx, err = e.product(ctx, grad, weight, nil); err != nil {
			return nil, nil, nil, err
		}
	}
	if !needs[1] && !needs[2] {
		return gx, nil, nil, nil
	}
	if grad.Rank() == 1 {
		if grad, err = grad.Unsqueeze(0); err != nil {
			return nil, nil, nil, err
		}
		if needs[1] {
			if x, err = x.Unsqueeze(0); err != nil {
				return nil, nil, nil, err
			}
		}
	}
	if grad, err = e.flatten(ctx, grad); err != nil {
		return nil, nil, nil, err
	}
	if needs[1] {
		if gw, err = e.weightGradient(ctx, grad, x); err != nil {
			return nil, nil, nil, err
		}
	}
	if needs[2] {
		if gb, err = e.sumRows(ctx, grad); err != nil {
			return nil, nil, nil, err
		}
	}
	return gx, gw, gb, nil
}

// checkLinearBackward returns a *ValueError unless LinearBackward takes these arguments.
func checkLinearBackward(grad, x, weight *tensor.Tensor, needs [3]bool) error {
	if d := grad.DType(); d != tensor.F32 && d != tensor.F64 {
		return valueErrorf("the gradient of linear is not implemented for '%s'", torchNames[d])
	}
	if weight == nil && needs[0] || x == nil && needs[1] {
		return valueErrorf("linear: the gradient of the weight needs the input, and that of the input the weight")
	}
	fits := grad.Rank() > 0
	for _, t := range []*tensor.Tensor{x, weight} {
		if t != nil {
			fits = fits && t.Rank() > 0
			if err := sameDType(grad, t); err != nil {
				return err
			}
		}
	}
	r := grad.Rank()
	if fits && x != nil {
		fits = x.Rank() == r && slices.Equal(x.Shape()[:r-1], grad.Shape()[:r-1])
	}
	if fits && weight != nil {
		fits = weight.Rank() == 2 && grad.Shape()[r-1] == weight.Shape()[0] &&
			(x == nil || x.Shape()[r-1] == weight.Shape()[1])
	}
	if !fits {
		return valueErrorf("the shapes of the gradient %v, the input %v and the weight %v of linear do not fit together",
			grad.Shape(), shapeIfAny(x), shapeIfAny(weight))
	}
	return nil
}

// shapeIfAny returns the shape of t, or nil if t is nil.
func shapeIfAny(t *tensor.Tensor) []int {
	if t == nil {
		return nil
	}
	return t.Shape()
}

// weightGradient returns the transpose of grad, of shape [rows, out], times the rows of x, of shape
// [..., in], in new memory. The errors are those of flatten and product.
func (e *Engine) weightGradient(ctx context.Context, grad, x *tensor.Tensor) (*tensor.Tensor, error) {
	x, err := e.flatten(ctx, x)
	if err != nil {
		return nil, err
	}
	transposed, err := grad.Transpose(0, 1)
	if err != nil {
		return nil, err
	}
	return e.product(ctx, transposed, x, nil)
}

// sumRows returns the sum of the rows of t, of shape [rows, columns] and dtype F32 or F64, as a new
// tensor of shape [columns], on the device of t. The errors are those of SumTo, packed and newTensor.
func (e *Engine) sumRows(ctx context.Context, t *tensor.Tensor) (*tensor.Tensor, error) {
	switch {
	case !onHost(t):
		return e.SumTo(ctx, t, t.Shape()[1])
	case t.DType() == tensor.F32:
		return sumRows[float32](e, t)
	}
	return sumRows[float64](e, t)
}

// sumRows is Engine.sumRows on the host for the dtype of T. Sums are computed in float64.
func sumRows[T floatNum](e *Engine, t *tensor.Tensor) (*tensor.Tensor, error) {
	from, owner, err := packed[T](e, t)
	if err != nil {
		return nil, err
	}
	columns := t.Shape()[1]
	out, to, err := newTensor[T](e, columns)
	if err != nil {
		return nil, err
	}
	var buffer [256]float64
	for start := 0; start < columns; start += len(buffer) {
		sums := buffer[:min(len(buffer), columns-start)]
		clear(sums)
		for at := start; at < len(from); at += columns {
			for j, v := range from[at:][:len(sums)] {
				sums[j] += float64(v)
			}
		}
		for j, sum := range sums {
			to[start+j] = T(sum)
		}
	}
	keepAlive(owner)
	return out, nil
}
