package aten

import "github.com/tensorpipe-go/tensorpipe/tensor"

// codes is PyTorch's number of each dtype.
var codes = map[tensor.DType]int64{
	tensor.U8: 0, tensor.I8: 1, tensor.I16: 2, tensor.I32: 3, tensor.I64: 4, tensor.F16: 5, tensor.F32: 6,
	tensor.F64: 7, tensor.C64: 9, tensor.C128: 10, tensor.Bool: 11, tensor.BF16: 15,
}

// torchNames is how PyTorch's texts call a dtype.
var torchNames = map[tensor.DType]string{
	tensor.U8: "Byte", tensor.I8: "Char", tensor.I16: "Short", tensor.I32: "Int", tensor.I64: "Long", tensor.F16: "Half",
	tensor.F32: "Float", tensor.F64: "Double", tensor.C64: "ComplexFloat", tensor.C128: "ComplexDouble",
	tensor.Bool: "Bool", tensor.BF16: "BFloat16",
}

// ScalarTypeOf is the argument of kind ScalarType for a dtype: PyTorch's number.
// It is -1 if d is not valid.
func ScalarTypeOf(d tensor.DType) int64 {
	if code, ok := codes[d]; ok {
		return code
	}
	return -1
}

// dtype is the argument as a dtype, or otherwise if there is none.
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
		return 0, fault("no dtype has the number %d", v)
	}
	return otherwise, nil
}

func isComplex(d tensor.DType) bool { return d == tensor.C64 || d == tensor.C128 }

func isFloat(d tensor.DType) bool {
	return d == tensor.F16 || d == tensor.BF16 || d == tensor.F32 || d == tensor.F64
}

// isInt reports whether d is an integer; a bool is none.
func isInt(d tensor.DType) bool {
	return !isComplex(d) && !isFloat(d) && d.Valid() && d != tensor.Bool
}

// floating is d if that has fractions, and else the default dtype.
func floating(d tensor.DType) tensor.DType {
	if isFloat(d) || isComplex(d) {
		return d
	}
	return tensor.F32
}

// ranks orders the dtypes, so that the promotion of two is the higher one but for
// a few pairs.
var ranks = [...]int{
	tensor.Bool: 1, tensor.U8: 2, tensor.I8: 2, tensor.I16: 3, tensor.I32: 4, tensor.I64: 5,
	tensor.F16: 6, tensor.BF16: 6, tensor.F32: 7, tensor.F64: 8, tensor.C64: 9, tensor.C128: 10,
}

// promote is the smallest dtype that holds both; the zero DType gives way.
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
	case isFloat(a): // the two halves
		return tensor.F32
	}
	return tensor.I16 // u8 and i8
}

// operands finds the dtype in which arguments meet. Tensors with dimensions
// count first; scalar tensors and then numbers only if they are of a higher
// category, among bool, integer, floating and complex.
type operands struct{ dims, scalars, numbers tensor.DType }

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
		o.numbers = promote(o.numbers, numberType(v))
	}
}

// numberType is the dtype of a number of its own.
func numberType(v Value) tensor.DType {
	switch v.(type) {
	case bool:
		return tensor.Bool
	case int64:
		return tensor.I64
	}
	return tensor.F32
}

func (o *operands) dtype() tensor.DType {
	return combine(o.dims, combine(o.scalars, o.numbers))
}

// combine lets the second win only if it is of a higher category.
func combine(first, second tensor.DType) tensor.DType {
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

// meet is the dtype in which two arguments are computed with.
func meet(a, b Value) tensor.DType {
	var o operands
	o.add(a)
	o.add(b)
	return o.dtype()
}
