package ops

import "github.com/tensorpipe-go/tensorpipe/tensor"

// Constraints of the types in which kernels compute. Bools are computed as bytes, half
// precision as float32.
type (
	integer interface {
		uint8 | int8 | int16 | int32 | int64
	}
	floatNum   interface{ float32 | float64 }
	realNum    interface{ integer | floatNum }
	complexNum interface{ complex64 | complex128 }
	number     interface{ realNum | complexNum }
)

// computeType returns the dtype in which kernels compute with elements of dtype d: U8 for Bool, F32
// for F16 and BF16, and d itself for all others.
func computeType(d tensor.DType) tensor.DType {
	switch d {
	case tensor.Bool:
		return tensor.U8
	case tensor.F16, tensor.BF16:
		return tensor.F32
	}
	return d
}

// torchNames has the names of dtypes in PyTorch's error messages.
var torchNames = [...]string{
	tensor.U8: "Byte", tensor.I8: "Char", tensor.I16: "Short", tensor.I32: "Int", tensor.I64: "Long", tensor.F16: "Half",
	tensor.F32: "Float", tensor.F64: "Double", tensor.C64: "ComplexFloat", tensor.C128: "ComplexDouble",
	tensor.Bool: "Bool", tensor.BF16: "BFloat16",
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

// operands determines the dtype to which the arguments that are added are promoted. Tensors with
// dimensions have precedence. Tensors without dimensions, and then numbers, count only if their
// category is higher: bool, integer, floating point, complex.
type operands struct{ dims, scalars, numbers tensor.DType }

// add includes the dense tensor t in the promotion that o computes.
func (o *operands) add(t *tensor.Tensor) {
	if t.Rank() > 0 {
		o.dims = promote(o.dims, t.DType())
	} else {
		o.scalars = promote(o.scalars, t.DType())
	}
}

// dtype returns the dtype to which all added arguments are promoted, and the zero DType if there
// were none.
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

// ResultType returns the dtype to which PyTorch promotes the tensors x and y of an operator. A
// tensor with dimensions takes precedence over one without: the latter counts only if its category
// (bool, integer, floating point or complex, in this order) is higher.
func ResultType(x, y *tensor.Tensor) tensor.DType {
	if x.DType() == y.DType() {
		return x.DType()
	}
	var o operands
	o.add(x)
	o.add(y)
	return o.dtype()
}

// NumberResultType returns the dtype to which PyTorch promotes a tensor of dtype d and the number n.
// The number counts only if its category is higher.
func NumberResultType(d tensor.DType, n Number) tensor.DType {
	return promoteCategory(d, n.DType())
}

// sparseResultType returns the dtype to which a sparse tensor of dtype d and the dense tensor x are
// promoted. A sparse tensor counts as one with dimensions.
func sparseResultType(d tensor.DType, x *tensor.Tensor) tensor.DType {
	o := operands{dims: d}
	o.add(x)
	return o.dtype()
}

// sameDType returns nil if x and y have the same dtype, and otherwise a *ValueError.
func sameDType(x, y *tensor.Tensor) error {
	if x.DType() != y.DType() {
		return valueErrorf("expected scalar type %s but found %s", torchNames[x.DType()], torchNames[y.DType()])
	}
	return nil
}
