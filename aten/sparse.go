package aten

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// sparse returns a new sparse tensor of the given shape with copies of indices and values, so that
// it does not share memory with arguments of the operator. The error is a *LimitError or an error
// of package tensor.
func (c *call) sparse(indices, values *tensor.Tensor, shape []int) (*tensor.Sparse, error) {
	indices, err := c.clone(indices)
	if err != nil {
		return nil, err
	}
	if values, err = c.clone(values); err != nil {
		return nil, err
	}
	return tensor.NewSparse(indices, values, shape...)
}

// withValues returns a new sparse tensor with the shape and a copy of the indices of s. It retains
// values, which are not copied, as the values. The error is a *LimitError or an error of package
// tensor.
func (c *call) withValues(s *tensor.Sparse, values *tensor.Tensor) (*tensor.Sparse, error) {
	indices, err := c.clone(s.Indices())
	if err != nil {
		return nil, err
	}
	return tensor.NewSparse(indices, values, s.Shape()...)
}

// ofSparse returns a kernel that calls f with argument 0, a sparse tensor, and returns the results
// of f. If argument 0 is not sparse, the kernel does not call f and returns a *ValueError.
func ofSparse(f func(c *call, s *tensor.Sparse) (Value, error)) kernel {
	return func(c *call) (Value, error) {
		s, ok := c.args[0].(*tensor.Sparse)
		if !ok {
			return nil, valueErrorf("expected a sparse tensor, not a %s", describe(c.args[0]))
		}
		return f(c, s)
	}
}

// ofCoalesced returns a kernel that calls f with argument 0, a coalesced sparse tensor, and returns
// the tensor that f returns, without a copy. If argument 0 is not sparse or not coalesced, the
// error of the kernel is a *ValueError. In its text, the string what names the part of the tensor
// that f returns.
func ofCoalesced(what string, f func(*tensor.Sparse) *tensor.Tensor) kernel {
	return ofSparse(func(_ *call, s *tensor.Sparse) (Value, error) {
		if !s.Coalesced() {
			return nil, valueErrorf("Cannot get %s on an uncoalesced tensor, please call .coalesce() first", what)
		}
		return f(s), nil
	})
}

// makeSparse returns a kernel that creates a sparse tensor from copies of argument 0, the indices,
// and argument 1, the values, which it casts to the requested dtype. If inferred is false, argument
// 2 is the shape. If inferred is true there is no such argument, and the shape is the smallest one
// that contains all indices. The next arguments are dtype, layout, device and pin_memory. The error
// of the kernel is a *ValueError, a *LimitError or an error of package tensor.
func makeSparse(inferred bool) kernel {
	return func(c *call) (Value, error) {
		indices, values, shape, options := c.tensor(0), c.tensor(1), c.ints(2), 3
		if inferred {
			var err error
			if shape, err = c.smallestShape(indices, values); err != nil {
				return nil, err
			}
			options = 2
		}
		if layout := c.args[options+1]; layout == int64(1) { // the sparse layout
			c.args[options+1] = nil
		}
		d, err := c.options(options, values.DType())
		if err != nil {
			return nil, err
		}
		if values, err = c.cast(values, d); err != nil {
			return nil, err
		}
		return value(c.sparse(indices, values, shape))
	}
}

// smallestShape returns, in a new slice, the smallest shape that a sparse tensor can have whose
// indices are the matrix at and whose values are the tensor list. If there are no indices, the
// sizes of the sparse dimensions are 0. The error is a *ValueError if the ranks are wrong, if there
// are more than tensor.MaxRank sparse dimensions, or if the largest index of a dimension is
// negative or too large; otherwise it is an error of elements, for example if the indices are not
// I64.
func (c *call) smallestShape(at, list *tensor.Tensor) ([]int, error) {
	if at.Rank() != 2 || list.Rank() < 1 {
		return nil, valueErrorf("indices must be a matrix and values have a dimension")
	}
	data, err := elements[int64](c, at)
	if err != nil {
		return nil, err
	}
	sparse, n := at.Shape()[0], at.Shape()[1]
	if sparse > tensor.MaxRank {
		return nil, valueErrorf("indices have %d dimensions; the limit is %d", sparse, tensor.MaxRank)
	}
	if n == 0 {
		return append(make([]int, sparse), list.Shape()[1:]...), nil
	}
	var shape []int
	for dim := range sparse {
		last := slices.Max(data[dim*n:][:n])
		if last < 0 || toInt(last) == toInt(1<<63-1) {
			return nil, valueErrorf("%d is not a valid index", last)
		}
		shape = append(shape, int(last)+1)
	}
	return append(shape, list.Shape()[1:]...), nil
}

