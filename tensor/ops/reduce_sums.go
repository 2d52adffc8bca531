package ops

import (
	"errors"
	"runtime"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// sumNumber is the types in which elements are added.
type sumNumber interface{ int64 | float64 | complex128 }

// sumReals is sumOver for elements of type T that are added as numbers of type A.
func sumReals[T realNum, A int64 | float64](e *Engine, x *tensor.Tensor, dims, shape []int,
	d tensor.DType, n int) (*tensor.Tensor, error) {
	var few [64]A
	sums, err := sumMemory(e, few[:], shape)
	if err != nil {
		return nil, err
	}
	if x.Len() > 0 {
		data, x, err := sumInput[T](e, x)
		if err != nil {
			return nil, err
		}
		var w nest
		w.startSum(x, dims)
		for {
			addRealRow(sums[w.out:], data[w.x:], w.inner)
			if !w.next() {
				break
			}
		}
		runtime.KeepAlive(x)
	}
	if n != 1 {
		for i := range sums {
			sums[i] /= A(n)
		}
	}
	if d == tensor.F32 {
		out, to, err := newTensor[float32](e, shape...)
		if err != nil {
			return nil, err
		}
		convertNumbers(to, sums)
		runtime.KeepAlive(out)
		return out, nil
	}
	return storeSums(e, sums, shape, d)
}

// sumComplex is sumReals for complex numbers, which are added in complex128.
func sumComplex[T complexNum](e *Engine, x *tensor.Tensor, dims, shape []int, d tensor.DType,
	n int) (*tensor.Tensor, error) {
	var few [64]complex128
	sums, err := sumMemory(e, few[:], shape)
	if err != nil {
		return nil, err
	}
	if x.Len() > 0 {
		data, x, err := sumInput[T](e, x)
		if err != nil {
			return nil, err
		}
		var w nest
		w.startSum(x, dims)
		for {
			to, from := sums[w.out:], data[w.x:]
			for i := range w.inner.size {
				to[i*w.inner.out] += complex128(from[i*w.inner.x])
			}
			if !w.next() {
				break
			}
		}
		runtime.KeepAlive(x)
	}
	if n != 1 {
		for i := range sums {
			sums[i] /= complex(float64(n), 0)
		}
	}
	return storeSums(e, sums, shape, d)
}

// sumMemory returns a zeroed slice for the elements of a tensor of the given shape: a part of few,
// which must be zeroed, if that is long enough. The errors are those of checkSize.
func sumMemory[A sumNumber](e *Engine, few []A, shape []int) ([]A, error) {
	if err := e.checkSize(tensor.DTypeOf[A](), shape); err != nil {
		return nil, err
	}
	size, err := tensor.NumElements(shape)
	if err != nil {
		return nil, err
	}
	if size <= len(few) {
		return few[:size], nil
	}
	return make([]A, size), nil
}

// sumInput returns the memory of x, as span does, and the tensor to which it belongs: x itself, or a
// copy if the memory of x is not aligned.
func sumInput[T tensor.Element](e *Engine, x *tensor.Tensor) ([]T, *tensor.Tensor, error) {
	data, err := span[T](x)
	if errors.Is(err, tensor.ErrUnaligned) {
		if x, err = e.clone(x); err == nil {
			data, err = tensor.Data[T](x)
		}
	}
	return data, x, err
}

// startSum sets up the loop over the elements of x, in the order in which they are in memory, for a
// result that has the sums over the dimensions dims, sorted numbers from 0, in row-major order. x
// must have elements.
func (w *nest) startSum(x *tensor.Tensor, dims []int) {
	rank := x.Rank()
	all := make([]int, 4*rank)
	out, shape, strides, ordered := all[:rank], all[rank:2*rank], all[2*rank:3*rank], all[3*rank:]
	step := 1
	for i := rank - 1; i >= 0; i-- {
		if _, reduced := slices.BinarySearch(dims, i); !reduced {
			out[i] = step
			step *= x.Shape()[i]
		}
	}
	for i, size := range x.Shape() { // sorts by strides, the largest one first
		at := i
		for ; at > 0 && strides[at-1] < x.Strides()[i]; at-- {
			shape[at], strides[at], ordered[at] = shape[at-1], strides[at-1], ordered[at-1]
		}
		shape[at], strides[at], ordered[at] = size, x.Strides()[i], out[i]
	}
	w.start(shape, ordered, strided{shape, strides}, strided{})
}

// addRealRow adds the elements of one row of x to those of sums, with the size and the steps in d.
func addRealRow[T realNum, A int64 | float64](sums []A, x []T, d nestDim) {
	switch {
	case d.out == 0 && d.x == 1:
		sums[0] += sumRow[T, A](x[:d.size])
	case d.out == 1 && d.x == 1:
		sums = sums[:d.size]
		for i, v := range x[:d.size] {
			sums[i] += A(v)
		}
	default:
		for i := range d.size {
			sums[i*d.out] += A(x[i*d.x])
		}
	}
}

// sumRow returns the sum of the elements of row, with four sums at a time, so that an addition need
// not wait for the one before it.
func sumRow[T realNum, A int64 | float64](row []T) A {
	var a, b, c, d A
	for ; len(row) >= 4; row = row[4:] {
		a += A(row[0])
		b += A(row[1])
		c += A(row[2])
		d += A(row[3])
	}
	for _, v := range row {
		a += A(v)
	}
	return a + b + (c + d)
}

// storeSums returns a new tensor of the given shape with the elements sums, cast to d.
func storeSums[A sumNumber](e *Engine, sums []A, shape []int, d tensor.DType) (*tensor.Tensor, error) {
	out, to, err := newTensor[A](e, shape...)
	if err != nil {
		return nil, err
	}
	copy(to, sums)
	runtime.KeepAlive(out)
	return e.cast(out, d)
}
