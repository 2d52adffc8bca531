package ops

import (
	"context"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// MatMul returns the product of x and y in new memory, on their device. Each is a vector, or has
// matrices in its last two dimensions; the dimensions before these are broadcast. A vector x counts
// as a matrix with one row and a vector y as one with one column; that dimension is removed from the
// result.
//
// x and y must have the same dtype, any but Bool. F16 and BF16 are computed as F32. The error is a
// *ValueError if a rank is 0, the dtypes differ or are Bool, or the matrices do not fit, a
// *SizeError if the shapes cannot be broadcast, a *DeviceMismatchError, a *LimitError, the error of
// ctx, or one of package tensor.
func (e *Engine) MatMul(ctx context.Context, x, y *tensor.Tensor) (*tensor.Tensor, error) {
	return e.product(ctx, x, y, nil)
}

// Mm returns the product of the matrices x, of shape [m, k], and y, of shape [k, n], in new memory.
// The error is a *ValueError if one is not a matrix, or one of those of MatMul.
func (e *Engine) Mm(ctx context.Context, x, y *tensor.Tensor) (*tensor.Tensor, error) {
	switch {
	case x.Rank() != 2:
		return nil, valueErrorf("self must be a matrix")
	case y.Rank() != 2:
		return nil, valueErrorf("mat2 must be a matrix")
	}
	return e.product(ctx, x, y, nil)
}

// Bmm multiplies each matrix of x, of shape [b, m, k], by the matrix of y, of shape [b, k, n], with
// the same index, and returns the products in new memory, with shape [b, m, n]. The error is a
// *ValueError if a rank or the number of matrices is wrong, or one of those of MatMul.
func (e *Engine) Bmm(ctx context.Context, x, y *tensor.Tensor) (*tensor.Tensor, error) {
	switch {
	case x.Rank() != 3:
		return nil, valueErrorf("batch1 must be a 3D tensor")
	case y.Rank() != 3:
		return nil, valueErrorf("batch2 must be a 3D tensor")
	case x.Shape()[0] != y.Shape()[0]:
		return nil, valueErrorf("Expected size for first two dimensions of batch2 tensor to be: [%d, %d]"+
			" but got: [%d, %d].", x.Shape()[0], x.Shape()[2], y.Shape()[0], y.Shape()[1])
	}
	return e.product(ctx, x, y, nil)
}

// Mv returns the product of the matrix x, of shape [m, k], and the vector y, of shape [k], in new
// memory, with shape [m]. The error is a *ValueError if the ranks are not 2 and 1, or one of those
// of MatMul.
func (e *Engine) Mv(ctx context.Context, x, y *tensor.Tensor) (*tensor.Tensor, error) {
	if x.Rank() != 2 || y.Rank() != 1 {
		return nil, valueErrorf("vector + matrix @ vector expected, got 1, %d, %d", x.Rank(), y.Rank())
	}
	return e.product(ctx, x, y, nil)
}

// Dot returns the inner product of the vectors x and y as a new tensor without dimensions. The error
// is a *ValueError if one is not a vector, or one of those of MatMul.
func (e *Engine) Dot(ctx context.Context, x, y *tensor.Tensor) (*tensor.Tensor, error) {
	if x.Rank() != 1 || y.Rank() != 1 {
		return nil, valueErrorf("1D tensors expected, but got %dD and %dD tensors", x.Rank(), y.Rank())
	}
	return e.product(ctx, x, y, nil)
}

// product returns x times y, as MatMul describes, plus bias, which is broadcast to the result. A nil
// bias adds nothing. The bias must have the dtype of x and y. The errors are those of MatMul, and a
// *ValueError if the bias has another dtype or more dimensions than the result.
func (e *Engine) product(ctx context.Context, x, y, bias *tensor.Tensor) (*tensor.Tensor, error) {
	if x.Rank() == 0 || y.Rank() == 0 {
		return nil, valueErrorf("both arguments to matmul need to be at least 1D, but they are %dD and %dD",
			x.Rank(), y.Rank())
	}
	if err := sameDType(x, y); err != nil {
		return nil, err
	}
	if bias != nil {
		if err := sameDType(x, bias); err != nil {
			return nil, err
		}
		if _, err := e.kernelsOf(x, bias); err != nil {
			return nil, err
		}
	}
	if k, err := e.kernelsOf(x, y); err != nil {
		return nil, err
	} else if k != nil {
		return e.deviceProduct(ctx, k, x, y, bias)
	}
	switch x.DType() {
	case tensor.U8:
		return multiply[uint8](ctx, e, x, y, bias)
	case tensor.I8:
		return multiply[int8](ctx, e, x, y, bias)
	case tensor.I16:
		return multiply[int16](ctx, e, x, y, bias)
	case tensor.I32:
		return multiply[int32](ctx, e, x, y, bias)
	case tensor.I64:
		return multiply[int64](ctx, e, x, y, bias)
	case tensor.F16:
		return multiplyHalf(ctx, e, x, y, bias, tensor.ToFloat16)
	case tensor.BF16:
		return multiplyHalf(ctx, e, x, y, bias, tensor.ToBFloat16)
	case tensor.F32:
		return multiply[float32](ctx, e, x, y, bias)
	case tensor.F64:
		return multiply[float64](ctx, e, x, y, bias)
	case tensor.C64:
		return multiply[complex64](ctx, e, x, y, bias)
	case tensor.C128:
		return multiply[complex128](ctx, e, x, y, bias)
	}
	return nil, valueErrorf("matrices of bools cannot be multiplied")
}

// deviceProduct is product for x and y on the device of k. The errors are those of product and of k.
func (e *Engine) deviceProduct(ctx context.Context, k Kernels, x, y,
	bias *tensor.Tensor) (*tensor.Tensor, error) {
	shape, batch, _, _, _, err := productShape(x.Shape(), y.Shape())
	if err != nil {
		return nil, err
	}
	row, column := x.Rank() == 1, y.Rank() == 1
	if row {
		if x, err = x.Unsqueeze(0); err != nil {
			return nil, err
		}
	}
	if column {
		if y, err = y.Unsqueeze(1); err != nil {
			return nil, err
		}
	}
	out, err := e.deviceMatMul(ctx, k, x, y)
	if err != nil {
		return nil, err
	}
	if column { // the result has a dimension of size 1 for a vector
		if out, err = out.Select(out.Rank()-1, 0); err != nil {
			return nil, err
		}
	}
	if row {
		if out, err = out.Select(len(batch), 0); err != nil {
			return nil, err
		}
	}
	if bias == nil {
		return out, nil
	}
	if err := checkBias(shape, bias.Shape()); err != nil {
		return nil, err
	}
	return e.Add(ctx, out, bias, Int(1))
}

// productShape returns the shape of the product of tensors with the shapes xs and ys, of rank 1 or
// more, and the shape to which the dimensions before the matrices are broadcast. m, k and n are the
// sizes of the matrices, m by k and k by n. The error is a *ValueError if the matrices do not fit,
// or a *SizeError if the dimensions before them cannot be broadcast.
func productShape(xs, ys []int) (shape, batch []int, m, k, n int, err error) {
	m, n = 1, 1
	k, xs, rowVector := xs[len(xs)-1], xs[:len(xs)-1], len(xs) == 1
	if !rowVector {
		m, xs = xs[len(xs)-1], xs[:len(xs)-1]
	}
	columnVector := len(ys) == 1
	if !columnVector {
		n, ys = ys[len(ys)-1], ys[:len(ys)-1]
	}
	if rows := ys[len(ys)-1]; rows != k {
		return nil, nil, 0, 0, 0, valueErrorf("mat1 and mat2 shapes cannot be multiplied (%dx%d and %dx%d)",
			m, k, rows, n)
	}
	if batch, err = broadcast(xs, ys[:len(ys)-1]); err != nil {
		return nil, nil, 0, 0, 0, err
	}
	shape = append(make([]int, 0, len(batch)+2), batch...)
	if !rowVector {
		shape = append(shape, m)
	}
	if !columnVector {
		shape = append(shape, n)
	}
	return shape, batch, m, k, n, nil
}

// checkBias returns nil if a tensor of the shape bias can be broadcast to shape, a *SizeError if
// their sizes differ, and a *ValueError if broadcasting would add elements to shape.
func checkBias(shape, bias []int) error {
	all, err := broadcast(shape, bias)
	if err != nil {
		return err
	}
	if !slices.Equal(all, shape) {
		return valueErrorf("a bias of shape %v cannot be added to a product of shape %v", bias, shape)
	}
	return nil
}

// multiplyHalf is product for tensors of F16 or BF16, the dtype of H: it converts the operands to
// F32, multiplies them, and rounds the result by round.
func multiplyHalf[H halfNum](ctx context.Context, e *Engine, x, y, bias *tensor.Tensor,
	round func(float32) H) (*tensor.Tensor, error) {
	x, err := widen[H](e, x)
	if err != nil {
		return nil, err
	}
	if y, err = widen[H](e, y); err != nil {
		return nil, err
	}
	if bias != nil {
		if bias, err = widen[H](e, bias); err != nil {
			return nil, err
		}
	}
	sums, err := multiply[float32](ctx, e, x, y, bias)
	if err != nil {
		return nil, err
	}
	from, err := tensor.Data[float32](sums)
	if err != nil {
		return nil, err
	}
	out, to, err := newTensor[H](e, sums.Shape()...)
	if err != nil {
		return nil, err
	}
	for i, v := range from {
		to[i] = round(v)
	}
	keepAlive(sums)
	return out, nil
}

// widen returns a new tensor of F32 with the elements of t, whose dtype is that of H. The errors are
// those of packed and newTensor.
func widen[H halfNum](e *Engine, t *tensor.Tensor) (*tensor.Tensor, error) {
	from, owner, err := packed[H](e, t)
	if err != nil {
		return nil, err
	}
	out, to, err := newTensor[float32](e, t.Shape()...)
	if err != nil {
		return nil, err
	}
	for i, v := range from {
		to[i] = v.Float32()
	}
	keepAlive(owner)
	return out, nil
}
