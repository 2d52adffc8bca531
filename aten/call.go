package aten

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// call is one call of a built-in operator. args have the types of its schema, with defaults filled
// in.
type call struct {
	ctx    context.Context
	engine *ops.Engine
	args   []Value
	one    [1]Value // memory for a single result
}

// kernel computes a built-in operator from the arguments of the call. It may overwrite the slice
// c.args, but must not modify the tensors and lists in it. A kernel with several results returns
// them as a value of type results.
type kernel func(*call) (Value, error)

type results []Value

// bind returns a Kernel that runs the built-in kernel k with the engine e and returns its results in a
// new slice. If takesSparse is false, the Kernel rejects a sparse tensor among its arguments. Each
// error of the Kernel is a *KernelError with the operator's name.
func bind(name string, e *ops.Engine, k kernel, takesSparse bool) Kernel {
	return func(ctx context.Context, args []Value) ([]Value, error) {
		c := &call{ctx: ctx, engine: e, args: args}
		for _, v := range args {
			if s, ok := v.(*tensor.Sparse); ok && !takesSparse {
				return nil, &KernelError{Operator: name, Err: valueErrorf("does not take a %s; convert it with to_dense first", describe(s))}
			}
		}
		v, err := k(c)
		runtime.KeepAlive(args) // kernels use slices of the tensors' memory
		if err != nil {
			return nil, &KernelError{Operator: name, Err: err}
		}
		if many, ok := v.(results); ok {
			return many, nil
		}
		c.args, c.one[0] = nil, v
		return c.one[:], nil
	}
}

// dense returns a kernel that calls f, for an operator whose only result is a dense tensor. The
// kernel returns the tensor and the error of f, but no tensor if there is an error.
func dense(f func(*call) (*tensor.Tensor, error)) kernel {
	return func(c *call) (Value, error) { return value(f(c)) }
}

// value returns t itself as a Value, and nil. If err is not nil, it returns a nil Value, not one
// that holds the pointer t, and err.
func value[T tensor.Tensor | tensor.Sparse](t *T, err error) (Value, error) {
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (c *call) tensor(i int) *tensor.Tensor    { return c.args[i].(*tensor.Tensor) }
func (c *call) tensors(i int) []*tensor.Tensor { return c.args[i].([]*tensor.Tensor) }
func (c *call) int(i int) int                  { return toInt(c.args[i].(int64)) }
func (c *call) bool(i int) bool                { return c.args[i].(bool) }
func (c *call) float(i int) float64            { return c.args[i].(float64) }
func (c *call) given(i int) bool               { return c.args[i] != nil }

// ints returns argument i of the call, a list of ints, as a new slice. The slice is empty, not nil,
// if the argument is nil.
func (c *call) ints(i int) []int {
	list, _ := c.args[i].([]int64)
	out := make([]int, len(list))
	for i, n := range list {
		out[i] = toInt(n)
	}
	return out
}

// Value is an argument or a result of an operator, one of
//
//	*tensor.Tensor  *tensor.Sparse  []*tensor.Tensor
//	int64  float64  bool  string  []int64  nil
//
// Arguments may also be int, []int and float32, which are converted to int64, []int64 and
// float64, and nil pointers, which are converted to nil. An operator may accept types of the
// application for arguments of type Tensor, see [Operator].
type Value = any

// normalize returns v in the form that kernels get: an int as int64, a float32 as float64, an []int
// as a new []int64, and a nil *tensor.Tensor or *tensor.Sparse as nil. Other values, slices
// included, are returned themselves.
func normalize(v Value) Value {
	switch v := v.(type) {
	case int:
		return int64(v)
	case float32:
		return float64(v)
	case []int:
		out := make([]int64, len(v))
		for i, n := range v {
			out[i] = int64(n)
		}
		return out
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

// toInt returns n as an int, or, where int has 32 bits, the nearest int if n is outside its range.
func toInt(n int64) int { return int(max(math.MinInt, min(math.MaxInt, n))) }

// describe returns a short description of v for error texts: its type, and the dtype and shape of a
// tensor or the length of a list, as in "None", "int[3]" or "Tensor[2]".
func describe(v Value) string {
	switch v := normalize(v).(type) {
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

// describeAll returns the descriptions of values in parentheses, separated by commas, for error
// texts. After the first 16 it writes "..." for the others.
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
