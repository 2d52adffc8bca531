package aten

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// sparse returns a sparse tensor of copies of indices and values, so that the caller of the operator
// cannot modify them. The error is a *LimitError or that of tensor.NewSparse.
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

// withValues returns a sparse tensor with the shape and a copy of the indices of s, and with the given
// values, which it retains. The error is a *LimitError or that of tensor.NewSparse.
func (c *call) withValues(s *tensor.Sparse, values *tensor.Tensor) (*tensor.Sparse, error) {
	indices, err := c.clone(s.Indices())
	if err != nil {
		return nil, err
	}
	return tensor.NewSparse(indices, values, s.Shape()...)
}

// ofSparse returns a kernel that calls f with argument 0, which must be a sparse tensor.
func ofSparse(f func(c *call, s *tensor.Sparse) (Value, error)) kernel {
	return func(c *call) (Value, error) {
		s, ok := c.args[0].(*tensor.Sparse)
		if !ok {
			return nil, valueErrorf("expected a sparse tensor, not a %s", describe(c.args[0]))
		}
		return f(c, s)
	}
}

// ofCoalesced returns a kernel that returns f of argument 0, which must be a coalesced sparse tensor;
// what names that part of the tensor in the error.
func ofCoalesced(what string, f func(*tensor.Sparse) *tensor.Tensor) kernel {
	return ofSparse(func(_ *call, s *tensor.Sparse) (Value, error) {
		if !s.Coalesced() {
			return nil, valueErrorf("Cannot get %s on an uncoalesced tensor, please call .coalesce() first", what)
		}
		return f(s), nil
	})
}

// makeSparse returns a kernel that creates a sparse tensor from indices, values and a shape. If
// inferred is set there is no argument for the shape: the kernel uses the smallest one that contains
// all indices.
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

// smallestShape returns the smallest shape of a sparse tensor whose indices are the tensor at and whose
// values are the tensor list. The error is a *ValueError if their ranks do not fit or an index is
// invalid, or that of elements.
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

// scaleSparse returns a sparse tensor with the values of s times factor, in dtype d, and a copy of its
// indices.
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

// addSparse returns x + factor*s in dtype d. x is a dense or sparse tensor of the same shape as s, and
// the result is dense or sparse like x. The error is a *ValueError if the shapes differ, a *LimitError,
// or one of package tensor.
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

// addSparseSparse returns the sum of two sparse tensors, of which b has dtype d: a new tensor with the
// indices and values of both. If both are coalesced, so is the sum. The error is a *ValueError if the
// shapes or the numbers of sparse dimensions differ.
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

// toDense is a kernel that returns a sparse tensor as a dense one, cast to the dtype of argument 1, if
// it is given. A dense tensor is only cast.
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

// sumSparse returns the sum of all values of a sparse tensor.
func sumSparse(c *call, s *tensor.Sparse) (Value, error) {
	return sum(false)(&call{ctx: c.ctx, limits: c.limits, args: []Value{s.Values(), nil}})
}

// mulScalar is a kernel that multiplies a dense or sparse tensor by a number.
func mulScalar(c *call) (Value, error) {
	if s, ok := c.args[0].(*tensor.Sparse); ok {
		return value(c.scaleSparse(s, c.args[1], resultType(s, c.args[1])))
	}
	return value(multiply(c))
}

// divScalar is a kernel that divides a dense or sparse tensor by a number.
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

// neg is a kernel that negates a dense or sparse tensor.
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

// sparseProduct returns the dense product of a sparse matrix and a dense one. The error is a
// *ValueError if dtypes or shapes do not match, a *LimitError, or a *tensor.IndexError.
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

// sparseMatmul returns a new matrix with the product of s, whose values are given as values, and the
// matrix y. The elements of values and y must have type T. The error is a *LimitError or a
// *tensor.IndexError.
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
