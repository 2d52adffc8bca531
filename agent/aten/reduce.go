package aten

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// reduction makes rows of a tensor, each of which becomes one element.
type reduction struct {
	rows  *tensor.Tensor // the elements of a row are neighbours
	shape []int          // of the result
	n     int            // elements of a row
}

// reduceDims is the dimensions that a reduction goes over, sorted: those of
// argument i, all where there are none.
func (c *call) reduceDims(i, rank int) ([]int, error) {
	list := c.ints(i)
	if len(list) == 0 {
		return allDims(rank), nil
	}
	for j := range list {
		var err error
		if list[j], err = wrapDim(list[j], rank); err != nil {
			return nil, err
		}
	}
	slices.Sort(list)
	for j := 1; j < len(list); j++ {
		if list[j] == list[j-1] {
			return nil, fault("dim %d appears multiple times in the list of dims", list[j])
		}
	}
	if rank == 0 {
		return nil, nil
	}
	return list, nil
}

func allDims(rank int) []int {
	dims := make([]int, rank)
	for i := range dims {
		dims[i] = i
	}
	return dims
}

// reduce prepares a reduction over sorted dims.
func (c *call) reduce(t *tensor.Tensor, dims []int, keep bool) (*reduction, error) {
	r := &reduction{n: 1, shape: []int{}}
	var order []int
	for dim, size := range t.Shape() {
		_, gone := slices.BinarySearch(dims, dim)
		switch {
		case !gone:
			order = append(order, dim)
			r.shape = append(r.shape, size)
		case keep:
			r.shape = append(r.shape, 1)
		}
	}
	for _, dim := range dims {
		r.n *= t.Shape()[dim]
	}
	var err error
	if r.rows, err = t.Permute(append(order, dims...)...); err != nil {
		return nil, err
	}
	r.rows, err = c.contiguous(r.rows)
	return r, err
}

// fold makes one element of each row.
func fold[S, T tensor.Element](c *call, r *reduction, f func(row []S) T) (*tensor.Tensor, error) {
	out, to, err := fresh[T](c, r.shape...)
	if err != nil {
		return nil, err
	}
	from, err := elements[S](c, r.rows)
	if err != nil {
		return nil, err
	}
	for i := range to {
		to[i] = f(from[i*r.n:][:r.n])
	}
	return out, nil
}

// total adds up numbers of one type in another.
func total[S realNum, T int64 | float64](row []S) T {
	var sum T
	for _, v := range row {
		sum += T(v)
	}
	return sum
}

func complexTotal[S cmplxNum](row []S) complex128 {
	var sum complex128
	for _, v := range row {
		sum += complex128(v)
	}
	return sum
}

// sums adds up the rows, in 64 bits, complex numbers in 128.
func (c *call) sums(r *reduction) (*tensor.Tensor, error) {
	rows, err := c.cast(r.rows, computed(r.rows.DType()))
	if err != nil {
		return nil, err
	}
	r.rows = rows
	switch rows.DType() {
	case tensor.U8:
		return fold(c, r, total[uint8, int64])
	case tensor.I8:
		return fold(c, r, total[int8, int64])
	case tensor.I16:
		return fold(c, r, total[int16, int64])
	case tensor.I32:
		return fold(c, r, total[int32, int64])
	case tensor.I64:
		return fold(c, r, total[int64, int64])
	case tensor.F32:
		return fold(c, r, total[float32, float64])
	case tensor.F64:
		return fold(c, r, total[float64, float64])
	case tensor.C64:
		return fold(c, r, complexTotal[complex64])
	default:
		return fold(c, r, complexTotal[complex128])
	}
}

func sumAll(c *call) (*tensor.Tensor, error) {
	return c.sum(allDims(c.tensor(0).Rank()), false, 1)
}

func sumDims(c *call) (*tensor.Tensor, error) {
	dims, err := c.reduceDims(1, c.tensor(0).Rank())
	if err != nil {
		return nil, err
	}
	return c.sum(dims, c.bool(2), 3)
}

// sum makes int64 of integers and bools unless argument dtype says otherwise.
func (c *call) sum(dims []int, keep bool, dtype int) (*tensor.Tensor, error) {
	x := c.tensor(0)
	d := x.DType()
	if isInt(d) || d == tensor.Bool {
		d = tensor.I64
	}
	d, err := c.dtype(dtype, d)
	if err != nil {
		return nil, err
	}
	if c.given(dtype) {
		if x, err = c.cast(x, d); err != nil {
			return nil, err
		}
	}
	r, err := c.reduce(x, dims, keep)
	if err != nil {
		return nil, err
	}
	out, err := c.sums(r)
	if err != nil {
		return nil, err
	}
	return c.cast(out, d)
}

func meanAll(c *call) (*tensor.Tensor, error) {
	return c.mean(allDims(c.tensor(0).Rank()), false, 1)
}

func meanDims(c *call) (*tensor.Tensor, error) {
	dims, err := c.reduceDims(1, c.tensor(0).Rank())
	if err != nil {
		return nil, err
	}
	return c.mean(dims, c.bool(2), 3)
}

// mean is that of fractions only, as in PyTorch; without any it is NaN.
func (c *call) mean(dims []int, keep bool, dtype int) (*tensor.Tensor, error) {
	x := c.tensor(0)
	d, err := c.dtype(dtype, x.DType())
	if err != nil {
		return nil, err
	}
	if !isFloat(d) && !isComplex(d) {
		return nil, fault("mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. Got: %s", torchNames[d])
	}
	if x, err = c.cast(x, d); err != nil {
		return nil, err
	}
	r, err := c.reduce(x, dims, keep)
	if err != nil {
		return nil, err
	}
	sums, err := c.sums(r)
	if err != nil {
		return nil, err
	}
	count, err := c.scalar(float64(r.n), sums.DType())
	if err != nil {
		return nil, err
	}
	out, err := c.arith(opDiv, sums, count)
	if err != nil {
		return nil, err
	}
	return c.cast(out, d)
}
