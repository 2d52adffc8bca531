package aten

import "github.com/tensorpipe-go/tensorpipe/tensor"

// opcode selects an operation on two numbers: arithmetic or a comparison.
type opcode uint8

const (
	opAdd opcode = iota
	opSub
	opMul
	opDiv
	opEq
	opNe
	opLt
	opLe
	opGt
	opGe
)

// arithmetic sets each element of out to the sum, difference, product or quotient, as op selects, of
// the elements of x and y, which must be at least as long as out. It must not be called to divide
// integers, which panics for a divisor of zero.
func arithmetic[T number](op opcode, out, x, y []T) {
	x, y = x[:len(out)], y[:len(out)]
	switch op {
	case opAdd:
		for i := range out {
			out[i] = x[i] + y[i]
		}
	case opSub:
		for i := range out {
			out[i] = x[i] - y[i]
		}
	case opMul:
		for i := range out {
			out[i] = x[i] * y[i]
		}
	default:
		for i := range out {
			out[i] = x[i] / y[i]
		}
	}
}

// arith returns op of x and y with broadcasting, as a new tensor. Both must have the same dtype, one
// that computeType returns, and op must be arithmetic; integers must not be divided. The error is a
// *SizeError, a *LimitError or one of package tensor.
func (c *call) arith(op opcode, x, y *tensor.Tensor) (*tensor.Tensor, error) {
	switch x.DType() {
	case tensor.U8:
		return combineTensors(c, op, x, y, arithmetic[uint8])
	case tensor.I8:
		return combineTensors(c, op, x, y, arithmetic[int8])
	case tensor.I16:
		return combineTensors(c, op, x, y, arithmetic[int16])
	case tensor.I32:
		return combineTensors(c, op, x, y, arithmetic[int32])
	case tensor.I64:
		return combineTensors(c, op, x, y, arithmetic[int64])
	case tensor.F32:
		return combineTensors(c, op, x, y, arithmetic[float32])
	case tensor.F64:
		return combineTensors(c, op, x, y, arithmetic[float64])
	case tensor.C64:
		return combineTensors(c, op, x, y, arithmetic[complex64])
	default:
		return combineTensors(c, op, x, y, arithmetic[complex128])
	}
}

// binary returns op of x and y, tensors or numbers, at least one of them a tensor. It casts both to
// dtype d, which is also the dtype of the result. op must be arithmetic. The error is that of arith.
func (c *call) binary(op opcode, x, y Value, d tensor.DType) (*tensor.Tensor, error) {
	a, err := c.operand(x, d)
	if err != nil {
		return nil, err
	}
	b, err := c.operand(y, d)
	if err != nil {
		return nil, err
	}
	out, err := c.arith(op, a, b)
	if err != nil {
		return nil, err
	}
	return c.cast(out, d)
}

