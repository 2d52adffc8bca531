package ops

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// MSELoss returns the squares of the differences of x and y, which are broadcast to one shape, or
// their mean or sum, in a new contiguous tensor. It has that shape for ReductionNone, and otherwise
// no dimensions. x and y must have the same dtype, F32 or F64.
//
// The error is a *ValueError if the dtypes or the reduction are invalid, a *SizeError if the shapes
// cannot be broadcast, a *LimitError, the error of ctx, or one of package tensor.
func (e *Engine) MSELoss(ctx context.Context, x, y *tensor.Tensor, r Reduction) (*tensor.Tensor, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := checkMSE(x, y, r); err != nil {
		return nil, err
	}
	if !onHost(x) {
		return e.deviceMSELoss(ctx, x, y, r)
	}
	if x.DType() == tensor.F32 {
		return mseLoss[float32](e, x, y, r)
	}
	return mseLoss[float64](e, x, y, r)
}

// checkMSE returns a *ValueError unless MSELoss takes the dtypes of x and y and the reduction r.
func checkMSE(x, y *tensor.Tensor, r Reduction) error {
	if err := checkReduction(r); err != nil {
		return err
	}
	if err := checkFloat("mse_loss", x); err != nil {
		return err
	}
	return sameDType(x, y)
}

// mseOperands is two operands of one dtype that are broadcast to one shape.
type mseOperands[T floatNum] struct {
	shape []int
	count int // elements of shape
	x, y  []T // contiguous
	loop  []loopDim
	owner [2]*tensor.Tensor // of x and y
}

// newMSEOperands returns the operands x and y, whose dtype is that of T. The error is a *SizeError,
// a *LimitError if the shape to which they are broadcast is too large, or one of packed.
func newMSEOperands[T floatNum](e *Engine, x, y *tensor.Tensor) (*mseOperands[T], error) {
	shape, err := broadcast(x.Shape(), y.Shape())
	if err != nil {
		return nil, err
	}
	if err := e.checkSize(x.DType(), shape); err != nil {
		return nil, err
	}
	o := &mseOperands[T]{shape: shape, count: 1, loop: loopDims(shape, x.Shape(), y.Shape())}
	for _, size := range shape {
		o.count *= size
	}
	if o.x, o.owner[0], err = packed[T](e, x); err != nil {
		return nil, err
	}
	o.y, o.owner[1], err = packed[T](e, y)
	return o, err
}

// mseLoss is MSELoss for the dtype of T. Sums are computed in float64.
func mseLoss[T floatNum](e *Engine, x, y *tensor.Tensor, r Reduction) (*tensor.Tensor, error) {
	o, err := newMSEOperands[T](e, x, y)
	if err != nil {
		return nil, err
	}
	var out *tensor.Tensor
	var to []T
	if r == ReductionNone {
		if out, to, err = newTensor[T](e, o.shape...); err != nil {
			return nil, err
		}
	}
	sum, inner := 0.0, o.loop[0]
	for w, more := (walk{loopDims: o.loop[1:]}), o.count > 0; more; more = w.next() {
		for i := range inner.size {
			d := o.x[w.x+i*inner.x] - o.y[w.y+i*inner.y]
			if to != nil {
				to[i] = d * d
			} else {
				sum += float64(d) * float64(d)
			}
		}
		if to != nil {
			to = to[inner.size:]
		}
	}
	keepAlive(o.owner[0], o.owner[1])
	switch r {
	case ReductionNone:
		return out, nil
	case ReductionMean:
		sum /= float64(o.count)
	}
	return scalar(e, T(sum))
}

