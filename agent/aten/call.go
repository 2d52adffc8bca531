package aten

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Limits bounds the memory of a call of a kernel of this package. The zero value stands for
// the defaults.
type Limits struct {
	// TensorBytes bounds the bytes of each tensor that a call creates, intermediate results
	// and the views that expand returns included; default 1 GiB. A call holds at most a few
	// such tensors at a time.
	TensorBytes int
}

// tensorBytes returns TensorBytes or its default.
func (l Limits) tensorBytes() int {
	if l.TensorBytes > 0 {
		return l.TensorBytes
	}
	return 1 << 30
}

// call is one call of a built-in operator. args have the types of its schema, with defaults filled in.
type call struct {
	ctx    context.Context
	limits Limits
	args   []Value
	one    [1]Value // memory for a single result
}

// kernel computes a built-in operator from the arguments of the call, which it must not modify. A
// kernel with several results returns them as a value of type results.
type kernel func(*call) (Value, error)

type results []Value

// bind returns a Kernel that runs the built-in kernel k. The errors of the Kernel are *KernelError with
// the given name of the operator. Unless takesSparse is set it rejects sparse tensors among the
// arguments.
func bind(name string, limits Limits, k kernel, takesSparse bool) Kernel {
	return func(ctx context.Context, args []Value) ([]Value, error) {
		c := &call{ctx: ctx, limits: limits, args: args}
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

// dense returns a kernel that calls f, for an operator whose only result is a dense tensor.
func dense(f func(*call) (*tensor.Tensor, error)) kernel {
	return func(c *call) (Value, error) { return value(f(c)) }
}

// value returns t, a result of a kernel, as a Value. If err is not nil it returns a nil Value and err.
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

// ints returns argument i, a list of ints, as a new slice; an empty one if the argument is nil.
func (c *call) ints(i int) []int {
	list, _ := c.args[i].([]int64)
	out := make([]int, len(list))
	for i, n := range list {
		out[i] = toInt(n)
	}
	return out
}

// dim returns argument i, an int, as a dimension of a tensor of the given rank, from 0 on. A negative
// argument counts from the end; a scalar counts as having one dimension. The error is a *ValueError.
func (c *call) dim(i, rank int) (int, error) { return wrapDim(c.int(i), rank) }

// wrapDim returns dim as a dimension of a tensor of the given rank, like call.dim.
func wrapDim(dim, rank int) (int, error) {
	n := max(rank, 1)
	if dim < -n || dim >= n {
		return 0, valueErrorf("Dimension out of range (expected to be in range of [%d, %d], but got %d)", -n, n-1, dim)
	}
	if dim < 0 {
		dim += n
	}
	return dim, nil
}

// checkSize returns a *LimitError if a tensor of this dtype and shape exceeds the limit of the call, or
// the error of tensor.ByteSize.
func (c *call) checkSize(dtype tensor.DType, shape []int) error {
	size, err := tensor.ByteSize(dtype, shape)
	if err != nil {
		return err
	}
	if limit := c.limits.tensorBytes(); size > limit {
		return &LimitError{Bytes: size, Limit: limit}
	}
	return nil
}

// zeros returns a new tensor of zeros. The error is that of checkSize.
func (c *call) zeros(dtype tensor.DType, shape ...int) (*tensor.Tensor, error) {
	if err := c.checkSize(dtype, shape); err != nil {
		return nil, err
	}
	return tensor.Zeros(dtype, shape...)
}

// clone returns a contiguous copy of t on the Go heap. The error is a *LimitError, also for a view
// whose copy would be larger than its own memory, or one of package tensor.
func (c *call) clone(t *tensor.Tensor) (*tensor.Tensor, error) {
	if err := c.checkSize(t.DType(), t.Shape()); err != nil {
		return nil, err
	}
	return t.Clone()
}

// contiguous returns t, or a contiguous copy if t is not contiguous. The error is that of clone.
func (c *call) contiguous(t *tensor.Tensor) (*tensor.Tensor, error) {
	if t.IsContiguous() {
		return t, nil
	}
	return c.clone(t)
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

// normalize returns v in the form that kernels get: int, float32 and []int are converted, and nil
// tensor pointers become nil. Other values are returned unchanged.
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

// toInt returns n, or the nearest int if n is outside the range of int. Such an int is never a valid
// size or index.
func toInt(n int64) int { return int(max(math.MinInt, min(math.MaxInt, n))) }

// describe returns a description of the type and shape of v for error texts.
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

// describeAll returns the descriptions of a list of arguments, of which it shows the first 16.
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
