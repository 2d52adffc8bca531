package ops

import (
	"context"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Max returns the maximum of x as a new tensor without dimensions. NaN counts as the largest. The
// error is a *ValueError if x is empty or complex, a *LimitError, or an error of package tensor.
func (e *Engine) Max(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	values, _, err := e.extremes(x, allDims(x.Rank()), false, false)
	return values, err
}

// Min returns the minimum of x, as Max does. NaN counts as the smallest.
func (e *Engine) Min(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	values, _, err := e.extremes(x, allDims(x.Rank()), false, true)
	return values, err
}

// MaxDim returns two new tensors: the maxima of x along dimension dim, and the I64 indices of the
// first element of x with that value. They keep the dimension, with size 1, if keepDim is true. A
// negative dim counts from the last dimension. The error is a *ValueError if there is no such
// dimension; the others are those of Max.
func (e *Engine) MaxDim(ctx context.Context, x *tensor.Tensor, dim int,
	keepDim bool) (values, indices *tensor.Tensor, err error) {
	if !onHost(x) {
		return e.deviceMaxDim(ctx, x, dim, keepDim)
	}
	return e.extremesOfDim(x, dim, keepDim, false)
}

// MinDim returns the minima of x along dimension dim and their indices, as MaxDim does.
func (e *Engine) MinDim(_ context.Context, x *tensor.Tensor, dim int,
	keepDim bool) (values, indices *tensor.Tensor, err error) {
	return e.extremesOfDim(x, dim, keepDim, true)
}

// ArgMax returns the index of the maximum of the flattened x, the first one of several, as a new I64
// tensor: without dimensions, or with all dimensions of x in size 1 if keepDim is true. For the
// indices along one dimension see MaxDim. The errors are those of Max.
func (e *Engine) ArgMax(_ context.Context, x *tensor.Tensor, keepDim bool) (*tensor.Tensor, error) {
	_, indices, err := e.extremes(x, allDims(x.Rank()), keepDim, false)
	return indices, err
}

// ArgMin returns the index of the minimum of the flattened x, as ArgMax does.
func (e *Engine) ArgMin(_ context.Context, x *tensor.Tensor, keepDim bool) (*tensor.Tensor, error) {
	_, indices, err := e.extremes(x, allDims(x.Rank()), keepDim, true)
	return indices, err
}

// extremesOfDim is MaxDim, or MinDim if low is true.
func (e *Engine) extremesOfDim(x *tensor.Tensor, dim int, keep,
	low bool) (values, indices *tensor.Tensor, err error) {
	if dim, err = wrapDim(dim, x.Rank()); err != nil {
		return nil, nil, err
	}
	var dims []int
	if x.Rank() > 0 {
		dims = []int{dim}
	}
	return e.extremes(x, dims, keep, low)
}

// extremes returns two new tensors: values has the maxima of x over dims, or the minima if low is
// true, in the dtype of x, and indices their I64 indices in row-major order of dims. dims must be
// sorted. The results keep these dimensions with size 1 if keep is true. The error is a *ValueError
// if there are no elements to compare or x is complex, a *LimitError, or an error of package
// tensor.
func (e *Engine) extremes(x *tensor.Tensor, dims []int, keep, low bool) (values, indices *tensor.Tensor,
	err error) {
	d := x.DType()
	if x, err = e.computable(x, d); err != nil {
		return nil, nil, err
	}
	r, err := e.reduce(x, dims, keep)
	if err != nil {
		return nil, nil, err
	}
	if r.n == 0 {
		return nil, nil, errNoExtreme
	}
	switch x.DType() {
	case tensor.U8:
		values, indices, err = extremesOfRows[uint8](e, r, low)
	case tensor.I8:
		values, indices, err = extremesOfRows[int8](e, r, low)
	case tensor.I16:
		values, indices, err = extremesOfRows[int16](e, r, low)
	case tensor.I32:
		values, indices, err = extremesOfRows[int32](e, r, low)
	case tensor.I64:
		values, indices, err = extremesOfRows[int64](e, r, low)
	case tensor.F32:
		values, indices, err = extremesOfRows[float32](e, r, low)
	case tensor.F64:
		values, indices, err = extremesOfRows[float64](e, r, low)
	default:
		return nil, nil, valueErrorf("complex numbers cannot be ordered")
	}
	if err != nil {
		return nil, nil, err
	}
	values, err = e.cast(values, d)
	return values, indices, err
}

var errNoExtreme = &ValueError{"Expected reduction dim to be specified for input.numel() == 0, and to have non-zero size."}

// extremesOfRows returns two new tensors of the shape r.shape: values has the maximum of each row of
// r, or its minimum if low is true; indices, of dtype I64, has the index of the first such element
// in the row. A NaN counts as the extreme. The rows must not be empty, and T must be the Go type of
// their dtype. The error is a *LimitError or an error of package tensor.
func extremesOfRows[T realNum](e *Engine, r *reduction, low bool) (values, indices *tensor.Tensor,
	err error) {
	find := argMax[T]
	if low {
		find = argMin[T]
	}
	if indices, err = fold(e, r, func(row []T) int64 { return int64(find(row)) }); err != nil {
		return nil, nil, err
	}
	values, err = fold(e, r, func(row []T) T { return row[find(row)] })
	return values, indices, err
}

// argMax returns the index of the first maximum of row, which must not be empty. If row contains
// NaN, the result is the index of the first NaN.
func argMax[T realNum](row []T) int {
	best := 0
	for i, v := range row {
		if v != v { // NaN
			return i
		}
		if v > row[best] {
			best = i
		}
	}
	return best
}

// argMin returns the index of the first minimum of row, which must not be empty. If row contains
// NaN, the result is the index of the first NaN.
func argMin[T realNum](row []T) int {
	best := 0
	for i, v := range row {
		if v != v { // NaN
			return i
		}
		if v < row[best] {
			best = i
		}
	}
	return best
}

// reduction is a tensor arranged in rows, each of which is to be reduced to one element.
type reduction struct {
	rows  *tensor.Tensor // contiguous; n consecutive elements form a row
	shape []int          // of the result
	n     int            // elements of a row
}

// reduce returns t arranged in rows for a reduction over dims, which must be sorted: the elements
// of a row are those that are reduced to one element. If keep is true, the shape of the reduced
// tensor has the dimensions dims with size 1; otherwise it does not have them. The rows may share
// the memory of t. The errors are those of contiguous.
func (e *Engine) reduce(t *tensor.Tensor, dims []int, keep bool) (*reduction, error) {
	r := &reduction{n: 1, shape: reducedShape(t.Shape(), dims, keep)}
	order := make([]int, 0, t.Rank())
	next := 0
	for dim := range t.Shape() {
		if next < len(dims) && dims[next] == dim {
			next++
			continue
		}
		order = append(order, dim)
	}
	for _, dim := range dims {
		r.n *= t.Shape()[dim]
	}
	var err error
	if r.rows, err = t.Permute(append(order, dims...)...); err != nil {
		return nil, err
	}
	r.rows, err = e.contiguous(r.rows)
	return r, err
}

// fold calls f for each row of r and returns a new tensor of the shape r.shape with the results. S
// must be the Go type of the dtype of r.rows. f must not modify or keep the row. The error is a
// *LimitError or an error of package tensor.
func fold[S, T tensor.Element](e *Engine, r *reduction, f func(row []S) T) (*tensor.Tensor, error) {
	out, to, err := newTensor[T](e, r.shape...)
	if err != nil {
		return nil, err
	}
	from, err := elements[S](e, r.rows)
	if err != nil {
		return nil, err
	}
	for i := range to {
		to[i] = f(from[i*r.n:][:r.n])
	}
	runtime.KeepAlive(r.rows)
	return out, nil
}
