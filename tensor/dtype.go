package tensor

// DType is the type of a tensor's elements. The zero DType is none.
type DType uint8

// The element types. Sizes are in the names; C64 is two F32, C128 two F64, the
// real part first.
const (
	Bool DType = iota + 1 // one byte, 0 or 1
	U8
	I8
	I16
	I32
	I64
	F16  // IEEE 754 half precision, see Float16
	BF16 // the upper half of an F32, see BFloat16
	F32
	F64
	C64
	C128
)

// dtypes is indexed by DType; its first entry describes the zero DType.
var dtypes = [...]struct {
	name string
	size int
}{
	{"none", 0},
	Bool: {"bool", 1},
	U8:   {"u8", 1},
	I8:   {"i8", 1},
	I16:  {"i16", 2},
	I32:  {"i32", 4},
	I64:  {"i64", 8},
	F16:  {"f16", 2},
	BF16: {"bf16", 2},
	F32:  {"f32", 4},
	F64:  {"f64", 8},
	C64:  {"c64", 8},
	C128: {"c128", 16},
}

// Valid reports whether d is one of the element types.
func (d DType) Valid() bool { return d > 0 && int(d) < len(dtypes) }

// Size is the number of bytes of one element, 0 if d is not valid.
func (d DType) Size() int {
	if !d.Valid() {
		return 0
	}
	return dtypes[d].size
}

// String is the short name, as in "f32"; "none" if d is not valid.
func (d DType) String() string {
	if !d.Valid() {
		return dtypes[0].name
	}
	return dtypes[d].name
}

// ParseDType reads the form that String prints. The error is a *DTypeError.
func ParseDType(name string) (DType, error) {
	for d := Bool; d.Valid(); d++ {
		if dtypes[d].name == name {
			return d, nil
		}
	}
	return 0, &DTypeError{Name: name, Reason: "no such dtype; want one of bool, u8, i8, i16, i32, i64, f16, bf16, f32, f64, c64, c128"}
}

// Element is a Go type that represents one element of a tensor.
type Element interface {
	bool | uint8 | int8 | int16 | int32 | int64 |
		Float16 | BFloat16 | float32 | float64 | complex64 | complex128
}

// DTypeOf is the dtype whose elements are represented by T.
func DTypeOf[T Element]() DType {
	var zero T
	switch any(zero).(type) {
	case bool:
		return Bool
	case uint8:
		return U8
	case int8:
		return I8
	case int16:
		return I16
	case int32:
		return I32
	case int64:
		return I64
	case Float16:
		return F16
	case BFloat16:
		return BF16
	case float32:
		return F32
	case float64:
		return F64
	case complex64:
		return C64
	default:
		return C128
	}
}
