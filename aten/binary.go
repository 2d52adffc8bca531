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

// arithmetic sets each element of out to the sum, difference, product or quotient (as op selects)
// of the elements of x and y with the same index. x and y must be at least as long as out. op must
// not be opDiv if T is an integer type: a divisor of zero would panic.
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

// arith applies op, which must be opAdd, opSub, opMul or opDiv, to the elements of x and y,
// broadcast to one shape, and returns the results in a new tensor. x and y must have the same
// dtype, one that computeType returns; with opDiv it must not be an integer dtype. The error is a
// *SizeError if the shapes cannot be broadcast, a *LimitError, or an error of package tensor.
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

// binary casts x and y to dtype d, applies op to their elements as arith does, and returns the
// results in a new tensor of dtype d. x and y are tensors or numbers, at least one of them a
// tensor. op must be opAdd, opSub, opMul or opDiv; for opDiv, d must not be an integer dtype. The
// errors are those of arith.
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

// addition returns the kernel that computes self+alpha*other if op is opAdd, or self-alpha*other if
// op is opSub. self, other and alpha are arguments 0 to 2. self and other may be dense or sparse,
// but a sparse self needs a sparse other. The result of the kernel is a new tensor, dense or sparse
// like self. Its error is a *ValueError if op is opSub and self or other has bools, if alpha does
// not fit the dtype of the result, or if sparse arguments do not fit; otherwise it is an error of
// binary or addSparse.
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

// isBool reports whether v is a bool, or a dense or sparse tensor of bools.
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

// checkAlpha returns nil if the number alpha is allowed as a factor for a result of dtype d. It
// returns a *ValueError if alpha is a float64 and d is neither floating point nor complex, or if
// alpha is a bool and d is not Bool.
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

// factor returns the number by which addition (opAdd) or subtraction (any other op) multiplies its
// second argument: alpha for opAdd, otherwise -alpha. A bool is returned unchanged, since addition
// rejects bools for opSub before it calls factor.
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

// scale returns a new tensor with v, a tensor or a number, multiplied by the number factor. It
// casts v to d first. The result has the dtype computeType(d), which the caller must cast to d if
// that differs. The error is a *LimitError or an error of package tensor.
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

// multiply is the kernel of aten::mul: it returns a new tensor with the products of the elements of
// arguments 0 and 1, tensors or numbers, with broadcasting. The errors are those of binary.
func multiply(c *call) (*tensor.Tensor, error) {
	return c.binary(opMul, c.args[0], c.args[1], resultType(c.args[0], c.args[1]))
}

// divide is the kernel of aten::div: it returns a new tensor with the quotients of the elements of
// arguments 0 and 1, tensors or numbers, with broadcasting. Quotients of integers and bools are
// F32. The errors are those of binary.
func divide(c *call) (*tensor.Tensor, error) {
	return c.binary(opDiv, c.args[0], c.args[1], floatType(resultType(c.args[0], c.args[1])))
}

// comparison returns the kernel that compares the elements of arguments 0 and 1, tensors or
// numbers, by op, one of opEq to opGe, with broadcasting. The kernel casts both to the dtype to
// which they are promoted, and returns a new tensor of bools. Its errors are those of compare.
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

// compare compares the elements of x and y by op, one of opEq to opGe, with broadcasting, and
// returns a new tensor of bools. x and y must have the same dtype, one that computeType returns.
// The error is a *SizeError if the shapes cannot be broadcast, a *ValueError if x and y are complex
// and op is neither opEq nor opNe, a *LimitError, or an error of package tensor.
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

// equality sets each element of out to whether the elements of x and y with the same index are
// equal if op is opEq, or whether they differ for any other op. x and y must be at least as long as
// out.
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

// ordered sets each element of out to the result of the comparison op, one of opEq to opGe, of the
// elements of x and y with the same index. x and y must be at least as long as out.
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
