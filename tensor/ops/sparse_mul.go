package ops

import (
	"context"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// MulSparse returns the products of the elements of a and b, of the same shape, as a new coalesced
// sparse tensor. It lists the positions that both list. The error is a *ValueError if the shapes or
// the numbers of sparse dimensions differ, a *LimitError, or an error of package tensor.
func (e *Engine) MulSparse(ctx context.Context, a, b *tensor.Sparse) (*tensor.Sparse, error) {
	if err := checkSparsePair("mul", a, b); err != nil {
		return nil, err
	}
	a, err := a.Coalesce()
	if err != nil {
		return nil, err
	}
	if b, err = b.Coalesce(); err != nil {
		return nil, err
	}
	inA, inB, err := e.commonPositions(a, b)
	if err != nil {
		return nil, err
	}
	indices, err := e.columns(a.Indices(), inA)
	if err != nil {
		return nil, err
	}
	x, err := e.rows(a.Values(), inA)
	if err != nil {
		return nil, err
	}
	y, err := e.rows(b.Values(), inB)
	if err != nil {
		return nil, err
	}
	values, err := e.binary(ctx, opMul, x, secondOperand{tensor: y}, promote(a.DType(), b.DType()), Int(1))
	if err != nil {
		return nil, err
	}
	return tensor.NewSparse(indices, values, a.Shape()...)
}

// commonPositions returns the numbers of the values of a and of b, which must be coalesced, at the
// positions that both list.
func (e *Engine) commonPositions(a, b *tensor.Sparse) (inA, inB []int, err error) {
	first, err := e.positions(a)
	if err != nil {
		return nil, nil, err
	}
	second, err := e.positions(b)
	if err != nil {
		return nil, nil, err
	}
	for i, j := 0, 0; i < len(first) && j < len(second); {
		switch {
		case first[i] < second[j]:
			i++
		case first[i] > second[j]:
			j++
		default:
			inA, inB = append(inA, i), append(inB, j)
			i, j = i+1, j+1
		}
	}
	return inA, inB, nil
}

// rows returns a new tensor with the parts of x along its first dimension whose numbers are in list.
func (e *Engine) rows(x *tensor.Tensor, list []int) (*tensor.Tensor, error) {
	at := make([]int, len(list))
	for k, i := range list {
		at[k] = i * x.Strides()[0]
	}
	return e.gather(x, at, x.Shape()[1:], x.Strides()[1:])
}

// columns returns a new tensor with the columns of the I64 matrix x whose numbers are in list.
func (e *Engine) columns(x *tensor.Tensor, list []int) (*tensor.Tensor, error) {
	from, err := elements[int64](e, x)
	if err != nil {
		return nil, err
	}
	rows, n := x.Shape()[0], x.Shape()[1]
	out, to, err := newTensor[int64](e, rows, len(list))
	if err != nil {
		return nil, err
	}
	for row := range rows {
		for k, column := range list {
			to[row*len(list)+k] = from[row*n+column]
		}
	}
	runtime.KeepAlive(x)
	runtime.KeepAlive(out)
	return out, nil
}

// MulSparseDense returns the products of the elements of s and x, which is broadcast to the shape of
// s, as a new sparse tensor with the indices of s. The error is a *tensor.ShapeError if x cannot be
// broadcast, a *LimitError, or another error of package tensor.
func (e *Engine) MulSparseDense(ctx context.Context, s *tensor.Sparse,
	x *tensor.Tensor) (*tensor.Sparse, error) {
	d := sparseResultType(s.DType(), x)
	if x.Rank() > 0 {
		var err error
		if x, err = e.valuesAt(x, s); err != nil {
			return nil, err
		}
	}
	values, err := e.binary(ctx, opMul, s.Values(), secondOperand{tensor: x}, d, Int(1))
	if err != nil {
		return nil, err
	}
	return e.withValues(s, values)
}

// SparseMatMul returns the product of the sparse matrix s, of shape [m, k], and the dense matrix y, of
// shape [k, n], as a new dense tensor. The error is a *ValueError if one is not a matrix, if the
// dtypes differ or are Bool, or if the sizes do not fit, a *tensor.IndexError for an index outside s,
// the error of ctx, a *LimitError, or another error of package tensor.
func (e *Engine) SparseMatMul(ctx context.Context, s *tensor.Sparse,
	y *tensor.Tensor) (*tensor.Tensor, error) {
	if err := checkSparseProduct(s, y); err != nil {
		return nil, err
	}
	d := y.DType()
	values, err := e.computable(s.Values(), d)
	if err != nil {
		return nil, err
	}
	if y, err = e.computable(y, d); err != nil {
		return nil, err
	}
	var out *tensor.Tensor
	switch y.DType() {
	case tensor.U8:
		out, err = multiplySparse[uint8](ctx, e, s, values, y)
	case tensor.I8:
		out, err = multiplySparse[int8](ctx, e, s, values, y)
	case tensor.I16:
		out, err = multiplySparse[int16](ctx, e, s, values, y)
	case tensor.I32:
		out, err = multiplySparse[int32](ctx, e, s, values, y)
	case tensor.I64:
		out, err = multiplySparse[int64](ctx, e, s, values, y)
	case tensor.F32:
		out, err = multiplySparse[float32](ctx, e, s, values, y)
	case tensor.F64:
		out, err = multiplySparse[float64](ctx, e, s, values, y)
	case tensor.C64:
		out, err = multiplySparse[complex64](ctx, e, s, values, y)
	default:
		out, err = multiplySparse[complex128](ctx, e, s, values, y)
	}
	if err != nil {
		return nil, err
	}
	return e.cast(out, d)
}

// checkSparseProduct returns nil if s can be multiplied by y, and otherwise a *ValueError.
func checkSparseProduct(s *tensor.Sparse, y *tensor.Tensor) error {
	switch {
	case len(s.Shape()) != 2 || s.Indices().Shape()[0] != 2:
		return valueErrorf("self must be a matrix")
	case y.Rank() != 2:
		return valueErrorf("mat2 must be a matrix")
	}
	if err := sameDType(s.Values(), y); err != nil {
		return err
	}
	if y.DType() == tensor.Bool {
		return valueErrorf("matrices of bools cannot be multiplied")
	}
	if shape := s.Shape(); shape[1] != y.Shape()[0] {
		return valueErrorf("mat1 and mat2 shapes cannot be multiplied (%dx%d and %dx%d)",
			shape[0], shape[1], y.Shape()[0], y.Shape()[1])
	}
	return nil
}

// multiplySparse returns the product of the sparse matrix s and the dense matrix y as a new dense
// matrix. It takes the positions from s and the numbers from values, which are the values of s cast
// to the dtype of y. T must be the Go type of that dtype. Before each value it checks ctx.
func multiplySparse[T number](ctx context.Context, e *Engine, s *tensor.Sparse, values,
	y *tensor.Tensor) (*tensor.Tensor, error) {
	n := y.Shape()[1]
	out, err := e.zeros(y.DType(), s.Shape()[0], n)
	if err != nil {
		return nil, err
	}
	to, err := tensor.MutableData[T](out)
	if err != nil {
		return nil, err
	}
	at, err := e.positions(s)
	if err != nil {
		return nil, err
	}
	factors, err := elements[T](e, values)
	if err != nil {
		return nil, err
	}
	data, err := elements[T](e, y)
	if err != nil {
		return nil, err
	}
	for k, factor := range factors {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		row, column := at[k]/s.Shape()[1], at[k]%s.Shape()[1]
		part := to[row*n:][:n]
		arithmetic(operation[T]{scaled: true, factor: factor}, part, part, data[column*n:])
	}
	keepAlive(values, y, out)
	return out, nil
}
