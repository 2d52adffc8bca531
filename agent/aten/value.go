package aten

import (
	"fmt"
	"math"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Value is an argument or a result of an operator, one of
//
//	*tensor.Tensor  *tensor.Sparse  []*tensor.Tensor
//	int64  float64  bool  string  []int64  nil
//
// Arguments may also be int, []int and float32, which become int64, []int64 and
// float64 before a kernel sees them; nil pointers become nil. An operator may
// take values of the application's own where its schema says Tensor, see
// [Operator].
type Value = any

// normal is the form of a value that kernels see.
func normal(v Value) Value {
	switch v := v.(type) {
	case int:
		return int64(v)
	case float32:
		return float64(v)
	case []int:
		return widen(v)
	case *tensor.Tensor:
		if v == nil {
			return nil
		}
	case *tensor.Sparse:
		if v == nil {
			return nil
		}
	}
	return v
}

func widen(list []int) []int64 {
	out := make([]int64, len(list))
	for i, n := range list {
		out[i] = int64(n)
	}
	return out
}

// ints is the counterpart of widen. What is no int on this machine becomes
// one that no shape and no index can be.
func ints(list []int64) []int {
	out := make([]int, len(list))
	for i, n := range list {
		out[i] = toInt(n)
	}
	return out
}

func toInt(n int64) int { return int(max(math.MinInt, min(math.MaxInt, n))) }

// describe says what a value is, for errors.
func describe(v Value) string {
	switch v := normal(v).(type) {
	case nil:
		return "None"
	case *tensor.Tensor:
		return "Tensor " + v.String()
	case *tensor.Sparse:
		return fmt.Sprintf("sparse Tensor %v%v", v.DType(), v.Shape())
	case []*tensor.Tensor:
		return fmt.Sprintf("Tensor[%d]", len(v))
	case int64:
		return "int"
	case float64:
		return "float"
	case bool:
		return "bool"
	case string:
		return "str"
	case []int64:
		return fmt.Sprintf("int[%d]", len(v))
	default:
		return fmt.Sprintf("%T", v)
	}
}

func describeAll(values []Value) string {
	var words []string
	for i, v := range values {
		if i == 16 {
			words = append(words, "...")
			break
		}
		words = append(words, describe(v))
	}
	return "(" + strings.Join(words, ", ") + ")"
}
