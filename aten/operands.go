package aten

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// codes has PyTorch's number of each dtype.
var codes = map[tensor.DType]int64{
	tensor.U8: 0, tensor.I8: 1, tensor.I16: 2, tensor.I32: 3, tensor.I64: 4, tensor.F16: 5, tensor.F32: 6,
	tensor.F64: 7, tensor.C64: 9, tensor.C128: 10, tensor.Bool: 11, tensor.BF16: 15,
}

// torchNames has the names of dtypes in PyTorch's error messages.
var torchNames = map[tensor.DType]string{
	tensor.U8: "Byte", tensor.I8: "Char", tensor.I16: "Short", tensor.I32: "Int", tensor.I64: "Long", tensor.F16: "Half",
	tensor.F32: "Float", tensor.F64: "Double", tensor.C64: "ComplexFloat", tensor.C128: "ComplexDouble",
	tensor.Bool: "Bool", tensor.BF16: "BFloat16",
}

// ScalarTypeOf returns PyTorch's number of the dtype d, an int64 as arguments of kind ScalarType
// take it. The result is -1 if d is not a valid dtype.
func ScalarTypeOf(d tensor.DType) int64 {
	if code, ok := codes[d]; ok {
		return code
	}
	return -1
}

// dtype returns argument i of the call as a dtype. The argument is a name (string) or PyTorch's
// number (int64) of a dtype. If the argument is nil, dtype returns the value of the parameter
// otherwise. The error is a *tensor.DTypeError for an unknown name or a *ValueError for an unknown
// number.
func (c *call) dtype(i int, otherwise tensor.DType) (tensor.DType, error) {
	switch v := c.args[i].(type) {
	case string:
		return tensor.ParseDType(v)
	case int64:
		for d, code := range codes {
			if code == v {
				return d, nil
			}
		}
		return 0, valueErrorf("no dtype has the number %d", v)
	}
	return otherwise, nil
}

// isComplex reports whether d is a complex dtype.
func isComplex(d tensor.DType) bool { return d == tensor.C64 || d == tensor.C128 }

// isFloat reports whether d is one of the floating point dtypes F16, BF16, F32 and F64. Complex
// dtypes are not.
func isFloat(d tensor.DType) bool {
	return d == tensor.F16 || d == tensor.BF16 || d == tensor.F32 || d == tensor.F64
}

// isInt reports whether d is an integer dtype. Bool, and a dtype that is not valid, are not.
func isInt(d tensor.DType) bool {
	return !isComplex(d) && !isFloat(d) && d.Valid() && d != tensor.Bool
}

// floatType returns d itself if it is a floating point or complex dtype, and otherwise F32, which
// is PyTorch's default dtype.
func floatType(d tensor.DType) tensor.DType {
	if isFloat(d) || isComplex(d) {
		return d
	}
	return tensor.F32
}

// ranks orders the dtypes. Two dtypes are promoted to the one of higher rank, with a few
// exceptions.
var ranks = [...]int{
	tensor.Bool: 1, tensor.U8: 2, tensor.I8: 2, tensor.I16: 3, tensor.I32: 4, tensor.I64: 5,
	tensor.F16: 6, tensor.BF16: 6, tensor.F32: 7, tensor.F64: 8, tensor.C64: 9, tensor.C128: 10,
}

// promote returns the dtype to which PyTorch converts elements of the dtypes a and b to compute
// with both. If one of a and b is the zero DType, promote returns the other.
func promote(a, b tensor.DType) tensor.DType {
	if ranks[a] < ranks[b] {
		a, b = b, a
	}
	switch {
	case a == b:
		return a
	case a == tensor.C64 && b == tensor.F64:
		return tensor.C128
	case ranks[a] > ranks[b]:
		return a
	case isFloat(a): // f16 and bf16
		return tensor.F32
	}
	return tensor.I16 // u8 and i8
}

// operands determines the dtype to which the arguments that are passed to add are promoted. Tensors
// with dimensions have precedence. Tensors without dimensions, and then numbers, count only if
// their category is higher: bool, integer, floating point, complex.
type operands struct{ dims, scalars, numbers tensor.DType }

