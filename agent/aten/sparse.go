package aten

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// sparse makes a sparse tensor of copies of its parts, which so nobody can change.
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

// withValues makes a sparse tensor of new values, which are not copied,
// and of a copy of the indices of s.
func (c *call) withValues(s *tensor.Sparse, values *tensor.Tensor) (*tensor.Sparse, error) {
	indices, err := c.clone(s.Indices())
	if err != nil {
		return nil, err
	}
	return tensor.NewSparse(indices, values, s.Shape()...)
}

func (c *call) asSparse(i int) (*tensor.Sparse, error) {
	s, ok := c.args[i].(*tensor.Sparse)
	if !ok {
		return nil, fault("expected a sparse tensor, not a %s", describe(c.args[i]))
	}
	return s, nil
}

// makeSparse is given the shape.
func makeSparse(c *call) (Value, error) { return value(c.makeSparse(c.ints(2), 3)) }

// makeSparseAround finds the smallest shape.
func makeSparseAround(c *call) (Value, error) {
	shape, err := c.around(c.tensor(0), c.tensor(1))
	if err != nil {
		return nil, err
	}
	return value(c.makeSparse(shape, 2))
}

func (c *call) makeSparse(shape []int, options int) (*tensor.Sparse, error) {
	values := c.tensor(1)
	if layout := c.args[options+1]; layout == int64(1) { // what it is
		c.args[options+1] = nil
	}
	d, err := c.options(options, values.DType())
	if err != nil {
		return nil, err
	}
	if values, err = c.cast(values, d); err != nil {
		return nil, err
	}
	return c.sparse(c.tensor(0), values, shape)
}

// around is the smallest shape that has all indices.
func (c *call) around(at, list *tensor.Tensor) ([]int, error) {
	if at.Rank() != 2 || list.Rank() < 1 {
		return nil, fault("indices must be a matrix and values have a dimension")
	}
	data, err := elements[int64](c, at)
	if err != nil {
		return nil, err
	}
	sparse, n := at.Shape()[0], at.Shape()[1]
	if sparse > tensor.MaxRank {
		return nil, fault("indices have %d dimensions; the limit is %d", sparse, tensor.MaxRank)
	}
	if n == 0 {
		return append(make([]int, sparse), list.Shape()[1:]...), nil
	}
	var shape []int
	for dim := range sparse {
		last := slices.Max(data[dim*n:][:n])
		if last < 0 || toInt(last) == toInt(1<<63-1) {
			return nil, fault("%d is no index", last)
		}
		shape = append(shape, int(last)+1)
	}
	return append(shape, list.Shape()[1:]...), nil
}

// scaled multiplies the values, in dtype d.
func (c *call) scaled(s *tensor.Sparse, factor Value, d tensor.DType) (*tensor.Sparse, error) {
	values, err := c.scale(s.Values(), factor, d)
	if err != nil {
		return nil, err
	}
	if values, err = c.cast(values, d); err != nil {
		return nil, err
	}
	return c.withValues(s, values)
}

// addSparse adds factor*s to a tensor of the same shape.
func (c *call) addSparse(x Value, s *tensor.Sparse, factor Value, d tensor.DType) (Value, error) {
	s, err := c.scaled(s, factor, d)
	if err != nil {
		return nil, err
	}
	if other, ok := x.(*tensor.Sparse); ok {
		return value(c.joinSparse(other, s, d))
	}
	t := x.(*tensor.Tensor)
	if !slices.Equal(t.Shape(), s.Shape()) {
		return nil, fault("add: expected 'self' and 'other' to have same size, but self has size %s while other has size %s (FYI: dense-sparse addition does not currently support broadcasting)", sizes(t.Shape()), sizes(s.Shape()))
	}
	if err := c.room(d, s.Shape()); err != nil {
		return nil, err
	}
	full, err := s.ToDense()
	if err != nil {
		return nil, err
	}
	return value(c.binary(opAdd, t, full, d))
}

// joinSparse lists the values of both; where each place was listed once in both
// it is so in the sum.
func (c *call) joinSparse(a, b *tensor.Sparse, d tensor.DType) (*tensor.Sparse, error) {
	if !slices.Equal(a.Shape(), b.Shape()) {
		return nil, fault("add: expected sizes of 'self' and 'other' to match, but %s != %s", sizes(a.Shape()), sizes(b.Shape()))
	}
	if a.Indices().Shape()[0] != b.Indices().Shape()[0] {
		return nil, fault("add: expected 'self' and 'other' to have same number of sparse dimensions, but they have %d and %d", a.Indices().Shape()[0], b.Indices().Shape()[0])
	}
	lists := []*tensor.Tensor{a.Indices(), b.Indices()}
	indices, err := c.join(lists, lists, 1)
	if err != nil {
		return nil, err
	}
	first, err := c.cast(a.Values(), d)
	if err != nil {
		return nil, err
	}
	lists = []*tensor.Tensor{first, b.Values()}
	values, err := c.join(lists, lists, 0)
	if err != nil {
		return nil, err
	}
	sum, err := tensor.NewSparse(indices, values, a.Shape()...)
	if err != nil || !a.Coalesced() || !b.Coalesced() {
		return sum, err
	}
	return sum.Coalesce()
}

