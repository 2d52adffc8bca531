package aten

import (
	"cmp"
	"math"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// options checks the arguments dtype, layout, device and pin_memory of a function that creates a
// tensor. The first of them is argument i. It returns the given dtype, or the value of the parameter
// otherwise if none is given. The error is a *ValueError for anything but strided, unpinned memory on
// the cpu, or that of call.dtype.
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

// constant returns a kernel that creates a tensor with all elements equal to v, or to argument 1 if v is
// nil. Argument 0 is its shape, or a tensor whose shape and dtype it takes over.
func constant(v Value) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		v, d, options := v, tensor.F32, 1
		if v == nil {
			v, d, options = c.args[1], scalarType(c.args[1]), 2
		}
		shape := c.ints(0)
		if like, ok := c.args[0].(*tensor.Tensor); ok {
			shape, d = like.Shape(), like.DType()
		}
		d, err := c.options(options, d)
		if err != nil {
			return nil, err
		}
		if v == int64(0) {
			return c.zeros(d, shape...)
		}
		return c.filled(v, d, shape)
	})
}

// filled returns a new tensor of dtype d with all elements equal to the number v. The error is a
// *ValueError if v is not in the range of d, a *LimitError, or one of package tensor.
func (c *call) filled(v Value, d tensor.DType, shape []int) (*tensor.Tensor, error) {
	one, err := c.scalar(v, d)
	if err != nil {
		return nil, err
	}
	if !fits(v, d) {
		return nil, valueErrorf("value cannot be converted to type %v without overflow", d)
	}
	if err := c.checkSize(d, shape); err != nil {
		return nil, err
	}
	all, err := one.Expand(shape...)
	if err != nil {
		return nil, err
	}
	return all.Clone()
}

// fits reports whether the number v, with its fraction dropped, is in the range of d. Any number fits a
// dtype that is not an integer.
func fits(v Value, d tensor.DType) bool {
	if !isInt(d) {
		return true
	}
	low, high := -math.Ldexp(1, 8*d.Size()-1), math.Ldexp(1, 8*d.Size()-1)
	if d == tensor.U8 {
		low, high = 0, 256
	}
	if _, ok := v.(int64); ok && d == tensor.I64 {
		return true // also values that a float64 would round up
	}
	f := math.Trunc(toFloat(v))
	return f >= low && f < high
}

// eye returns a kernel that creates a matrix of zeros with ones on its diagonal. numbers is the number
// of arguments for its size: 1 for a square, 2 for rows and columns.
func eye(numbers int) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		d, err := c.options(numbers, tensor.F32)
		if err != nil {
			return nil, err
		}
		rows, columns := c.int(0), c.int(numbers-1)
		t, err := c.zeros(d, rows, columns)
		if err != nil {
			return nil, err
		}
		n := min(rows, columns)
		if n == 0 {
			return t, nil
		}
		diagonal, err := tensor.Strided(t.Storage(), d, []int{n}, []int{columns + 1}, 0)
		if err != nil {
			return nil, err
		}
		ones, err := c.filled(int64(1), d, []int{n})
		if err != nil {
			return nil, err
		}
		return t, diagonal.CopyFrom(ones)
	})
}

// arange returns a kernel that creates a vector of the numbers start, start+step, ... before end.
// numbers is the number of arguments for them: 1 for end, 2 for start and end, 3 for all. If the dtype
// is not given the numbers are I64, or F32 if one of the arguments is a float. The error is a
// *ValueError or a *LimitError.
func arange(numbers int) kernel {
	return dense(func(c *call) (*tensor.Tensor, error) {
		start, end, step := Value(int64(0)), c.args[0], Value(int64(1))
		if numbers > 1 {
			start, end = c.args[0], c.args[1]
		}
		if numbers > 2 {
			step = c.args[2]
		}
		otherwise := tensor.I64
		for _, v := range []Value{start, end, step} {
			if _, ok := v.(float64); ok {
				otherwise = tensor.F32
			}
		}
		d, err := c.options(numbers, otherwise)
		if err != nil {
			return nil, err
		}
		if d == tensor.Bool || isComplex(d) {
			return nil, valueErrorf("arange does not support %v", d)
		}
		for _, v := range []Value{start, end, step} {
			if !fits(v, d) {
				return nil, valueErrorf("value cannot be converted to type %v without overflow", d)
			}
		}
		var t *tensor.Tensor
		if isInt(d) && otherwise == tensor.I64 {
			t, err = c.arangeInts(toInt64(start), toInt64(end), toInt64(step))
		} else {
			t, err = c.arangeFloats(toFloat(start), toFloat(end), toFloat(step), isInt(d))
		}
		if err != nil {
			return nil, err
		}
		return c.cast(t, d)
	})
}

// arangeFloats returns a new F64 vector of the numbers start, start+step, ... before end. If whole is
// set, start and step are truncated after the length has been computed, as PyTorch does. The error is a
// *ValueError or a *LimitError.
func (c *call) arangeFloats(start, end, step float64, whole bool) (*tensor.Tensor, error) {
	if math.IsNaN(end-start) || math.IsInf(end-start, 0) {
		return nil, valueErrorf("unsupported range: %v -> %v", start, end)
	}
	if err := checkStep(step > 0, step < 0, end-start); err != nil {
		return nil, err
	}
	n := math.Ceil((end - start) / step)
	if n > float64(c.limits.tensorBytes()) { // n may exceed the range of int
		return nil, &LimitError{Bytes: toInt(int64(min(n, 1<<62))), Limit: c.limits.tensorBytes()}
	}
	t, data, err := newTensor[float64](c, int(n))
	if err != nil {
		return nil, err
	}
	if whole {
		start, step = math.Trunc(start), math.Trunc(step)
	}
	for i := range data {
		data[i] = start + float64(i)*step
	}
	return t, nil
}

// checkStep returns a *ValueError unless steps lead from start to end. up and down report whether the
// step is positive or negative, and way is end - start, or its sign.
func checkStep(up, down bool, way float64) error {
	switch {
	case !up && !down:
		return valueErrorf("step must be nonzero")
	case up && way < 0 || down && way > 0:
		return valueErrorf("upper bound and larger bound inconsistent with step sign")
	}
	return nil
}

// arangeInts returns a new I64 vector of the numbers from, from+by, ... before to. The error is a
// *ValueError or a *LimitError.
func (c *call) arangeInts(from, to, by int64) (*tensor.Tensor, error) {
	if err := checkStep(by > 0, by < 0, float64(cmp.Compare(to, from))); err != nil {
		return nil, err
	}
	n := steps(from, to, by)
	if n > uint64(c.limits.tensorBytes()/8) {
		return nil, &LimitError{Bytes: int(min(n, math.MaxInt/8) * 8), Limit: c.limits.tensorBytes()}
	}
	t, data, err := newTensor[int64](c, int(n))
	if err != nil {
		return nil, err
	}
	for i := range data {
		data[i] = from + int64(i)*by
	}
	return t, nil
}

// toInt64 returns the number v as an integer, with its fraction dropped.
func toInt64(v Value) int64 {
	if n, ok := v.(int64); ok {
		return n
	}
	return int64(toFloat(v))
}

// steps returns the number of elements from, from+by, ... before to. by must be positive if to is
// greater than from, and negative if to is less. steps computes with uint64 differences, which cannot
// overflow.
func steps(from, to, by int64) uint64 {
	switch {
	case from == to:
		return 0
	case by > 0:
		return (uint64(to)-uint64(from)-1)/uint64(by) + 1
	}
	return (uint64(from)-uint64(to)-1)/-uint64(by) + 1
}