// add includes v, an argument of the call, in the promotion that o computes. v is a dense or sparse
// tensor, or a number: bool, int64 or float64.
func (o *operands) add(v Value) {
	switch v := v.(type) {
	case *tensor.Sparse:
		o.dims = promote(o.dims, v.DType())
	case *tensor.Tensor:
		if v.Rank() > 0 {
			o.dims = promote(o.dims, v.DType())
		} else {
			o.scalars = promote(o.scalars, v.DType())
		}
	default:
		o.numbers = promote(o.numbers, scalarType(v))
	}
}

// scalarType returns the dtype that the number v, an argument that is not a tensor, has in a
// promotion: Bool for a bool, I64 for an int64, and F32 for anything else.
func scalarType(v Value) tensor.DType {
	switch v.(type) {
	case bool:
		return tensor.Bool
	case int64:
		return tensor.I64
	}
	return tensor.F32
}

// dtype returns the dtype to which all arguments passed to add are promoted, and the zero DType if
// there were none.
func (o *operands) dtype() tensor.DType {
	return promoteCategory(o.dims, promoteCategory(o.scalars, o.numbers))
}

// promoteCategory returns first, unless second has a higher category. The categories, from the
// lowest, are bool, integer, floating point and complex; the zero DType is below all of them. If
// the category of second is higher, the result is second, except that a floating point first
// becomes the complex dtype of its own precision: C128 for F64, and otherwise C64.
func promoteCategory(first, second tensor.DType) tensor.DType {
	switch {
	case isComplex(first):
		return first
	case isFloat(first):
		if !isComplex(second) {
			return first
		}
		if first == tensor.F64 {
			return tensor.C128
		}
		return tensor.C64
	case first == 0 || first == tensor.Bool || isFloat(second) || isComplex(second):
		return promote(first, second)
	}
	return first
}

// resultType returns the dtype to which PyTorch promotes the arguments a and b of an operator, each
// a dense or sparse tensor or a number. A tensor with dimensions takes precedence over one without
// dimensions, and any tensor over a number. An argument of lower precedence counts only if its
// category (bool, integer, floating point or complex, in this order) is higher.
func resultType(a, b Value) tensor.DType {
	var o operands
	o.add(a)
	o.add(b)
	return o.dtype()
}

// broadcast returns the shape to which the shapes a and b are broadcast: they are aligned at their
// last dimensions, a missing dimension counts as size 1, and size 1 takes the size in the other
// shape. The result may be a or b itself and must not be modified. If two sizes differ and neither
// is 1, the error is a *SizeError.
func broadcast(a, b []int) ([]int, error) {
	if slices.Equal(a, b) {
		return a, nil
	}
	long, short := a, b
	if len(a) < len(b) {
		long, short = b, a
	}
	shape := slices.Clone(long)
	added := len(long) - len(short)
	for i, size := range short {
		switch at := added + i; {
		case shape[at] == 1:
			shape[at] = size
		case size != 1 && size != shape[at]:
			return nil, &SizeError{A: a[at-len(long)+len(a)], B: b[at-len(long)+len(b)], Dim: at}
		}
	}
	return shape, nil
}

// loopDim is one dimension of a loop over two contiguous operands x and y: its size, and the step
// in elements of each operand. A step of 0 repeats an element.
type loopDim struct{ size, x, y int }

// loopDims returns the dimensions, innermost first, of a nested loop over the elements of a tensor
// of the given shape, in row-major order. xs and ys are the shapes of the two contiguous operands,
// which are broadcast to shape. Dimensions of size 1 are left out, and adjacent dimensions are
// merged where both operands allow it. The result has at least one dimension.
func loopDims(shape, xs, ys []int) []loopDim {
	out := make([]loopDim, 0, len(shape)+1)
	xStep, yStep := 1, 1
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] == 1 {
			continue
		}
		l := loopDim{size: shape[i]}
		l.x, xStep = stride(xs, i-len(shape)+len(xs), xStep)
		l.y, yStep = stride(ys, i-len(shape)+len(ys), yStep)
		if n := len(out) - 1; n >= 0 && out[n].x*out[n].size == l.x && out[n].y*out[n].size == l.y {
			out[n].size *= l.size
			continue
		}
		out = append(out, l)
	}
	if len(out) == 0 {
		out = append(out, loopDim{1, 1, 1})
	}
	return out
}

