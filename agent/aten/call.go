package aten

import (
	"context"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Limits bounds what a call of the kernels of this package may use. The zero
// value has the defaults.
type Limits struct {
	// TensorBytes bounds each tensor that a call makes, in bytes of its elements,
	// those on the way to the result included and those of expand, which makes only
	// a view; 0 is 1 GiB. A call holds at most a few such tensors at a time.
	TensorBytes int
}

func (l Limits) tensorBytes() int {
	if l.TensorBytes > 0 {
		return l.TensorBytes
	}
	return 1 << 30
}

// call is one call of a kernel. The arguments have the types of the schema.
type call struct {
	ctx    context.Context
	limits Limits
	args   []Value
	one    [1]Value // room for the result of most
}

// kernel computes a built-in operator. Several results come as a results.
type kernel func(*call) (Value, error)

type results []Value

// bind makes a Kernel of a kernel. Most kernels take dense tensors only.
func bind(name string, limits Limits, k kernel, takesSparse bool) Kernel {
	return func(ctx context.Context, args []Value) ([]Value, error) {
		c := &call{ctx: ctx, limits: limits, args: args}
		v, err := c.run(k, takesSparse)
		runtime.KeepAlive(args) // kernels work on slices of their memory
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

func (c *call) run(k kernel, takesSparse bool) (Value, error) {
	if !takesSparse {
		for _, v := range c.args {
			if s, ok := v.(*tensor.Sparse); ok {
				return nil, fault("does not take a %s; make it dense first", describe(s))
			}
		}
	}
	return k(c)
}

// dense makes a kernel of a function that returns a tensor.
func dense(f func(*call) (*tensor.Tensor, error)) kernel {
	return func(c *call) (Value, error) { return value(f(c)) }
}

// value is what a function returned, where a nil pointer must not become a Value.
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

// ints is a list, empty where there is none.
func (c *call) ints(i int) []int {
	list, _ := c.args[i].([]int64)
	return ints(list)
}

// dim is the argument as a dimension of a tensor of that rank. Negative ones
// count from the end, and a scalar has dimensions 0 and -1.
func (c *call) dim(i, rank int) (int, error) { return wrapDim(c.int(i), rank) }

func wrapDim(dim, rank int) (int, error) {
	n := max(rank, 1)
	if dim < -n || dim >= n {
		return 0, fault("Dimension out of range (expected to be in range of [%d, %d], but got %d)", -n, n-1, dim)
	}
	if dim < 0 {
		dim += n
	}
	return dim, nil
}

// room fails if a tensor of that shape is beyond the limit.
func (c *call) room(dtype tensor.DType, shape []int) error {
	size, err := tensor.ByteSize(dtype, shape)
	if err != nil {
		return err
	}
	if limit := c.limits.tensorBytes(); size > limit {
		return &LimitError{Bytes: size, Limit: limit}
	}
	return nil
}

// zeros makes a tensor within the limit.
func (c *call) zeros(dtype tensor.DType, shape ...int) (*tensor.Tensor, error) {
	if err := c.room(dtype, shape); err != nil {
		return nil, err
	}
	return tensor.Zeros(dtype, shape...)
}

// clone copies a tensor, of which a view may stand for more than there is memory.
func (c *call) clone(t *tensor.Tensor) (*tensor.Tensor, error) {
	if err := c.room(t.DType(), t.Shape()); err != nil {
		return nil, err
	}
	return t.Clone()
}

// contiguous copies a tensor unless it is contiguous.
func (c *call) contiguous(t *tensor.Tensor) (*tensor.Tensor, error) {
	if t.IsContiguous() {
		return t, nil
	}
	return c.clone(t)
}
