package aten

import "github.com/tensorpipe-go/tensorpipe/tensor"

// opcode says which of the functions of two numbers.
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

// arithmetic is the row of a sum, difference, product or quotient. Integers are
// never divided.
func arithmetic[T number](op opcode, out, x, y []T) {
	switch op {
	case opAdd:
		addRow(out, x, y)
	case opSub:
		subRow(out, x, y)
	case opMul:
		mulRow(out, x, y)
	default:
		divRow(out, x, y)
	}
}

func addRow[T number](out, x, y []T) {
	x, y = x[:len(out)], y[:len(out)]
	for i := range out {
		out[i] = x[i] + y[i]
	}
}

func subRow[T number](out, x, y []T) {
	x, y = x[:len(out)], y[:len(out)]
	for i := range out {
		out[i] = x[i] - y[i]
	}
}

func mulRow[T number](out, x, y []T) {
	x, y = x[:len(out)], y[:len(out)]
	for i := range out {
		out[i] = x[i] * y[i]
	}
}

func divRow[T number](out, x, y []T) {
	x, y = x[:len(out)], y[:len(out)]
	for i := range out {
		out[i] = x[i] / y[i]
	}
}

// arith computes two tensors of the same computed dtype.
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

// binary computes two arguments, of which one at least is a tensor, in dtype d.
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

// addition computes self + alpha*other, or self - alpha*other.
func addition(op opcode) kernel {
	return func(c *call) (Value, error) {
		x, y, alpha := c.args[0], c.args[1], c.args[2]
		d := meet(x, y)
		if op == opSub && (isBool(x) || isBool(y)) {
			return nil, fault("Subtraction, the `-` operator, with a bool tensor is not supported")
		}
		if err := checkAlpha(alpha, d); err != nil {
			return nil, err
		}
		if s, ok := y.(*tensor.Sparse); ok {
			return c.addSparse(x, s, factor(op, alpha), d)
		}
		if _, ok := x.(*tensor.Sparse); ok {
			return nil, fault("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
		}
		var err error
		if !isOne(alpha) {
			if y, err = c.scale(y, alpha, d); err != nil {
				return nil, err
			}
		}
		return value(c.binary(op, x, y, d))
	}
}

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

func isOne(alpha Value) bool { return alpha == int64(1) || alpha == float64(1) || alpha == true }

// checkAlpha fails unless a factor fits the dtype of the result.
func checkAlpha(alpha Value, d tensor.DType) error {
	switch alpha.(type) {
	case float64:
		if !isFloat(d) && !isComplex(d) {
			return fault("For integral input tensors, argument alpha must not be a floating point number.")
		}
	case bool:
		if d != tensor.Bool {
			return fault("Boolean alpha only supported for Boolean results.")
		}
	}
	return nil
}

// factor is alpha with the sign of the operation.
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
	return alpha // bools are not subtracted
}

// scale multiplies an argument by a factor in dtype d, rounded no more than what
// is computed with.
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

func multiply(c *call) (*tensor.Tensor, error) {
	return c.binary(opMul, c.args[0], c.args[1], meet(c.args[0], c.args[1]))
}

// divide makes fractions of integers.
func divide(c *call) (*tensor.Tensor, error) {
	return c.binary(opDiv, c.args[0], c.args[1], floating(meet(c.args[0], c.args[1])))
}

// comparison makes bools.
func comparison(op opcode) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		d := meet(c.args[0], c.args[1])
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
		return nil, fault("complex numbers have no order")
	}
	if x.DType() == tensor.C64 {
		return combineTensors(c, op, x, y, equality[complex64])
	}
	return combineTensors(c, op, x, y, equality[complex128])
}

// equality is the row of == or !=.
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

// ordered is the row of any comparison.
func ordered[T realNum](op opcode, out []bool, x, y []T) {
	switch op {
	case opLt:
		less(out, x, y)
	case opLe:
		lessOrEqual(out, x, y)
	case opGt:
		less(out, y, x)
	case opGe:
		lessOrEqual(out, y, x)
	default:
		equality(op, out, x, y)
	}
}

func less[T realNum](out []bool, x, y []T) {
	for i := range out {
		out[i] = x[i] < y[i]
	}
}

func lessOrEqual[T realNum](out []bool, x, y []T) {
	for i := range out {
		out[i] = x[i] <= y[i]
	}
}