// scaleSparse returns a new sparse tensor of dtype d with the values of s multiplied by the number
// factor, and a copy of the indices of s. The error is a *LimitError or an error of package tensor.
func (c *call) scaleSparse(s *tensor.Sparse, factor Value, d tensor.DType) (*tensor.Sparse, error) {
	values, err := c.scale(s.Values(), factor, d)
	if err != nil {
		return nil, err
	}
	if values, err = c.cast(values, d); err != nil {
		return nil, err
	}
	return c.withValues(s, values)
}

// addSparse returns x + factor*s, in dtype d, as a new tensor. x is a *tensor.Tensor or a
// *tensor.Sparse of the same shape as s, and the result has the same Go type as x. The error is a
// *ValueError if the shapes, or the numbers of sparse dimensions, differ; otherwise it is a
// *LimitError or an error of package tensor.
func (c *call) addSparse(x Value, s *tensor.Sparse, factor Value, d tensor.DType) (Value, error) {
	s, err := c.scaleSparse(s, factor, d)
	if err != nil {
		return nil, err
	}
	if other, ok := x.(*tensor.Sparse); ok {
		return value(c.addSparseSparse(other, s, d))
	}
	t := x.(*tensor.Tensor)
	if !slices.Equal(t.Shape(), s.Shape()) {
		return nil, valueErrorf("add: expected 'self' and 'other' to have same size, but self has size %s while other has size %s (FYI: dense-sparse addition does not currently support broadcasting)", sizes(t.Shape()), sizes(s.Shape()))
	}
	if err := c.checkSize(d, s.Shape()); err != nil {
		return nil, err
	}
	full, err := s.ToDense()
	if err != nil {
		return nil, err
	}
	return value(c.binary(opAdd, t, full, d))
}

// addSparseSparse returns the sum of a and b as a new sparse tensor of dtype d, which b must have.
// If both a and b are coalesced, so is the sum. Otherwise it lists the indices and values of a,
// then those of b. The error is a *ValueError if the shapes or the numbers of sparse dimensions
// differ, a *LimitError, or an error of package tensor.
func (c *call) addSparseSparse(a, b *tensor.Sparse, d tensor.DType) (*tensor.Sparse, error) {
	if !slices.Equal(a.Shape(), b.Shape()) {
		return nil, valueErrorf("add: expected sizes of 'self' and 'other' to match, but %s != %s", sizes(a.Shape()), sizes(b.Shape()))
	}
	if a.Indices().Shape()[0] != b.Indices().Shape()[0] {
		return nil, valueErrorf("add: expected 'self' and 'other' to have same number of sparse dimensions, but they have %d and %d", a.Indices().Shape()[0], b.Indices().Shape()[0])
	}
	lists := []*tensor.Tensor{a.Indices(), b.Indices()}
	indices, err := c.concat(lists, lists, 1)
	if err != nil {
		return nil, err
	}
	first, err := c.cast(a.Values(), d)
	if err != nil {
		return nil, err
	}
	lists = []*tensor.Tensor{first, b.Values()}
	values, err := c.concat(lists, lists, 0)
	if err != nil {
		return nil, err
	}
	sum, err := tensor.NewSparse(indices, values, a.Shape()...)
	if err != nil || !a.Coalesced() || !b.Coalesced() {
		return sum, err
	}
	return sum.Coalesce()
}

// toDense is the kernel of aten::to_dense: it returns argument 0, a sparse tensor, as a new dense
// tensor, cast to the dtype in argument 1 unless that is nil. If argument 0 is dense, it is only
// cast; as in PyTorch, the result is then the argument itself if the dtype does not change. The error
// is that of call.dtype, a *LimitError, or an error of package tensor.
func toDense(c *call) (Value, error) {
	s, ok := c.args[0].(*tensor.Sparse)
	t, _ := c.args[0].(*tensor.Tensor)
	if ok {
		if err := c.checkSize(s.DType(), s.Shape()); err != nil {
			return nil, err
		}
		var err error
		if t, err = s.ToDense(); err != nil {
			return nil, err
		}
	}
	d, err := c.dtype(1, t.DType())
	if err != nil {
		return nil, err
	}
	return value(c.cast(t, d))
}

// sumSparse is the kernel of aten::_sparse_sum: it returns the sum of all values of s as a new
// dense tensor of rank 0. The sum of integers or bools is I64. The error is a *LimitError or an
// error of package tensor.
func sumSparse(c *call, s *tensor.Sparse) (Value, error) {
	return sum(false)(&call{ctx: c.ctx, limits: c.limits, args: []Value{s.Values(), nil}})
}

// mulScalar is the kernel of aten::mul for argument 0, a dense or sparse tensor, and argument 1, a
// number. It returns the product as a new tensor, sparse if the argument is. The error is a
// *LimitError or an error of package tensor.
func mulScalar(c *call) (Value, error) {
	if s, ok := c.args[0].(*tensor.Sparse); ok {
		return value(c.scaleSparse(s, c.args[1], resultType(s, c.args[1])))
	}
	return value(multiply(c))
}

