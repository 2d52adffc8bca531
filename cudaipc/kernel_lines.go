package cudaipc

import (
	"context"
	"fmt"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// lines are the elements of a tensor along one dimension, in which there are length. Neighbours are
// step elements apart if the tensor is contiguous.
type lines struct{ length, step int }

// linesOf returns the lines of x along dimension dim. The error is a *tensor.IndexError if x has no such
// dimension.
func linesOf(x *tensor.Tensor, dim int) (lines, error) {
	if dim < 0 || dim >= x.Rank() {
		return lines{}, &tensor.IndexError{What: "dimension", Index: dim, Len: x.Rank()}
	}
	l := lines{length: x.Shape()[dim], step: 1}
	for _, size := range x.Shape()[dim+1:] {
		l.step *= size
	}
	return l, nil
}

// checkIndices returns a *tensor.DTypeError or *tensor.ShapeError unless indices are I64 and have the
// shape of x, but that size in dim.
func checkIndices(indices, x *tensor.Tensor, dim, size int) error {
	if d := indices.DType(); d != tensor.I64 {
		return &tensor.DTypeError{Name: d.String(), Reason: "must be i64, that of indices"}
	}
	return checkShape(indices, x, dim, size)
}

// checkShape returns a *tensor.ShapeError unless t has the shape of x, but that size in dim.
func checkShape(t, x *tensor.Tensor, dim, size int) error {
	want := slices.Clone(x.Shape())
	want[dim] = size
	if !slices.Equal(t.Shape(), want) {
		return &tensor.ShapeError{Shape: t.Shape(), Reason: fmt.Sprintf("must be %v", want)}
	}
	return nil
}

func (k kernels) ArgMax(_ context.Context, dst, x *tensor.Tensor, dim int) error {
	if err := checkArithmetic(x); err != nil {
		return err
	}
	l, err := linesOf(x, dim)
	if err != nil {
		return err
	}
	if l.length == 0 {
		return &tensor.ShapeError{Shape: x.Shape(), Reason: fmt.Sprintf("has no maximum along dimension %d", dim)}
	}
	if err := checkIndices(dst, x, dim, 1); err != nil || dst.Len() == 0 {
		return err
	}
	return k.kind.run(func(w *work) error {
		out, err := w.output(w.dst)
		if err != nil {
			return err
		}
		in, err := w.contiguous(w.sources[0])
		if err != nil {
			return err
		}
		if err := w.launch("argmax", dst.Len(), uint64(out), uint64(in), uint64(dst.Len()),
			uint64(x.DType().Size()), uint64(l.length), uint64(l.step)); err != nil {
			return err
		}
		return w.store(w.dst, out)
	}, dst, x)
}

// Take passes strides to the kernel, so that expanded tensors are not copied.
func (k kernels) Take(_ context.Context, dst, x, indices *tensor.Tensor, dim int, ignored int64) error {
	if err := checkArithmetic(dst); err != nil {
		return err
	}
	if err := checkDType(dst, x); err != nil {
		return err
	}
	l, err := linesOf(dst, dim)
	if err != nil {
		return err
	}
	if x.Rank() != dst.Rank() {
		return &tensor.ShapeError{Shape: x.Shape(), Reason: fmt.Sprintf("has no elements for the shape %v", dst.Shape())}
	}
	length := x.Shape()[dim]
	if err := checkShape(x, dst, dim, length); err != nil {
		return err
	}
	if err := checkIndices(indices, dst, dim, l.length); err != nil || dst.Len() == 0 {
		return err
	}
	return k.kind.run(func(w *work) error {
		out, err := w.output(w.dst)
		if err != nil {
			return err
		}
		from, err := w.spaced(w.sources[0], dim)
		if err != nil {
			return err
		}
		list, err := w.contiguous(w.sources[1])
		if err != nil {
			return err
		}
		if err := w.launch("take", dst.Len(), uint64(out), uint64(from.ptr), uint64(list), uint64(dst.Len()),
			uint64(dst.DType().Size()), uint64(length), uint64(l.step),
			uint64(from.outer), uint64(from.index), uint64(from.inner), uint64(ignored)); err != nil {
			return err
		}
		return w.store(w.dst, out)
	}, dst, x, indices)
}

// spacedLines are lines with any even distances, in bytes: from element to element of a line, from line
// to line in the dimensions after it, and in those before it.
type spacedLines struct {
	ptr                 driver.Ptr
	outer, index, inner int
}

// spaced returns the lines of o along dim, or those of a copy if they are not evenly spaced.
func (w *work) spaced(o *operand, dim int) (spacedLines, error) {
	size, shape, strides, at := o.DType().Size(), o.Shape(), o.Strides(), o.ptr
	outer, even := evenStride(shape[:dim], strides[:dim])
	inner, alsoEven := evenStride(shape[dim+1:], strides[dim+1:])
	if !even || !alsoEven {
		var err error
		if at, err = w.contiguous(o); err != nil {
			return spacedLines{}, err
		}
		strides = rowMajorStrides(shape)
		outer, _ = evenStride(shape[:dim], strides[:dim])
		inner, _ = evenStride(shape[dim+1:], strides[dim+1:])
	}
	return spacedLines{at, outer * size, strides[dim] * size, inner * size}, nil
}

func (k kernels) Put(_ context.Context, dst, x, indices *tensor.Tensor, dim int) error {
	if err := checkArithmetic(dst); err != nil {
		return err
	}
	if err := checkDType(dst, x); err != nil {
		return err
	}
	l, err := linesOf(dst, dim)
	if err != nil {
		return err
	}
	if err := checkShape(x, dst, dim, 1); err != nil {
		return err
	}
	if err := checkIndices(indices, dst, dim, 1); err != nil || dst.Len() == 0 {
		return err
	}
	return k.kind.run(func(w *work) error {
		out, err := w.output(w.dst)
		if err != nil {
			return err
		}
		values, err := w.contiguous(w.sources[0])
		if err != nil {
			return err
		}
		list, err := w.contiguous(w.sources[1])
		if err != nil {
			return err
		}
		if err := w.launch("put", dst.Len(), uint64(out), uint64(values), uint64(list), uint64(dst.Len()),
			uint64(dst.DType().Size()), uint64(l.length), uint64(l.step)); err != nil {
			return err
		}
		return w.store(w.dst, out)
	}, dst, x, indices)
}
