package cudaipc

import (
	"context"
	"fmt"
	"math/bits"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// leastThreads is the number of threads that run together on every GPU.
const leastThreads = 32

// Sum sums rows of a matrix: the dimensions dims of x are made its last ones, if they are not.
func (k kernels) Sum(_ context.Context, dst, x *tensor.Tensor, dims []int) error {
	if err := checkArithmetic(dst); err != nil {
		return err
	}
	if err := checkDType(dst, x); err != nil {
		return err
	}
	if err := checkSum(dst, x, dims); err != nil || dst.Len() == 0 {
		return err
	}
	var shape, strides []int
	columns := 1
	for _, summed := range []bool{false, true} {
		for i, size := range x.Shape() {
			if slices.Contains(dims, i) != summed {
				continue
			}
			shape, strides = append(shape, size), append(strides, x.Strides()[i])
			if summed {
				columns *= size
			}
		}
	}
	return k.kind.run(func(w *work) error {
		out, err := w.output(w.dst)
		if err != nil {
			return err
		}
		in, err := w.rowMajor(w.sources[0], shape, strides)
		if err != nil {
			return err
		}
		rows := dst.Len()
		threads := min(maxThreads, max(leastThreads, 1<<bits.Len(uint(max(columns, 1)-1))))
		if err := w.gpu.launch(w.stream.handle, kernelName("sum", dst), min(rows, maxBlocks), threads,
			uint64(out), uint64(in), uint64(rows), uint64(columns)); err != nil {
			return err
		}
		return w.store(w.dst, out)
	}, dst, x)
}

// checkSum returns a *tensor.ShapeError or *tensor.IndexError unless dst can have the sums of x over
// dims.
func checkSum(dst, x *tensor.Tensor, dims []int) error {
	want := slices.Clone(x.Shape())
	for _, dim := range dims {
		if dim < 0 || dim >= len(want) {
			return &tensor.IndexError{What: "dimension", Index: dim, Len: len(want)}
		}
		want[dim] = 1
	}
	if !slices.Equal(dst.Shape(), want) {
		return &tensor.ShapeError{Shape: dst.Shape(), Reason: fmt.Sprintf("must be %v, that of the sums", want)}
	}
	return nil
}

// MatMul passes strides to the kernel, so that transposed and expanded tensors are not copied.
func (k kernels) MatMul(_ context.Context, dst, x, y *tensor.Tensor) error {
	if err := checkArithmetic(dst); err != nil {
		return err
	}
	if err := checkMatMul(dst, x, y); err != nil || dst.Len() == 0 {
		return err
	}
	last := dst.Rank() - 1
	rows, columns, inner := dst.Shape()[last-1], dst.Shape()[last], x.Shape()[last]
	return k.kind.run(func(w *work) error {
		out, err := w.output(w.dst)
		if err != nil {
			return err
		}
		a, err := w.matrices(w.sources[0])
		if err != nil {
			return err
		}
		b, err := w.matrices(w.sources[1])
		if err != nil {
			return err
		}
		err = w.launch(kernelName("matmul", dst), dst.Len(), uint64(out), uint64(a.ptr), uint64(b.ptr),
			uint64(dst.Len()), uint64(rows), uint64(columns), uint64(inner),
			uint64(a.matrix), uint64(a.row), uint64(a.column), uint64(b.matrix), uint64(b.row), uint64(b.column))
		if err != nil {
			return err
		}
		return w.store(w.dst, out)
	}, dst, x, y)
}

// matrixList are matrices of one tensor, in row-major order of its other dimensions. Strides are in
// bytes.
type matrixList struct {
	ptr                 driver.Ptr
	matrix, row, column int
}

// matrices returns the matrices in the last two dimensions of o, or those of a copy if they are not
// evenly spaced.
func (w *work) matrices(o *operand) (matrixList, error) {
	size, last := o.DType().Size(), o.Rank()-1
	shape, strides, at := o.Shape(), o.Strides(), o.ptr
	stride, even := evenStride(shape[:last-1], strides[:last-1])
	if !even {
		var err error
		if at, err = w.contiguous(o); err != nil {
			return matrixList{}, err
		}
		strides = rowMajorStrides(shape)
		stride = shape[last-1] * shape[last]
	}
	return matrixList{ptr: at, matrix: stride * size, row: strides[last-1] * size, column: strides[last] * size}, nil
}

// checkMatMul returns a *tensor.DTypeError or *tensor.ShapeError unless dst can have the products of
// x and y.
func checkMatMul(dst, x, y *tensor.Tensor) error {
	for _, t := range []*tensor.Tensor{x, y} {
		if err := checkDType(dst, t); err != nil {
			return err
		}
		if dst.Rank() < 2 || t.Rank() != dst.Rank() {
			return &tensor.ShapeError{Shape: t.Shape(), Reason: fmt.Sprintf("has no products of shape %v", dst.Shape())}
		}
	}
	last := dst.Rank() - 1
	inner := x.Shape()[last]
	wantX, wantY := slices.Clone(dst.Shape()), slices.Clone(dst.Shape())
	wantX[last], wantY[last-1] = inner, inner
	if !slices.Equal(x.Shape(), wantX) || !slices.Equal(y.Shape(), wantY) {
		return &tensor.ShapeError{Shape: dst.Shape(), Reason: fmt.Sprintf("cannot be that of products of %v and %v", x.Shape(), y.Shape())}
	}
	return nil
}