// MSELossBackward returns the gradients of x and y for a call of MSELoss with these arguments, given
// grad, the gradient of the loss: each is a new contiguous tensor of the shape of x or y. A result
// whose element of needs is false is nil. The errors are those of MSELoss, and a *ValueError if grad
// has another dtype or another shape than the loss.
func (e *Engine) MSELossBackward(ctx context.Context, grad, x, y *tensor.Tensor, r Reduction,
	needs [2]bool) (gx, gy *tensor.Tensor, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if err := checkMSE(x, y, r); err != nil {
		return nil, nil, err
	}
	if err := sameDType(x, grad); err != nil {
		return nil, nil, err
	}
	if !onHost(x) {
		return e.deviceMSELossBackward(ctx, grad, x, y, r, needs)
	}
	if x.DType() == tensor.F32 {
		return mseLossBackward[float32](e, grad, x, y, r, needs)
	}
	return mseLossBackward[float64](e, grad, x, y, r, needs)
}

// mseLossBackward is MSELossBackward for the dtype of T.
func mseLossBackward[T floatNum](e *Engine, grad, x, y *tensor.Tensor, r Reduction, needs [2]bool) (gx,
	gy *tensor.Tensor, err error) {
	o, err := newMSEOperands[T](e, x, y)
	if err != nil {
		return nil, nil, err
	}
	each, all, gradOwner, err := mseGradients[T](e, grad, x, r, o)
	if err != nil {
		return nil, nil, err
	}
	var sums [2]*gradientSums[T]
	for i, operand := range []*tensor.Tensor{x, y} {
		if needs[i] {
			if sums[i], err = newGradientSums[T](e, operand, o.count); err != nil {
				return nil, nil, err
			}
		}
	}
	inner, k := o.loop[0], 0
	for w, more := (walk{loopDims: o.loop[1:]}), o.count > 0; more; more = w.next() {
		for i := range inner.size {
			g, at, other := all, w.x+i*inner.x, w.y+i*inner.y
			if each != nil {
				g = each[k]
				k++
			}
			d := 2 * (o.x[at] - o.y[other]) * g
			sums[0].add(at, d)
			sums[1].add(other, -d)
		}
	}
	keepAlive(gradOwner, o.owner[0], o.owner[1])
	return sums[0].tensor(), sums[1].tensor(), nil
}

// mseGradients returns the gradients of the squares: each for ReductionNone, with the tensor that
// owns it, and otherwise all, the same for each square. The errors are those of packed and, for a
// wrong shape, a *ValueError.
func mseGradients[T floatNum](e *Engine, grad, x *tensor.Tensor, r Reduction,
	o *mseOperands[T]) (each []T, all T, owner *tensor.Tensor, err error) {
	if r == ReductionNone {
		if err := checkGradShape("mse_loss", grad, o.shape); err != nil {
			return nil, 0, nil, err
		}
		each, owner, err = packed[T](e, grad)
		return each, 0, owner, err
	}
	if all, err = scalarValue[T]("the gradient of mse_loss", grad, x); r == ReductionMean {
		all /= T(o.count)
	}
	return nil, all, nil, err
}

// gradientSums is the gradient of an operand that may have been broadcast: the sum of the gradients
// of all elements of the result to which an element contributed.
type gradientSums[T floatNum] struct {
	out  *tensor.Tensor
	to   []T
	sums []float64 // nil if the operand has not been broadcast
}

// newGradientSums returns the gradient of operand, whose dtype is that of T, for a result of count
// elements. The errors are those of newTensor.
func newGradientSums[T floatNum](e *Engine, operand *tensor.Tensor, count int) (*gradientSums[T], error) {
	out, to, err := newTensor[T](e, operand.Shape()...)
	if err != nil {
		return nil, err
	}
	s := &gradientSums[T]{out: out, to: to}
	if len(to) != count {
		s.sums = make([]float64, len(to))
	}
	return s, nil
}

// add adds v to the gradient of the element at position at. It does nothing if s is nil.
func (s *gradientSums[T]) add(at int, v T) {
	switch {
	case s == nil:
	case s.sums == nil:
		s.to[at] = v
	default:
		s.sums[at] += float64(v)
	}
}

// tensor returns the gradient, once all elements are added, or nil if s is nil.
func (s *gradientSums[T]) tensor() *tensor.Tensor {
	if s == nil {
		return nil
	}
	for i, sum := range s.sums {
		s.to[i] = T(sum)
	}
	return s.out
}