func toDense(c *call) (Value, error) {
	s, ok := c.args[0].(*tensor.Sparse)
	t, _ := c.args[0].(*tensor.Tensor)
	if ok {
		if err := c.room(s.DType(), s.Shape()); err != nil {
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

func coalesce(c *call) (Value, error) {
	s, err := c.asSparse(0)
	if err != nil {
		return nil, err
	}
	return value(s.Coalesce())
}

func isCoalesced(c *call) (Value, error) {
	s, err := c.asSparse(0)
	if err != nil {
		return nil, err
	}
	return s.Coalesced(), nil
}

func indicesOf(c *call) (Value, error) {
	s, err := c.asSparse(0)
	if err != nil {
		return nil, err
	}
	return s.Indices(), nil
}

func valuesOf(c *call) (Value, error) {
	s, err := c.asSparse(0)
	if err != nil {
		return nil, err
	}
	return s.Values(), nil
}

// coalesced is a kernel for what makes sense only where no place is listed twice.
func coalesced(what string, k kernel) kernel {
	return func(c *call) (Value, error) {
		s, err := c.asSparse(0)
		if err != nil {
			return nil, err
		}
		if !s.Coalesced() {
			return nil, fault("Cannot get %s on an uncoalesced tensor, please call .coalesce() first", what)
		}
		return k(c)
	}
}

// sumSparse adds up all values.
func sumSparse(c *call) (Value, error) {
	s, err := c.asSparse(0)
	if err != nil {
		return nil, err
	}
	inner := &call{ctx: c.ctx, limits: c.limits, args: []Value{s.Values(), nil}}
	return value(sumAll(inner))
}

// timesNumber multiplies a tensor of either kind by a number.
func timesNumber(c *call) (Value, error) {
	if s, ok := c.args[0].(*tensor.Sparse); ok {
		return value(c.scaled(s, c.args[1], meet(s, c.args[1])))
	}
	return value(multiply(c))
}

// byNumber divides a tensor of either kind by a number.
func byNumber(c *call) (Value, error) {
	s, ok := c.args[0].(*tensor.Sparse)
	if !ok {
		return value(divide(c))
	}
	values, err := c.binary(opDiv, s.Values(), c.args[1], floating(meet(s, c.args[1])))
	if err != nil {
		return nil, err
	}
	return value(c.withValues(s, values))
}

// negated is minus a tensor of either kind.
func negated(c *call) (Value, error) {
	s, ok := c.args[0].(*tensor.Sparse)
	if !ok {
		return value(c.signed(negate, c.tensor(0)))
	}
	values, err := c.signed(negate, s.Values())
	if err != nil {
		return nil, err
	}
	return value(c.withValues(s, values))
}

// sparseProduct multiplies a sparse matrix by a dense one.
func (c *call) sparseProduct(s *tensor.Sparse, y *tensor.Tensor) (*tensor.Tensor, error) {
	switch {
	case len(s.Shape()) != 2 || s.Indices().Shape()[0] != 2:
		return nil, fault("self must be a matrix")
	case y.Rank() != 2:
		return nil, fault("mat2 must be a matrix")
	}
	if err := sameDType(s.Values(), y); err != nil {
		return nil, err
	}
	shape, d := s.Shape(), y.DType()
	if d == tensor.Bool {
		return nil, fault("matrices of bools are not multiplied")
	}
	if shape[1] != y.Shape()[0] {
		return nil, fault("mat1 and mat2 shapes cannot be multiplied (%dx%d and %dx%d)", shape[0], shape[1], y.Shape()[0], y.Shape()[1])
	}
	values, err := c.cast(s.Values(), computed(d))
	if err != nil {
		return nil, err
	}
	if y, err = c.cast(y, computed(d)); err != nil {
		return nil, err
	}
	out, err := c.sparseRows(s, values, y)
	if err != nil {
		return nil, err
	}
	return c.cast(out, d)
}

func (c *call) sparseRows(s *tensor.Sparse, values, y *tensor.Tensor) (*tensor.Tensor, error) {
	switch y.DType() {
	case tensor.U8:
		return sparseTimes[uint8](c, s, values, y)
	case tensor.I8:
		return sparseTimes[int8](c, s, values, y)
	case tensor.I16:
		return sparseTimes[int16](c, s, values, y)
	case tensor.I32:
		return sparseTimes[int32](c, s, values, y)
	case tensor.I64:
		return sparseTimes[int64](c, s, values, y)
	case tensor.F32:
		return sparseTimes[float32](c, s, values, y)
	case tensor.F64:
		return sparseTimes[float64](c, s, values, y)
	case tensor.C64:
		return sparseTimes[complex64](c, s, values, y)
	default:
		return sparseTimes[complex128](c, s, values, y)
	}
}

func sparseTimes[T number](c *call, s *tensor.Sparse, values, y *tensor.Tensor) (*tensor.Tensor, error) {
	n := y.Shape()[1]
	out, to, err := fresh[T](c, s.Shape()[0], n)
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
		row, column := index[k], index[len(factors)+k]
		if err := checkPlace(s.Shape(), row, column); err != nil {
			return nil, err
		}
		addMultiple(to[int(row)*n:][:n], data[int(column)*n:][:n], factor)
	}
	return out, nil
}

// checkPlace fails for a place outside of the matrix. There was none when the
// sparse tensor was made, but its memory may have changed since.
func checkPlace(shape []int, index ...int64) error {
	for dim, i := range index {
		if i < 0 || i >= int64(shape[dim]) {
			return &tensor.IndexError{What: "sparse dimension", Index: toInt(i), Len: shape[dim]}
		}
	}
	return nil
}
