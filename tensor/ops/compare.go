package ops

import (
	"context"
	"math"
	"math/cmplx"
	"runtime"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Comparison is a relation of two numbers.
type Comparison uint8

// The comparisons: equal, not equal, less, less or equal, greater, greater or equal.
const (
	Eq Comparison = iota
	Ne
	Lt
	Le
	Gt
	Ge
)

// Compare compares the elements of x and y, which are broadcast to one shape and cast to the dtype
// to which they are promoted, and returns a new tensor of bools. The error is a *SizeError if the
// shapes cannot be broadcast, a *ValueError if the dtype is complex and op is neither Eq nor Ne, a
// *LimitError, or an error of package tensor.
func (e *Engine) Compare(_ context.Context, op Comparison, x, y *tensor.Tensor) (*tensor.Tensor, error) {
	return e.compare(op, x, secondOperand{tensor: y}, ResultType(x, y))
}

// CompareNumber compares the elements of x with n, as Compare does.
func (e *Engine) CompareNumber(_ context.Context, op Comparison, x *tensor.Tensor,
	n Number) (*tensor.Tensor, error) {
	return e.compare(op, x, secondOperand{number: n}, NumberResultType(x.DType(), n))
}

// compare casts x and y to d and compares their elements.
func (e *Engine) compare(c Comparison, x *tensor.Tensor, y secondOperand,
	d tensor.DType) (*tensor.Tensor, error) {
	if c > Ge {
		return nil, valueErrorf("there is no comparison %d", c)
	}
	x, err := e.computable(x, d)
	if err != nil {
		return nil, err
	}
	if y.tensor != nil {
		if y.tensor, err = e.computable(y.tensor, d); err != nil {
			return nil, err
		}
	}
	op, one := opEq+opcode(c), Int(1)
	switch x.DType() {
	case tensor.U8:
		return combine(e, orderedRow[uint8], op, x, y, d, one)
	case tensor.I8:
		return combine(e, orderedRow[int8], op, x, y, d, one)
	case tensor.I16:
		return combine(e, orderedRow[int16], op, x, y, d, one)
	case tensor.I32:
		return combine(e, orderedRow[int32], op, x, y, d, one)
	case tensor.I64:
		return combine(e, orderedRow[int64], op, x, y, d, one)
	case tensor.F32:
		return combine(e, orderedRow[float32], op, x, y, d, one)
	case tensor.F64:
		return combine(e, orderedRow[float64], op, x, y, d, one)
	}
	if op != opEq && op != opNe {
		return nil, valueErrorf("complex numbers have no order")
	}
	if x.DType() == tensor.C64 {
		return combine(e, equalityRow[complex64], op, x, y, d, one)
	}
	return combine(e, equalityRow[complex128], op, x, y, d, one)
}

// equalityRow is the row function of opEq, and of opNe for any other op.
func equalityRow[T number](op operation[T], out []bool, x, y []T, xStep, yStep int) {
	if xStep == 0 {
		x, y, xStep, yStep = y, x, yStep, xStep
	}
	want := op.op == opEq
	switch {
	case xStep == 0 || len(out) == 1:
		same := (x[0] == y[0]) == want
		for i := range out {
			out[i] = same
		}
	case yStep == 0:
		for i, v := range x[:len(out)] {
			out[i] = (v == y[0]) == want
		}
	default:
		y = y[:len(out)]
		for i, v := range x[:len(out)] {
			out[i] = (v == y[i]) == want
		}
	}
}

// orderedRow is the row function of the comparisons opEq to opGe.
func orderedRow[T realNum](op operation[T], out []bool, x, y []T, xStep, yStep int) {
	switch op.op {
	case opEq, opNe:
		equalityRow(op, out, x, y, xStep, yStep)
		return
	case opGt:
		op.op, x, y, xStep, yStep = opLt, y, x, yStep, xStep
	case opGe:
		op.op, x, y, xStep, yStep = opLe, y, x, yStep, xStep
	}
	less := op.op == opLt
	switch {
	case xStep == 0 && yStep == 0 || len(out) == 1:
		holds := x[0] < y[0] || !less && x[0] == y[0]
		for i := range out {
			out[i] = holds
		}
	case xStep == 0:
		lessThanAll(less, out, x[0], y)
	case yStep == 0:
		allLessThan(less, out, x, y[0])
	default:
		x, y = x[:len(out)], y[:len(out)]
		if less {
			for i := range out {
				out[i] = x[i] < y[i]
			}
			return
		}
		for i := range out {
			out[i] = x[i] <= y[i]
		}
	}
}

// lessThanAll sets each element of out to x < y[i], or to x <= y[i] if less is false.
func lessThanAll[T realNum](less bool, out []bool, x T, y []T) {
	for i, v := range y[:len(out)] {
		out[i] = x < v || !less && x == v
	}
}

// allLessThan sets each element of out to x[i] < y, or to x[i] <= y if less is false.
func allLessThan[T realNum](less bool, out []bool, x []T, y T) {
	for i, v := range x[:len(out)] {
		out[i] = v < y || !less && v == y
	}
}

// Equal reports whether x and y have the same shape and equal elements. Their dtypes may differ;
// elements are compared in the dtype to which both are promoted. NaN equals nothing. The error is a
// *LimitError or an error of package tensor.
func (e *Engine) Equal(_ context.Context, x, y *tensor.Tensor) (bool, error) {
	if !slices.Equal(x.Shape(), y.Shape()) {
		return false, nil
	}
	mask, err := e.compare(Eq, x, secondOperand{tensor: y}, computeType(promote(x.DType(), y.DType())))
	if err != nil {
		return false, err
	}
	return e.allTrue(mask)
}

// allTrue reports whether all elements of t, a tensor of bools, are true. It is true if t has no
// elements. The errors are those of elements.
func (e *Engine) allTrue(t *tensor.Tensor) (bool, error) {
	all, err := elements[bool](e, t)
	if err != nil {
		return false, err
	}
	result := !slices.Contains(all, false)
	runtime.KeepAlive(t)
	return result, nil
}

// AllClose reports whether |v-w| <= atol+rtol*|w| for all elements v of x and w of y, with
// broadcasting. An infinity is close only to an equal one; two NaNs are close if equalNaN is true,
// and otherwise NaN is close to nothing. The error is a *ValueError if the dtypes differ or a
// tolerance is negative or NaN, a *SizeError if the shapes cannot be broadcast, a *LimitError, or an
// error of package tensor.
func (e *Engine) AllClose(_ context.Context, x, y *tensor.Tensor, rtol, atol float64,
	equalNaN bool) (bool, error) {
	if x.DType() != y.DType() {
		return false, valueErrorf("%s did not match %s", torchNames[x.DType()], torchNames[y.DType()])
	}
	if !(rtol >= 0) || !(atol >= 0) {
		return false, valueErrorf("rtol and atol must be greater than or equal to zero, but got %v and %v",
			rtol, atol)
	}
	x, err := e.cast(x, tensor.C128)
	if err != nil {
		return false, err
	}
	if y, err = e.cast(y, tensor.C128); err != nil {
		return false, err
	}
	near := func(_ operation[complex128], out []bool, x, y []complex128, xStep, yStep int) {
		for i := range out {
			v, w := x[i*xStep], y[i*yStep]
			diff := cmplx.Abs(v - w)
			out[i] = v == w || !math.IsInf(diff, 0) && diff <= atol+rtol*cmplx.Abs(w) ||
				equalNaN && cmplx.IsNaN(v) && cmplx.IsNaN(w)
		}
	}
	mask, err := combine(e, near, opEq, x, secondOperand{tensor: y}, tensor.C128, Int(1))
	if err != nil {
		return false, err
	}
	return e.allTrue(mask)
}

// Nonzero returns a new I64 matrix with one row for each element of x that is not zero, in row-major
// order. The row has the index of the element in each dimension. The error is a *LimitError or an
// error of package tensor.
func (e *Engine) Nonzero(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	mask, err := e.nonzeroMask(x)
	if err != nil {
		return nil, err
	}
	found, err := elements[bool](e, mask)
	if err != nil {
		return nil, err
	}
	n := 0
	for _, nonzero := range found {
		if nonzero {
			n++
		}
	}
	out, to, err := newTensor[int64](e, n, x.Rank())
	if err != nil {
		return nil, err
	}
	for i, nonzero := range found {
		if nonzero {
			for dim := x.Rank() - 1; dim >= 0; dim-- {
				to[dim] = int64(i % x.Shape()[dim])
				i /= x.Shape()[dim]
			}
			to = to[x.Rank():]
		}
	}
	runtime.KeepAlive(mask)
	return out, nil
}
