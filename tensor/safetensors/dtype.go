package safetensors

import (
	"math"
	"math/bits"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// format is a dtype of the format.
type format struct {
	name  string
	bits  uint64       // of one element
	dtype tensor.DType // zero if package tensor lacks it
}

// formats lists the dtypes by rising alignment, in the order that the format's
// first implementation gives them; a writer lays tensors out in the opposite
// order.
var formats = [...]format{
	{"BOOL", 8, tensor.Bool},
	{"F4", 4, 0},
	{"F6_E2M3", 6, 0},
	{"F6_E3M2", 6, 0},
	{"U8", 8, tensor.U8},
	{"I8", 8, tensor.I8},
	{"F8_E5M2", 8, 0},
	{"F8_E4M3", 8, 0},
	{"F8_E8M0", 8, 0},
	{"F8_E4M3FNUZ", 8, 0},
	{"F8_E5M2FNUZ", 8, 0},
	{"I16", 16, tensor.I16},
	{"U16", 16, 0},
	{"F16", 16, tensor.F16},
	{"BF16", 16, tensor.BF16},
	{"I32", 32, tensor.I32},
	{"U32", 32, 0},
	{"F32", 32, tensor.F32},
	{"C64", 64, tensor.C64},
	{"F64", 64, tensor.F64},
	{"I64", 64, tensor.I64},
	{"U64", 64, 0},
}

// formatNamed finds a dtype by its name in a file.
func formatNamed(name string) (format, bool) {
	for _, f := range formats {
		if f.name == name {
			return f, true
		}
	}
	return format{}, false
}

// rankOf is the place of a dtype in formats; ok is false if it has none.
func rankOf(dtype tensor.DType) (rank int, ok bool) {
	for i, f := range formats {
		if f.dtype == dtype && dtype.Valid() {
			return i, true
		}
	}
	return 0, false
}

// byteSize is the number of bytes of n elements; ok is false if it is no whole
// number or no int.
func (f format) byteSize(n int) (size int, ok bool) {
	high, low := bits.Mul64(uint64(n), f.bits)
	if high != 0 || low%8 != 0 || low/8 > math.MaxInt {
		return 0, false
	}
	return int(low / 8), true
}
