package ops

import (
	"context"
	"math"
	"runtime"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// NewSparse returns a new sparse tensor with copies of indices, an I64 matrix of shape [sparse
// dimensions, n], and of values, of shape [n, dense dimensions...]. A nil shape stands for the
// smallest one that contains all indices. The error is a *ValueError if the ranks are wrong or an
// index is invalid, a *LimitError, or an error of package tensor.
func (e *Engine) NewSparse(_ context.Context, indices, values *tensor.Tensor,
	shape []int) (*tensor.Sparse, error) {
	if shape == nil {
		var err error
		if shape, err = e.smallestShape(indices, values); err != nil {
			return nil, err
		}
	}
	indices, err := e.clone(indices)
	if err != nil {
		return nil, err
	}
	if values, err = e.clone(values); err != nil {
		return nil, err
	}
	return tensor.NewSparse(indices, values, shape...)
}

// smallestShape returns, in a new slice, the smallest shape that a sparse tensor can have with these
// indices and values. If there are no indices, the sizes of the sparse dimensions are 0. The error is
// a *ValueError if the ranks are wrong, if there are more than tensor.MaxRank sparse dimensions, or
// if the largest index of a dimension is negative or too large; otherwise it is an error of elements,
// for example if the indices are not I64.
func (e *Engine) smallestShape(indices, values *tensor.Tensor) ([]int, error) {
	if indices.Rank() != 2 || values.Rank() < 1 {
		return nil, valueErrorf("indices must be a matrix and values have a dimension")
	}
	data, err := elements[int64](e, indices)
	if err != nil {
		return nil, err
	}
	sparse, n := indices.Shape()[0], indices.Shape()[1]
	if sparse > tensor.MaxRank {
		return nil, valueErrorf("indices have %d dimensions; the limit is %d", sparse, tensor.MaxRank)
	}
	if n == 0 {
		return append(make([]int, sparse), values.Shape()[1:]...), nil
	}
	shape := make([]int, 0, sparse+values.Rank()-1)
	for dim := range sparse {
		last := slices.Max(data[dim*n:][:n])
		if last < 0 || last >= math.MaxInt {
			return nil, valueErrorf("%d is not a valid index", last)
		}
		shape = append(shape, int(last)+1)
	}
	runtime.KeepAlive(indices)
	return append(shape, values.Shape()[1:]...), nil
}

// CloneSparse returns a sparse tensor with copies of the indices and values of s. The error is a
// *LimitError or an error of package tensor.
func (e *Engine) CloneSparse(ctx context.Context, s *tensor.Sparse) (*tensor.Sparse, error) {
	return e.NewSparse(ctx, s.Indices(), s.Values(), s.Shape())
}

// CastSparse returns s itself if it has the dtype d, and otherwise a new sparse tensor with its values
// cast to d. The errors are those of Cast.
func (e *Engine) CastSparse(ctx context.Context, s *tensor.Sparse, d tensor.DType) (*tensor.Sparse, error) {
	values, err := e.Cast(ctx, s.Values(), d)
	if err != nil || values == s.Values() {
		return s, err
	}
	return e.withValues(s, values)
}

// withValues returns a new sparse tensor with the shape and a copy of the indices of s. It retains
// values, which are not copied, as the values. The error is a *LimitError or an error of package
// tensor.
func (e *Engine) withValues(s *tensor.Sparse, values *tensor.Tensor) (*tensor.Sparse, error) {
	indices, err := e.clone(s.Indices())
	if err != nil {
		return nil, err
	}
	return tensor.NewSparse(indices, values, s.Shape()...)
}

// ToDense returns s as a new dense tensor. The error is a *LimitError, or one of those of
// tensor.Sparse.ToDense.
func (e *Engine) ToDense(_ context.Context, s *tensor.Sparse) (*tensor.Tensor, error) {
	if s.DType() == tensor.Bool {
		var err error
		if s, err = s.Coalesce(); err != nil {
			return nil, err
		}
	}
	zeros, err := e.zeros(s.DType(), s.Shape()...)
	if err != nil {
		return nil, err
	}
	return e.scatterOnto(zeros, s, s.DType(), Int(1))
}

// SumSparse returns the sum of all values of s as a new dense tensor without dimensions. The sum of
// integers or bools is I64. The error is a *LimitError or an error of package tensor.
func (e *Engine) SumSparse(ctx context.Context, s *tensor.Sparse) (*tensor.Tensor, error) {
	return e.Sum(ctx, s.Values(), nil, false, 0)
}

// MulSparseNumber returns s with its values multiplied by n, as a new sparse tensor. The error is a
// *LimitError or an error of package tensor.
func (e *Engine) MulSparseNumber(ctx context.Context, s *tensor.Sparse, n Number) (*tensor.Sparse, error) {
	d := NumberResultType(s.DType(), n)
	values, err := e.binary(ctx, opMul, s.Values(), secondOperand{number: n}, d, Int(1))
	if err != nil {
		return nil, err
	}
	return e.withValues(s, values)
}

// DivSparseNumber returns s with its values divided by n, as a new sparse tensor. Quotients of
// integers and bools are F32. The error is a *LimitError or an error of package tensor.
func (e *Engine) DivSparseNumber(ctx context.Context, s *tensor.Sparse, n Number) (*tensor.Sparse, error) {
	d := floatType(NumberResultType(s.DType(), n))
	values, err := e.binary(ctx, opDiv, s.Values(), secondOperand{number: n}, d, Int(1))
	if err != nil {
		return nil, err
	}
	return e.withValues(s, values)
}

// NegSparse returns s with the opposite sign, as a new sparse tensor. The errors are those of Neg.
func (e *Engine) NegSparse(ctx context.Context, s *tensor.Sparse) (*tensor.Sparse, error) {
	values, err := e.Neg(ctx, s.Values())
	if err != nil {
		return nil, err
	}
	return e.withValues(s, values)
}

// FillLikeSparse returns a new sparse tensor with the shape and the indices of s, in which each value
// is the one element of value. The error is a *tensor.ShapeError if value has several elements, a
// *LimitError, or another error of package tensor.
func (e *Engine) FillLikeSparse(_ context.Context, s *tensor.Sparse,
	value *tensor.Tensor) (*tensor.Sparse, error) {
	value, err := value.View()
	if err != nil {
		return nil, err
	}
	if value, err = value.Expand(s.Values().Shape()...); err != nil {
		return nil, err
	}
	if value, err = e.clone(value); err != nil {
		return nil, err
	}
	return e.withValues(s, value)
}

// SparseMask returns a new sparse tensor with the indices of s and the elements of x at these
// positions. x is broadcast to the shape of s. The error is a *tensor.ShapeError if it cannot be, a
// *LimitError, or another error of package tensor.
func (e *Engine) SparseMask(_ context.Context, x *tensor.Tensor, s *tensor.Sparse) (*tensor.Sparse, error) {
	values, err := e.valuesAt(x, s)
	if err != nil {
		return nil, err
	}
	return e.withValues(s, values)
}
