package ops

import (
	"context"
	"runtime"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// AddSparse returns a+alpha*b as a new sparse tensor of the dtype to which both are promoted. If both
// are coalesced, so is the sum. Otherwise it lists the indices and values of a, then those of b. The
// error is a *ValueError if the shapes or the numbers of sparse dimensions differ or if alpha does
// not fit the dtype, a *LimitError, or an error of package tensor.
func (e *Engine) AddSparse(ctx context.Context, a, b *tensor.Sparse, alpha Number) (*tensor.Sparse, error) {
	d := promote(a.DType(), b.DType())
	if err := checkAlpha(alpha, d); err != nil {
		return nil, err
	}
	if err := checkSparsePair("add", a, b); err != nil {
		return nil, err
	}
	lists := []*tensor.Tensor{a.Indices(), b.Indices()}
	indices, err := e.concat(ctx, lists, lists, 1)
	if err != nil {
		return nil, err
	}
	first, err := e.cast(a.Values(), d)
	if err != nil {
		return nil, err
	}
	second, err := e.cast(b.Values(), d)
	if err != nil {
		return nil, err
	}
	if !alpha.isOne() {
		if second, err = e.binary(ctx, opMul, second, secondOperand{number: alpha}, d, Int(1)); err != nil {
			return nil, err
		}
	}
	lists = []*tensor.Tensor{first, second}
	values, err := e.concat(ctx, lists, lists, 0)
	if err != nil {
		return nil, err
	}
	sum, err := tensor.NewSparse(indices, values, a.Shape()...)
	if err != nil || !a.Coalesced() || !b.Coalesced() {
		return sum, err
	}
	return sum.Coalesce()
}

// checkSparsePair returns nil if a and b have the same shape and the same number of sparse
// dimensions, and otherwise a *ValueError that names the operator.
func checkSparsePair(name string, a, b *tensor.Sparse) error {
	if !slices.Equal(a.Shape(), b.Shape()) {
		return valueErrorf("%s: expected sizes of 'self' and 'other' to match, but %s != %s",
			name, sizes(a.Shape()), sizes(b.Shape()))
	}
	if m, n := a.Indices().Shape()[0], b.Indices().Shape()[0]; m != n {
		return valueErrorf("%s: expected 'self' and 'other' to have same number of sparse dimensions, but they have %d and %d",
			name, m, n)
	}
	return nil
}

// SubSparse returns a-alpha*b as a new sparse tensor. The errors are those of AddSparse, and a
// *ValueError for bools.
func (e *Engine) SubSparse(ctx context.Context, a, b *tensor.Sparse, alpha Number) (*tensor.Sparse, error) {
	if a.DType() == tensor.Bool || b.DType() == tensor.Bool {
		return nil, errSubtractBools
	}
	return e.AddSparse(ctx, a, b, alpha.negated())
}

// AddDenseSparse returns x+alpha*s as a new dense tensor of the dtype to which both are promoted. The
// shapes must be equal. The error is a *ValueError if they are not or if alpha does not fit the
// dtype, a *LimitError, or an error of package tensor.
func (e *Engine) AddDenseSparse(_ context.Context, x *tensor.Tensor, s *tensor.Sparse,
	alpha Number) (*tensor.Tensor, error) {
	d := sparseResultType(s.DType(), x)
	if err := checkDenseSparse(x, s, alpha, d); err != nil {
		return nil, err
	}
	sum, err := e.computable(x, d)
	if err != nil {
		return nil, err
	}
	if sum == x {
		if sum, err = e.clone(x); err != nil {
			return nil, err
		}
	}
	return e.scatterOnto(sum, s, d, alpha)
}

// SubDenseSparse returns x-alpha*s as a new dense tensor. The errors are those of AddDenseSparse, and
// a *ValueError for bools.
func (e *Engine) SubDenseSparse(ctx context.Context, x *tensor.Tensor, s *tensor.Sparse,
	alpha Number) (*tensor.Tensor, error) {
	if x.DType() == tensor.Bool || s.DType() == tensor.Bool {
		return nil, errSubtractBools
	}
	return e.AddDenseSparse(ctx, x, s, alpha.negated())
}

// AddSparseInPlace adds alpha*s to x, which must have the same shape. The values of s may share
// memory with x. The error is tensor.ErrReadOnly, tensor.ErrOverlap if elements of x may share
// memory, a *ValueError if the shapes differ, if alpha does not fit the dtype, or if the sums cannot
// be cast to the dtype of x, a *LimitError, or another error of package tensor. After an error x is
// unchanged.
func (e *Engine) AddSparseInPlace(ctx context.Context, x *tensor.Tensor, s *tensor.Sparse,
	alpha Number) error {
	d := sparseResultType(s.DType(), x)
	if err := checkDenseSparse(x, s, alpha, d); err != nil {
		return err
	}
	if err := checkInPlace(x, nil, d); err != nil {
		return err
	}
	overlap, err := tensor.Overlap(x, s.Values())
	if err != nil {
		return err
	}
	if !overlap && d == x.DType() && computeType(d) == d && x.IsContiguous() {
		_, err := e.scatterOnto(x, s, d, alpha)
		return err
	}
	sum, err := e.AddDenseSparse(ctx, x, s, alpha)
	if err != nil {
		return err
	}
	if sum, err = e.cast(sum, x.DType()); err != nil {
		return err
	}
	return x.CopyFrom(sum)
}

// checkDenseSparse returns nil if x+alpha*s is defined for a result of dtype d, and otherwise a
// *ValueError.
func checkDenseSparse(x *tensor.Tensor, s *tensor.Sparse, alpha Number, d tensor.DType) error {
	if !slices.Equal(x.Shape(), s.Shape()) {
		return valueErrorf("add: expected 'self' and 'other' to have same size, but self has size %s while other has size %s (FYI: dense-sparse addition does not currently support broadcasting)",
			sizes(x.Shape()), sizes(s.Shape()))
	}
	return checkAlpha(alpha, d)
}

// scatterOnto adds alpha*s, cast to d, to the contiguous tensor sum, whose dtype is d or
// computeType(d), and returns it cast to d. A value that is listed repeatedly is added repeatedly. The
// error is a *tensor.DTypeError for repeated bools, a *LimitError, or another error of package
// tensor; sum is then unchanged.
func (e *Engine) scatterOnto(sum *tensor.Tensor, s *tensor.Sparse, d tensor.DType,
	alpha Number) (*tensor.Tensor, error) {
	if d == tensor.Bool {
		var err error
		if s, err = s.Coalesce(); err != nil {
			return nil, err
		}
	}
	at, err := e.positions(s)
	if err != nil {
		return nil, err
	}
	values, err := e.computable(s.Values(), d)
	if err != nil {
		return nil, err
	}
	if sum, err = e.cast(sum, computeType(d)); err != nil {
		return nil, err
	}
	switch sum.DType() {
	case tensor.U8:
		err = scatter[uint8](e, sum, values, at, alpha)
	case tensor.I8:
		err = scatter[int8](e, sum, values, at, alpha)
	case tensor.I16:
		err = scatter[int16](e, sum, values, at, alpha)
	case tensor.I32:
		err = scatter[int32](e, sum, values, at, alpha)
	case tensor.I64:
		err = scatter[int64](e, sum, values, at, alpha)
	case tensor.F32:
		err = scatter[float32](e, sum, values, at, alpha)
	case tensor.F64:
		err = scatter[float64](e, sum, values, at, alpha)
	case tensor.C64:
		err = scatter[complex64](e, sum, values, at, alpha)
	default:
		err = scatter[complex128](e, sum, values, at, alpha)
	}
	if err != nil {
		return nil, err
	}
	return e.cast(sum, d)
}

// scatter adds alpha times the k-th part of values to part at[k] of the contiguous tensor sum. T must
// be the Go type of the dtype of both.
func scatter[T number](e *Engine, sum, values *tensor.Tensor, at []int, alpha Number) error {
	from, err := elements[T](e, values)
	if err != nil || len(from) == 0 {
		return err
	}
	to, err := tensor.MutableData[T](sum)
	if err != nil {
		return err
	}
	n, op := len(from)/len(at), operationOf[T](opAdd, alpha)
	for k, position := range at {
		part := to[position*n:][:n]
		arithmetic(op, part, part, from[k*n:])
	}
	runtime.KeepAlive(values)
	runtime.KeepAlive(sum)
	return nil
}