// stride returns, as current, the distance in elements between neighbours in dimension i of a
// contiguous operand of that shape. current is 0 if the dimension has size 1, or if i is negative:
// then the operand does not have the dimension. step is the number of elements in the dimensions
// after i, and next is that number for the call with i-1.
func stride(shape []int, i, step int) (current, next int) {
	if i < 0 || shape[i] == 1 {
		return 0, step
	}
	return step, step * shape[i]
}

// walk visits the positions x and y in two operands, in the order of the loop loopDims.
type walk struct {
	loopDims []loopDim
	index    [tensor.MaxRank]int
	x, y     int
}

// next moves w.x and w.y to the next position of the loop and returns true. After the last position
// it moves back to the first and returns false.
func (w *walk) next() bool {
	for i, l := range w.loopDims {
		if w.index[i]++; w.index[i] < l.size {
			w.x += l.x
			w.y += l.y
			return true
		}
		w.index[i] = 0
		w.x -= (l.size - 1) * l.x
		w.y -= (l.size - 1) * l.y
	}
	return false
}

// chunk is the number of copies made at once of an element that is repeated, so that row
// functions always get slices.
const chunk = 512

// row computes the elements of out by op from those of x and y, which have the same length. It
// takes op as an argument because a closure over op would cost an allocation per call.
type row[T, R any] func(op opcode, out []R, x, y []T)

// zip computes all elements of out, a contiguous tensor of the given shape, from the operands x and
// y, contiguous tensors of the shapes xs and ys, which are broadcast to shape. It calls f with op
// and slices of equal length of out, x and y, until out is complete. The slices are valid only
// during the call of f.
func zip[T, R any](op opcode, shape []int, out []R, x, y []T, xs, ys []int, f row[T, R]) {
	if len(out) == 0 {
		return
	}
	if slices.Equal(xs, ys) {
		f(op, out, x, y)
		return
	}
	all := loopDims(shape, xs, ys)
	w := walk{loopDims: all[1:]}
	inner := all[0]
	var xFill, yFill filler[T]
	for {
		step := inner.size
		if inner.x == 0 || inner.y == 0 {
			step = min(step, chunk)
		}
		for at := 0; at < inner.size; at += step {
			n := min(step, inner.size-at)
			f(op, out[at:at+n], xFill.slice(x, w.x, inner.x, at, n), yFill.slice(y, w.y, inner.y, at, n))
		}
		out = out[inner.size:]
		if !w.next() {
			return
		}
	}
}

// filler provides slices of one operand's rows; for an operand that repeats one element it fills a
// buffer of its own.
type filler[T any] struct{ buf []T }

// slice returns elements at to at+n-1 of the row of data that begins at data[start]. step is the
// distance of the elements of the row in data, 1 or 0. If step is 1, the result is a part of data.
// If step is 0, all elements are data[start] and the result is a buffer of f, valid until the next
// call; n must then be at most chunk, and the calls for one row must begin with at 0 and must not
// increase n.
func (f *filler[T]) slice(data []T, start, step, at, n int) []T {
	if step != 0 {
		return data[start+at:][:n]
	}
	if f.buf == nil {
		f.buf = make([]T, chunk)
	}
	buf := f.buf[:n]
	if at == 0 { // later slices of the row are filled already, and not longer
		for i := range buf {
			buf[i] = data[start]
		}
	}
	return buf
}

// combineTensors broadcasts x and y, computes each element of a new tensor from their elements by
// f, to which it passes op, and returns the tensor. T must be the Go type of the dtype of x and y.
// The error is a *SizeError if the shapes cannot be broadcast, a *LimitError, or an error of
// package tensor.
func combineTensors[T, R tensor.Element](c *call, op opcode, x, y *tensor.Tensor, f row[T, R]) (*tensor.Tensor, error) {
	shape, err := broadcast(x.Shape(), y.Shape())
	if err != nil {
		return nil, err
	}
	out, to, err := newTensor[R](c, shape...)
	if err != nil {
		return nil, err
	}
	a, err := elements[T](c, x)
	if err != nil {
		return nil, err
	}
	b, err := elements[T](c, y)
	if err != nil {
		return nil, err
	}
	zip(op, shape, to, a, b, x.Shape(), y.Shape(), f)
	return out, nil
}
