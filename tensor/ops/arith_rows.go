package ops

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

// operation is what a row function computes of two elements. If scaled is set, op is opAdd and the
// second element is multiplied by factor before.
type operation[T any] struct {
	op     opcode
	scaled bool
	factor T
}

// arithmeticRow is the row function of opAdd, opSub, opMul and opDiv. op must not be opDiv if T is
// an integer type: a divisor of zero would panic.
func arithmeticRow[T number](op operation[T], out, x, y []T, xStep, yStep int) {
	switch {
	case len(out) == 1 || xStep == 0 && yStep == 0:
		arithmetic(op, out[:1], x, y)
		for i := range out {
			out[i] = out[0]
		}
	case xStep == 0:
		arithmeticLeft(op, out, x[0], y)
	case yStep == 0:
		arithmeticRight(op, out, x, y[0])
	default:
		arithmetic(op, out, x, y)
	}
}

// arithmetic sets each element of out to the result of op for the elements of x and y with the same
// index. x and y must be at least as long as out, and may be out itself.
func arithmetic[T number](op operation[T], out, x, y []T) {
	x, y = x[:len(out)], y[:len(out)]
	switch {
	case op.scaled:
		for i := range out {
			out[i] = x[i] + T(op.factor*y[i])
		}
	case op.op == opAdd:
		for i := range out {
			out[i] = x[i] + y[i]
		}
	case op.op == opSub:
		for i := range out {
			out[i] = x[i] - y[i]
		}
	case op.op == opMul:
		for i := range out {
			out[i] = x[i] * y[i]
		}
	default:
		for i := range out {
			out[i] = x[i] / y[i]
		}
	}
}

// arithmeticRight is arithmetic with the number y in place of each element of y.
func arithmeticRight[T number](op operation[T], out, x []T, y T) {
	x = x[:len(out)]
	if op.scaled {
		y *= op.factor
	}
	switch op.op {
	case opAdd:
		for i := range out {
			out[i] = x[i] + y
		}
	case opSub:
		for i := range out {
			out[i] = x[i] - y
		}
	case opMul:
		for i := range out {
			out[i] = x[i] * y
		}
	default:
		for i := range out {
			out[i] = x[i] / y
		}
	}
}

// arithmeticLeft is arithmetic with the number x in place of each element of x.
func arithmeticLeft[T number](op operation[T], out []T, x T, y []T) {
	y = y[:len(out)]
	switch {
	case op.scaled:
		for i := range out {
			out[i] = x + T(op.factor*y[i])
		}
	case op.op == opSub:
		for i := range out {
			out[i] = x - y[i]
		}
	case op.op == opDiv:
		for i := range out {
			out[i] = x / y[i]
		}
	default: // the order does not matter
		arithmeticRight(op, out, y, x)
	}
}
