package aten

import (
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// codes has PyTorch's number of each dtype.
var codes = map[tensor.DType]int64{
	tensor.U8: 0, tensor.I8: 1, tensor.I16: 2, tensor.I32: 3, tensor.I64: 4, tensor.F16: 5, tensor.F32: 6,
	tensor.F64: 7, tensor.C64: 9, tensor.C128: 10, tensor.Bool: 11, tensor.BF16: 15,
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
// otherwise. The error is a *tensor.DTypeError for an unknown name or an *ops.ValueError for an
// unknown number.
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

// number returns argument i of the call, a bool, int64 or float64, as a number.
func (c *call) number(i int) ops.Number {
	switch v := c.args[i].(type) {
	case bool:
		return ops.Bool(v)
	case int64:
		return ops.Int(v)
	}
	return ops.Float(c.float(i))
}

// options checks arguments i to i+3 of a function that creates a tensor: dtype, layout, device and
// pin_memory, each nil if it is not given. It returns the dtype in argument i, or, if that is nil,
// the value of the parameter otherwise. The error is an *ops.ValueError if a layout other than
// strided, a device other than the cpu, or pinned memory is requested, and that of call.dtype for
// an unknown dtype.
func (c *call) options(i int, otherwise tensor.DType) (tensor.DType, error) {
	if layout := c.args[i+1]; layout != nil && layout != int64(0) {
		return 0, valueErrorf("only the strided layout can be created")
	}
	if where := c.args[i+2]; where != nil && where != "cpu" && where != "cpu:0" {
		return 0, valueErrorf("tensors are created on the cpu, not on %.64v", where)
	}
	if c.args[i+3] == true {
		return 0, valueErrorf("memory cannot be pinned")
	}
	return c.dtype(i, otherwise)
}