// addition returns a kernel for self + alpha*other (opAdd) or self - alpha*other (opSub), of dense or
// sparse tensors.
func addition(op opcode) kernel {
	return func(c *call) (Value, error) {
		x, y, alpha := c.args[0], c.args[1], c.args[2]
		d := resultType(x, y)
		if op == opSub && (isBool(x) || isBool(y)) {
			return nil, valueErrorf("Subtraction, the `-` operator, with a bool tensor is not supported")
		}
		if err := checkAlpha(alpha, d); err != nil {
			return nil, err
		}
		if s, ok := y.(*tensor.Sparse); ok {
			return c.addSparse(x, s, factor(op, alpha), d)
		}
		if _, ok := x.(*tensor.Sparse); ok {
			return nil, valueErrorf("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
		}
		var err error
		if alpha != int64(1) && alpha != float64(1) && alpha != true {
			if y, err = c.scale(y, alpha, d); err != nil {
				return nil, err
			}
		}
		return value(c.binary(op, x, y, d))
	}
}

// isBool reports whether v is a bool, or a tensor of bools.
func isBool(v Value) bool {
	switch v := v.(type) {
	case *tensor.Tensor:
		return v.DType() == tensor.Bool
	case *tensor.Sparse:
		return v.DType() == tensor.Bool
	}
	_, ok := v.(bool)
	return ok
}

// checkAlpha returns a *ValueError unless alpha, a number, is allowed for a result of dtype d.
func checkAlpha(alpha Value, d tensor.DType) error {
	switch alpha.(type) {
	case float64:
		if !isFloat(d) && !isComplex(d) {
			return valueErrorf("For integral input tensors, argument alpha must not be a floating point number.")
		}
	case bool:
		if d != tensor.Bool {
			return valueErrorf("Boolean alpha only supported for Boolean results.")
		}
	}
	return nil
}

// factor returns the number by which addition or subtraction multiplies the second argument: alpha, or
// -alpha if op is opSub. A bool is returned unchanged, since subtraction of bools has been rejected
// before.
func factor(op opcode, alpha Value) Value {
	if op == opAdd {
		return alpha
	}
	switch alpha := alpha.(type) {
	case int64:
		return -alpha
	case float64:
		return -alpha
	}
	return alpha // subtraction of bools has been rejected before
}

// scale returns v, a tensor or a number, multiplied by factor. The result has the dtype computeType(d);
// the caller casts it to d if needed.
func (c *call) scale(v, factor Value, d tensor.DType) (*tensor.Tensor, error) {
	x, err := c.operand(v, d)
	if err != nil {
		return nil, err
	}
	y, err := c.scalar(factor, x.DType())
	if err != nil {
		return nil, err
	}
	return c.arith(opMul, x, y)
}

// multiply is the kernel of mul: the product of two arguments.
func multiply(c *call) (*tensor.Tensor, error) {
	return c.binary(opMul, c.args[0], c.args[1], resultType(c.args[0], c.args[1]))
}

// divide is the kernel of div: the quotient of two arguments, which for integers is a float.
func divide(c *call) (*tensor.Tensor, error) {
	return c.binary(opDiv, c.args[0], c.args[1], floatType(resultType(c.args[0], c.args[1])))
}

// comparison returns a kernel that compares two arguments by op and returns a tensor of bools.
func comparison(op opcode) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		d := resultType(c.args[0], c.args[1])
		x, err := c.operand(c.args[0], d)
		if err != nil {
			return nil, err
		}
		y, err := c.operand(c.args[1], d)
		if err != nil {
			return nil, err
		}
		return c.compare(op, x, y)
	})
}

// compare returns a tensor of bools with the results of the comparison op of the elements of x and y,
// with broadcasting. Both must have the same dtype, one that computeType returns. The error is a
// *SizeError, a *LimitError or one of package tensor, or a *ValueError if complex numbers would be
// ordered.
func (c *call) compare(op opcode, x, y *tensor.Tensor) (*tensor.Tensor, error) {
	switch x.DType() {
	case tensor.U8:
		return combineTensors(c, op, x, y, ordered[uint8])
	case tensor.I8:
		return combineTensors(c, op, x, y, ordered[int8])
	case tensor.I16:
		return combineTensors(c, op, x, y, ordered[int16])
	case tensor.I32:
		return combineTensors(c, op, x, y, ordered[int32])
	case tensor.I64:
		return combineTensors(c, op, x, y, ordered[int64])
	case tensor.F32:
		return combineTensors(c, op, x, y, ordered[float32])
	case tensor.F64:
		return combineTensors(c, op, x, y, ordered[float64])
	}
	if op != opEq && op != opNe {
		return nil, valueErrorf("complex numbers have no order")
	}
	if x.DType() == tensor.C64 {
		return combineTensors(c, op, x, y, equality[complex64])
	}
	return combineTensors(c, op, x, y, equality[complex128])
}

// equality sets each element of out to x == y, or to x != y unless op is opEq. x and y must be at least
// as long as out.
func equality[T number](op opcode, out []bool, x, y []T) {
	if op == opEq {
		for i := range out {
			out[i] = x[i] == y[i]
		}
		return
	}
	for i := range out {
		out[i] = x[i] != y[i]
	}
}

// ordered sets each element of out to the result of the comparison op of the elements of x and y, which
// must be at least as long as out.
func ordered[T realNum](op opcode, out []bool, x, y []T) {
	switch op {
	case opGt:
		op, x, y = opLt, y, x
	case opGe:
		op, x, y = opLe, y, x
	}
	x, y = x[:len(out)], y[:len(out)]
	switch op {
	case opLt:
		for i := range out {
			out[i] = x[i] < y[i]
		}
	case opLe:
		for i := range out {
			out[i] = x[i] <= y[i]
		}
	default:
		equality(op, out, x, y)
	}
}
