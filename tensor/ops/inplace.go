package ops

import (
	"context"
	"errors"
	"runtime"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// AddInPlace adds alpha*y to x, element by element. y is broadcast to the shape of x; both are cast
// to the dtype to which they are promoted, and the sums to the dtype of x.
//
// y may share memory with x; its elements count as they were before the call. The error is
// tensor.ErrReadOnly if x is read-only, tensor.ErrOverlap if elements of x may share memory with
// each other, a *ValueError if the shape of y does not fit, if the sums cannot be cast to the dtype
// of x (complex numbers to real ones, fractions to integers, numbers to bools), or if alpha does not
// fit the dtype, a *SizeError, *DeviceMismatchError or *LimitError, or another error of package
// tensor. After an error x is unchanged.
func (e *Engine) AddInPlace(ctx context.Context, x, y *tensor.Tensor, alpha Number) error {
	return e.sumInPlace(ctx, opAdd, x, secondOperand{tensor: y}, alpha)
}

// AddNumberInPlace adds alpha*n to each element of x. The errors are those of AddInPlace.
func (e *Engine) AddNumberInPlace(ctx context.Context, x *tensor.Tensor, n, alpha Number) error {
	return e.sumInPlace(ctx, opAdd, x, secondOperand{number: n}, alpha)
}

// SubInPlace subtracts alpha*y from x, element by element, as AddInPlace adds it. The errors are
// those of AddInPlace, and a *ValueError for bools.
func (e *Engine) SubInPlace(ctx context.Context, x, y *tensor.Tensor, alpha Number) error {
	return e.sumInPlace(ctx, opSub, x, secondOperand{tensor: y}, alpha)
}

// MulInPlace multiplies each element of x by that of y, which is broadcast to the shape of x. The
// errors are those of AddInPlace.
func (e *Engine) MulInPlace(ctx context.Context, x, y *tensor.Tensor) error {
	return e.inPlace(ctx, opMul, x, secondOperand{tensor: y}, ResultType(x, y), Int(1))
}

// MulNumberInPlace multiplies each element of x by n. The errors are those of AddInPlace.
func (e *Engine) MulNumberInPlace(ctx context.Context, x *tensor.Tensor, n Number) error {
	return e.inPlace(ctx, opMul, x, secondOperand{number: n}, NumberResultType(x.DType(), n), Int(1))
}

// DivInPlace divides each element of x by that of y, which is broadcast to the shape of x. The errors
// are those of AddInPlace; the quotients of integers are fractions, which cannot be cast to integers.
func (e *Engine) DivInPlace(ctx context.Context, x, y *tensor.Tensor) error {
	return e.inPlace(ctx, opDiv, x, secondOperand{tensor: y}, floatType(ResultType(x, y)), Int(1))
}

// DivNumberInPlace divides each element of x by n. The errors are those of DivInPlace.
func (e *Engine) DivNumberInPlace(ctx context.Context, x *tensor.Tensor, n Number) error {
	d := floatType(NumberResultType(x.DType(), n))
	return e.inPlace(ctx, opDiv, x, secondOperand{number: n}, d, Int(1))
}

// FillInPlace sets each element of x to n, cast to the dtype of x. The error is a *ValueError if that
// is an integer dtype and n is outside its range, tensor.ErrReadOnly, tensor.ErrOverlap, a
// *tensor.DeviceError, or another error of package tensor.
func (e *Engine) FillInPlace(ctx context.Context, x *tensor.Tensor, n Number) error {
	if !n.fits(x.DType()) {
		return valueErrorf("value cannot be converted to type %v without overflow", x.DType())
	}
	k, err := e.kernelsOf(x, nil)
	if err != nil {
		return err
	}
	if k != nil {
		if err := checkWritable(x); err != nil {
			return err
		}
		return k.Fill(ctx, x, n)
	}
	if n == Int(0) && x.IsContiguous() {
		return clearTensor(x)
	}
	one, err := e.numberTensor(n, x.DType())
	if err != nil {
		return err
	}
	if one, err = one.Expand(x.Shape()...); err != nil {
		return err
	}
	return x.CopyFrom(one)
}

// ZeroInPlace sets each element of x to zero. The errors are those of FillInPlace.
func (e *Engine) ZeroInPlace(ctx context.Context, x *tensor.Tensor) error {
	return e.FillInPlace(ctx, x, Int(0))
}

// CopyInPlace copies the elements of y, which is broadcast to the shape of x and cast to the dtype of
// x, to x. They may be on different devices, as for To. The error is tensor.ErrReadOnly, tensor.ErrOverlap, a *SizeError or *ValueError if y does
// not fit, a *DeviceMismatchError or *LimitError, or another error of package tensor.
func (e *Engine) CopyInPlace(ctx context.Context, x, y *tensor.Tensor) error {
	if err := checkInPlace(x, y, x.DType()); err != nil {
		return err
	}
	if x.Device() != y.Device() && !(onHost(x) && onHost(y)) {
		var err error
		if onHost(y) {
			y, err = e.cast(y, x.DType())
		}
		if err == nil {
			y, err = e.To(ctx, y, x.Device())
		}
		if err != nil {
			return err
		}
	}
	k, err := e.kernelsOf(x, y)
	if err != nil {
		return err
	}
	if k != nil {
		if err := checkDeviceDType(x.DType(), y); err != nil {
			return err
		}
		if y, err = e.deviceSeparate(ctx, k, x, y); err != nil {
			return err
		}
	} else if y, err = e.cast(y, x.DType()); err != nil {
		return err
	}
	if y, err = expandTo(y, x.Shape()); err != nil {
		return err
	}
	if k != nil {
		return k.Copy(ctx, x, y)
	}
	return x.CopyFrom(y)
}

// checkWritable returns nil if all elements of x can be written, tensor.ErrReadOnly if x is
// read-only, and tensor.ErrOverlap if elements of x may share memory.
func checkWritable(x *tensor.Tensor) error {
	if x.ReadOnly() {
		return tensor.ErrReadOnly
	}
	if !x.IsContiguous() && tensor.SelfOverlaps(x) {
		return tensor.ErrOverlap
	}
	return nil
}

// sumInPlace adds alpha*y to x, or subtracts it if op is opSub.
func (e *Engine) sumInPlace(ctx context.Context, op opcode, x *tensor.Tensor, y secondOperand,
	alpha Number) error {
	d := y.resultType(x)
	if err := checkSum(op, x, y, alpha, d); err != nil {
		return err
	}
	return e.inPlace(ctx, op, x, y, d, alpha)
}

// inPlace sets x to the results of op, computed in dtype d, for its elements and those of y.
func (e *Engine) inPlace(ctx context.Context, op opcode, x *tensor.Tensor, y secondOperand,
	d tensor.DType, alpha Number) error {
	if d == x.DType() && y.tensor != nil && (d == tensor.F32 && updateAlike[float32](op, x, y.tensor, alpha) ||
		d == tensor.F64 && updateAlike[float64](op, x, y.tensor, alpha)) {
		return nil
	}
	if err := checkInPlace(x, y.tensor, d); err != nil {
		return err
	}
	k, err := e.kernelsOf(x, y.tensor)
	if err != nil {
		return err
	}
	if k != nil {
		if err := checkDeviceDType(d, x, y.tensor); err != nil {
			return err
		}
		if y.tensor, err = e.deviceSeparate(ctx, k, x, y.tensor); err != nil {
			return err
		}
		return e.deviceCombine(ctx, k, op, x, x, y, alpha)
	}
	if step := innerStep(x, x.Shape()); d != x.DType() || computeType(d) != d || step != 1 && x.Len() > 1 {
		return e.replace(ctx, op, x, y, d, alpha)
	}
	if y, err = e.separate(x, y, d); err != nil {
		return err
	}
	switch d {
	case tensor.U8:
		return update[uint8](ctx, e, op, x, y, alpha)
	case tensor.I8:
		return update[int8](ctx, e, op, x, y, alpha)
	case tensor.I16:
		return update[int16](ctx, e, op, x, y, alpha)
	case tensor.I32:
		return update[int32](ctx, e, op, x, y, alpha)
	case tensor.I64:
		return update[int64](ctx, e, op, x, y, alpha)
	case tensor.F32:
		return update[float32](ctx, e, op, x, y, alpha)
	case tensor.F64:
		return update[float64](ctx, e, op, x, y, alpha)
	case tensor.C64:
		return update[complex64](ctx, e, op, x, y, alpha)
	default:
		return update[complex128](ctx, e, op, x, y, alpha)
	}
}

// updateAlike is inPlace for the most frequent operands: x and y are contiguous on the host, and have the
// same shape and the dtype of T. For other operands it returns false, and x is unchanged.
func updateAlike[T floatNum](op opcode, x, y *tensor.Tensor, alpha Number) bool {
	if y.DType() != x.DType() || !slices.Equal(x.Shape(), y.Shape()) {
		return false
	}
	to, err := tensor.MutableData[T](x)
	if err != nil {
		return false // inPlace handles it, or returns the error
	}
	from, err := tensor.Data[T](y)
	if err != nil {
		return false
	}
	if overlap, err := tensor.Overlap(x, y); err != nil || overlap && !sameElements(x, y) {
		return false
	}
	arithmetic(operationOf[T](op, alpha), to, to, from)
	runtime.KeepAlive(x)
	runtime.KeepAlive(y)
	return true
}

// checkInPlace returns nil if results of dtype d for x and y, which may be nil, can be stored in x.
func checkInPlace(x, y *tensor.Tensor, d tensor.DType) error {
	if !canCast(d, x.DType()) {
		return valueErrorf("result type %s can't be cast to the desired output type %s",
			torchNames[d], torchNames[x.DType()])
	}
	if y != nil && !slices.Equal(x.Shape(), y.Shape()) {
		shape, err := broadcast(x.Shape(), y.Shape())
		if err != nil {
			return err
		}
		if !slices.Equal(shape, x.Shape()) {
			return valueErrorf("output with shape %s doesn't match the broadcast shape %s",
				sizes(x.Shape()), sizes(shape))
		}
	}
	return checkWritable(x)
}

// canCast reports whether in-place operators may store results of dtype from as dtype to: the
// category (bool, integer, floating point, complex) must not be lower.
func canCast(from, to tensor.DType) bool {
	switch {
	case isComplex(to):
		return true
	case isFloat(to):
		return !isComplex(from)
	case isInt(to):
		return isInt(from) || from == tensor.Bool
	}
	return from == tensor.Bool
}

// replace computes op for x and y in new memory and copies the results to x.
func (e *Engine) replace(ctx context.Context, op opcode, x *tensor.Tensor, y secondOperand,
	d tensor.DType, alpha Number) error {
	out, err := e.binary(ctx, op, x, y, d, alpha)
	if err != nil {
		return err
	}
	if out, err = e.cast(out, x.DType()); err != nil {
		return err
	}
	return x.CopyFrom(out)
}

// separate returns y cast to d, and as a copy if it shares memory with x without being the same
// elements in the same order.
func (e *Engine) separate(x *tensor.Tensor, y secondOperand, d tensor.DType) (secondOperand, error) {
	if y.tensor == nil || y.tensor == x {
		return y, nil
	}
	t, err := e.computable(y.tensor, d)
	if err != nil {
		return y, err
	}
	if t == y.tensor && !sameElements(x, t) {
		overlap, err := tensor.Overlap(x, t)
		if err != nil {
			return y, err
		}
		if overlap {
			if t, err = e.clone(t); err != nil {
				return y, err
			}
		}
	}
	return secondOperand{tensor: t}, nil
}

// sameElements reports whether x and y are views of the same storage with the same elements.
func sameElements(x, y *tensor.Tensor) bool {
	return x.Storage() == y.Storage() && x.Offset() == y.Offset() &&
		slices.Equal(x.Shape(), y.Shape()) && slices.Equal(x.Strides(), y.Strides())
}

// update sets x to the results of op for its elements and those of y. T must be the Go type of the
// dtype of x and y, and neighbours in the innermost dimension of x must be adjacent.
func update[T number](ctx context.Context, e *Engine, op opcode, x *tensor.Tensor, y secondOperand,
	alpha Number) error {
	data, err := span[T](x)
	if errors.Is(err, tensor.ErrUnaligned) {
		return e.replace(ctx, op, x, y, x.DType(), alpha)
	}
	if err != nil {
		return err
	}
	return combineInto(e, arithmeticRow[T], operationOf[T](op, alpha), x, data, x, y, 0)
}