// divScalar is the kernel of aten::div for argument 0, a dense or sparse tensor, and argument 1, a
// number. It returns the quotient as a new tensor, sparse if the argument is. Quotients of integers
// and bools are F32. The error is a *LimitError or an error of package tensor.
func divScalar(c *call) (Value, error) {
	s, ok := c.args[0].(*tensor.Sparse)
	if !ok {
		return value(divide(c))
	}
	values, err := c.binary(opDiv, s.Values(), c.args[1], floatType(resultType(s, c.args[1])))
	if err != nil {
		return nil, err
	}
	return value(c.withValues(s, values))
}

// neg is the kernel of aten::neg: it returns argument 0, a dense or sparse tensor, with the
// opposite sign as a new tensor, sparse if the argument is. The error is a *ValueError for a tensor
// of bools, a *LimitError, or an error of package tensor.
func neg(c *call) (Value, error) {
	s, ok := c.args[0].(*tensor.Sparse)
	if !ok {
		return value(c.applySign(negate, c.tensor(0)))
	}
	values, err := c.applySign(negate, s.Values())
	if err != nil {
		return nil, err
	}
	return value(c.withValues(s, values))
}

// sparseProduct returns the product of the sparse matrix s and the dense matrix y as a new dense
// tensor. The error is a *ValueError if one is not a matrix, if the dtypes differ or are Bool, or
// if the sizes do not fit; otherwise it is a *LimitError or an error of package tensor, such as a
// *tensor.IndexError for an index outside s.
func (c *call) sparseProduct(s *tensor.Sparse, y *tensor.Tensor) (*tensor.Tensor, error) {
	switch {
	case len(s.Shape()) != 2 || s.Indices().Shape()[0] != 2:
		return nil, valueErrorf("self must be a matrix")
	case y.Rank() != 2:
		return nil, valueErrorf("mat2 must be a matrix")
	}
	if err := sameDType(s.Values(), y); err != nil {
		return nil, err
	}
	shape, d := s.Shape(), y.DType()
	if d == tensor.Bool {
		return nil, valueErrorf("matrices of bools cannot be multiplied")
	}
	if shape[1] != y.Shape()[0] {
		return nil, valueErrorf("mat1 and mat2 shapes cannot be multiplied (%dx%d and %dx%d)", shape[0], shape[1], y.Shape()[0], y.Shape()[1])
	}
	values, err := c.cast(s.Values(), computeType(d))
	if err != nil {
		return nil, err
	}
	if y, err = c.cast(y, computeType(d)); err != nil {
		return nil, err
	}
	var out *tensor.Tensor
	switch y.DType() {
	case tensor.U8:
		out, err = sparseMatmul[uint8](c, s, values, y)
	case tensor.I8:
		out, err = sparseMatmul[int8](c, s, values, y)
	case tensor.I16:
		out, err = sparseMatmul[int16](c, s, values, y)
	case tensor.I32:
		out, err = sparseMatmul[int32](c, s, values, y)
	case tensor.I64:
		out, err = sparseMatmul[int64](c, s, values, y)
	case tensor.F32:
		out, err = sparseMatmul[float32](c, s, values, y)
	case tensor.F64:
		out, err = sparseMatmul[float64](c, s, values, y)
	case tensor.C64:
		out, err = sparseMatmul[complex64](c, s, values, y)
	default:
		out, err = sparseMatmul[complex128](c, s, values, y)
	}
	if err != nil {
		return nil, err
	}
	return c.cast(out, d)
}

// sparseMatmul returns the product of the sparse matrix s and the dense matrix y as a new dense
// matrix. It takes the positions from s and the numbers from values, which are the values of s cast
// to the dtype of y. T must be the Go type of that dtype. The error is a *tensor.IndexError for an
// index outside s, a *LimitError, or another error of package tensor.
func sparseMatmul[T number](c *call, s *tensor.Sparse, values, y *tensor.Tensor) (*tensor.Tensor, error) {
	n := y.Shape()[1]
	out, to, err := newTensor[T](c, s.Shape()[0], n)
	if err != nil {
		return nil, err
	}
	index, err := elements[int64](c, s.Indices())
	if err != nil {
		return nil, err
	}
	factors, err := elements[T](c, values)
	if err != nil {
		return nil, err
	}
	data, err := elements[T](c, y)
	if err != nil {
		return nil, err
	}
	for k, factor := range factors {
		at := [2]int64{index[k], index[len(factors)+k]} // row and column
		for dim, i := range at {
			// The memory of the indices may have been modified since the sparse tensor was created.
			if i < 0 || i >= int64(s.Shape()[dim]) {
				return nil, &tensor.IndexError{What: "sparse dimension", Index: toInt(i), Len: s.Shape()[dim]}
			}
		}
		addMultiple(to[int(at[0])*n:][:n], data[int(at[1])*n:][:n], factor)
	}
	return out, nil
}
