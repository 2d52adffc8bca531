package ops

import (
	"context"
	"runtime"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Add returns x+alpha*y as a new tensor: both are broadcast to one shape and cast to the dtype to
// which they are promoted. The error is a *SizeError if the shapes cannot be broadcast, a
// *ValueError if alpha is a fraction for integers or a bool for numbers, a *DeviceMismatchError, a
// *LimitError, or an error of package tensor.
func (e *Engine) Add(ctx context.Context, x, y *tensor.Tensor, alpha Number) (*tensor.Tensor, error) {
	return e.addition(ctx, opAdd, x, secondOperand{tensor: y}, alpha)
}

// AddNumber returns x+alpha*n as a new tensor. The errors are those of Add.
func (e *Engine) AddNumber(ctx context.Context, x *tensor.Tensor, n, alpha Number) (*tensor.Tensor, error) {
	return e.addition(ctx, opAdd, x, secondOperand{number: n}, alpha)
}

// Sub returns x-alpha*y as a new tensor, with broadcasting and promotion as Add. The errors are
// those of Add, and a *ValueError if x or y has bools.
func (e *Engine) Sub(ctx context.Context, x, y *tensor.Tensor, alpha Number) (*tensor.Tensor, error) {
	return e.addition(ctx, opSub, x, secondOperand{tensor: y}, alpha)
}

// SubNumber returns x-alpha*n as a new tensor. The errors are those of Sub.
func (e *Engine) SubNumber(ctx context.Context, x *tensor.Tensor, n, alpha Number) (*tensor.Tensor, error) {
	return e.addition(ctx, opSub, x, secondOperand{number: n}, alpha)
}

// Mul returns the products of the elements of x and y as a new tensor, with broadcasting and
// promotion as Add. The errors are those of Add.
func (e *Engine) Mul(ctx context.Context, x, y *tensor.Tensor) (*tensor.Tensor, error) {
	return e.binary(ctx, opMul, x, secondOperand{tensor: y}, ResultType(x, y), Int(1))
}

// MulNumber returns the elements of x multiplied by n as a new tensor. The errors are those of Add.
func (e *Engine) MulNumber(ctx context.Context, x *tensor.Tensor, n Number) (*tensor.Tensor, error) {
	return e.binary(ctx, opMul, x, secondOperand{number: n}, NumberResultType(x.DType(), n), Int(1))
}

// Div returns the quotients of the elements of x and y as a new tensor, with broadcasting and
// promotion as Add. Quotients of integers and bools are F32. The errors are those of Add.
func (e *Engine) Div(ctx context.Context, x, y *tensor.Tensor) (*tensor.Tensor, error) {
	return e.binary(ctx, opDiv, x, secondOperand{tensor: y}, floatType(ResultType(x, y)), Int(1))
}

// DivNumber returns the elements of x divided by n as a new tensor. Quotients of integers and bools
// are F32. The errors are those of Add.
func (e *Engine) DivNumber(ctx context.Context, x *tensor.Tensor, n Number) (*tensor.Tensor, error) {
	return e.binary(ctx, opDiv, x, secondOperand{number: n}, floatType(NumberResultType(x.DType(), n)), Int(1))
}

// secondOperand is the second operand of an element-wise operator: a tensor, or a number if tensor is nil.
type secondOperand struct {
	tensor *tensor.Tensor
	number Number
}

// resultType returns the dtype to which x and y are promoted.
func (y secondOperand) resultType(x *tensor.Tensor) tensor.DType {
	if y.tensor == nil {
		return NumberResultType(x.DType(), y.number)
	}
	return ResultType(x, y.tensor)
}

// addition returns x+alpha*y or x-alpha*y, as op selects.
func (e *Engine) addition(ctx context.Context, op opcode, x *tensor.Tensor, y secondOperand,
	alpha Number) (*tensor.Tensor, error) {
	d := y.resultType(x)
	if err := checkSum(op, x, y, alpha, d); err != nil {
		return nil, err
	}
	return e.binary(ctx, op, x, y, d, alpha)
}

// checkSum returns nil if x+alpha*y, or x-alpha*y if op is opSub, is defined for a result of dtype
// d, and otherwise a *ValueError.
func checkSum(op opcode, x *tensor.Tensor, y secondOperand, alpha Number, d tensor.DType) error {
	if op == opSub {
		bools := x.DType() == tensor.Bool || y.tensor == nil && y.number.kind == boolNumber
		if bools || y.tensor != nil && y.tensor.DType() == tensor.Bool {
			return errSubtractBools
		}
	}
	return checkAlpha(alpha, d)
}

var errSubtractBools = &ValueError{"Subtraction, the `-` operator, with a bool tensor is not supported"}

// checkAlpha returns nil if alpha is allowed as a factor for a result of dtype d. It returns a
// *ValueError if alpha is a floating point number and d is neither floating point nor complex, or
// if alpha is a bool and d is not Bool.
func checkAlpha(alpha Number, d tensor.DType) error {
	switch {
	case alpha.kind == realNumber && !isFloat(d) && !isComplex(d):
		return valueErrorf("For integral input tensors, argument alpha must not be a floating point number.")
	case alpha.kind == boolNumber && d != tensor.Bool:
		return valueErrorf("Boolean alpha only supported for Boolean results.")
	}
	return nil
}

// binary casts x and y to dtype d and applies op, one of opAdd to opDiv, to their elements, with
// broadcasting. With opAdd and opSub, y is multiplied by alpha. The result is a new tensor of dtype
// d, which must not be an integer dtype for opDiv.
func (e *Engine) binary(ctx context.Context, op opcode, x *tensor.Tensor, y secondOperand,
	d tensor.DType, alpha Number) (*tensor.Tensor, error) {
	if x.DType() == d && (d == tensor.F32 || d == tensor.F64) {
		if out, err := e.alike(op, x, y, alpha); out != nil || err != nil {
			return out, err
		}
	}
	k, err := e.kernelsOf(x, y.tensor)
	if err != nil {
		return nil, err
	}
	if k != nil {
		return e.deviceBinary(ctx, k, op, x, y, d, alpha)
	}
	if x, err = e.computable(x, d); err != nil {
		return nil, err
	}
	if y.tensor != nil {
		if y.tensor, err = e.computable(y.tensor, d); err != nil {
			return nil, err
		}
	}
	var out *tensor.Tensor
	switch x.DType() {
	case tensor.U8:
		out, err = combine(e, arithmeticRow[uint8], op, x, y, d, alpha)
	case tensor.I8:
		out, err = combine(e, arithmeticRow[int8], op, x, y, d, alpha)
	case tensor.I16:
		out, err = combine(e, arithmeticRow[int16], op, x, y, d, alpha)
	case tensor.I32:
		out, err = combine(e, arithmeticRow[int32], op, x, y, d, alpha)
	case tensor.I64:
		out, err = combine(e, arithmeticRow[int64], op, x, y, d, alpha)
	case tensor.F32:
		out, err = combine(e, arithmeticRow[float32], op, x, y, d, alpha)
	case tensor.F64:
		out, err = combine(e, arithmeticRow[float64], op, x, y, d, alpha)
	case tensor.C64:
		out, err = combine(e, arithmeticRow[complex64], op, x, y, d, alpha)
	default:
		out, err = combine(e, arithmeticRow[complex128], op, x, y, d, alpha)
	}
	if err != nil {
		return nil, err
	}
	return e.cast(out, d)
}

// alike is binary for the most frequent operands: x, of dtype F32 or F64, is contiguous on the host,
// and y is a number or a tensor like x with the same shape. For other operands it returns nil.
func (e *Engine) alike(op opcode, x *tensor.Tensor, y secondOperand, alpha Number) (*tensor.Tensor, error) {
	if t := y.tensor; t != nil && (t.DType() != x.DType() || !slices.Equal(t.Shape(), x.Shape())) {
		return nil, nil
	}
	if x.DType() == tensor.F32 {
		return combineAlike[float32](e, op, x, y, alpha)
	}
	return combineAlike[float64](e, op, x, y, alpha)
}

// combineAlike is alike for elements of type T.
func combineAlike[T floatNum](e *Engine, op opcode, x *tensor.Tensor, y secondOperand,
	alpha Number) (*tensor.Tensor, error) {
	a, err := tensor.Data[T](x)
	if err != nil {
		return nil, nil // binary handles it, or returns the error
	}
	b := a
	if y.tensor != nil && y.tensor != x {
		if b, err = tensor.Data[T](y.tensor); err != nil {
			return nil, nil
		}
	}
	out, to, err := newTensor[T](e, x.Shape()...)
	if err != nil {
		return nil, err
	}
	o := operationOf[T](op, alpha)
	if y.tensor != nil {
		arithmetic(o, to, a, b)
	} else {
		arithmeticRight(o, to, a, realAs[T](y.number, x.DType()))
	}
	runtime.KeepAlive(x)
	runtime.KeepAlive(y.tensor)
	runtime.KeepAlive(out)
	return out, nil
}

// operationOf returns op with the factor alpha as an operation on elements of type T.
func operationOf[T number](op opcode, alpha Number) operation[T] {
	o := operation[T]{op: op}
	if op <= opSub && !alpha.isOne() {
		if op == opSub {
			alpha = alpha.negated()
		}
		o.op, o.scaled, o.factor = opAdd, true, numberAs[T](alpha, 0)
	}
	return o
}

// numberAs returns n as an element of dtype d in the Go type T in which kernels compute with d. The
// zero DType stands for the dtype of T.
func numberAs[T number](n Number, d tensor.DType) (v T) {
	switch p := any(&v).(type) {
	case *float32:
		*p = realAs[float32](n, d)
	case *float64:
		*p = realAs[float64](n, d)
	case *uint8:
		*p = realAs[uint8](n, d)
	case *int8:
		*p = realAs[int8](n, d)
	case *int16:
		*p = realAs[int16](n, d)
	case *int32:
		*p = realAs[int32](n, d)
	case *int64:
		*p = realAs[int64](n, d)
	case *complex64:
		*p = complexAs[complex64](n)
	case *complex128:
		*p = complexAs[complex128](n)
	}
	return v
}

// combine broadcasts x and y, computes each element of a new tensor from their elements by f, and
// returns the tensor. T must be the Go type of the dtype of x and y; a number is cast to d first.
// The error is a *SizeError if the shapes cannot be broadcast, a *LimitError, or an error of package
// tensor.
func combine[T number, R tensor.Element](e *Engine, f row[T, R], op opcode, x *tensor.Tensor,
	y secondOperand, d tensor.DType, alpha Number) (*tensor.Tensor, error) {
	shape := x.Shape()
	if y.tensor != nil {
		var err error
		if shape, err = broadcast(shape, y.tensor.Shape()); err != nil {
			return nil, err
		}
	}
	out, to, err := newTensor[R](e, shape...)
	if err != nil {
		return nil, err
	}
	if err := combineInto(e, f, operationOf[T](op, alpha), out, to, x, y, d); err != nil {
		return nil, err
	}
	return out, nil
}

// combineInto sets the elements of out, whose memory is to, to the results of f for the elements of
// x and y, which are broadcast to the shape of out. Neighbours in the innermost dimension of out
// must be adjacent. T must be the Go type of the dtype of x and y; a number is cast to d first.
func combineInto[T number, R tensor.Element](e *Engine, f row[T, R], op operation[T],
	out *tensor.Tensor, to []R, x *tensor.Tensor, y secondOperand, d tensor.DType) error {
	if len(to) == 0 {
		return nil
	}
	a, err := inputOf[T](e, x, out.Shape())
	if err != nil {
		return err
	}
	var b input[T]
	if y.tensor == nil {
		b.data = []T{numberAs[T](y.number, d)}
	} else if b, err = inputOf[T](e, y.tensor, out.Shape()); err != nil {
		return err
	}
	zip(op, out.Shape(), out.Strides(), to, &a, &b, f)
	runtime.KeepAlive(a.owner)
	runtime.KeepAlive(b.owner)
	runtime.KeepAlive(out)
	return nil
}
