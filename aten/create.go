package aten

import (
	"cmp"
	"math"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// options checks arguments i to i+3 of a function that creates a tensor: dtype, layout, device and
// pin_memory, each nil if it is not given. It returns the dtype in argument i, or, if that is nil,
// the value of the parameter otherwise. The error is a *ValueError if a layout other than strided,
// a device other than the cpu, or pinned memory is requested, and that of call.dtype for an unknown
// dtype.
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

// constant returns a kernel that creates a new tensor in which each element is the number v, or
// argument 1 if v is nil. Argument 0 is the shape, or a tensor that has the shape and the default
// dtype. With a shape, the default dtype is F32, or, if v is nil, that of argument 1: Bool, I64 or
// F32. The next arguments are dtype, layout, device and pin_memory. The errors are those of options
// and filled.
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

// filled returns a new tensor of dtype d and the given shape in which each element is the number v.
// The error is a *ValueError if d is an integer dtype and v is outside its range, a *LimitError, or
// an error of package tensor.
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

// fits reports whether the number v, with its fraction dropped, is in the range of the dtype d. It
// returns true if d is not an integer dtype. For an integer dtype, NaN and infinities are out of
// range.
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

// eye returns a kernel that creates a new matrix of zeros with ones on its diagonal. If numbers is
// 1, the matrix is square and argument 0 is its size; if numbers is 2, arguments 0 and 1 are its
// rows and columns. The next arguments are dtype, layout, device and pin_memory; the default dtype
// is F32. The error is that of call.options, a *LimitError, or one of package tensor, such as a
// *tensor.ShapeError for a negative size.
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

// arange returns a kernel that creates a new vector of the numbers start, start+step, ... before
// end. numbers is the number of arguments for them: 1 for end, 2 for start and end, 3 for start,
// end and step; start is 0 and step is 1 by default. The next arguments are dtype, layout, device
// and pin_memory; the default dtype is F32 if one of the numbers is a float64, and otherwise I64.
// The error is a *ValueError for a dtype that is Bool or complex, a number outside the range of an
// integer dtype, a range that is not finite, or a step that is zero, NaN or away from end;
// otherwise it is that of call.options, a *LimitError, or an error of package tensor.
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

// arangeFloats returns a new F64 vector of the numbers start, start+step, ... before end. If whole
// is true, start and step are truncated to integers after the number of elements has been computed
// from the exact numbers, as in PyTorch. The error is a *ValueError if end-start is not finite or
// step is zero, NaN or leads away from end; otherwise it is a *LimitError.
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

// checkStep returns nil if steps lead from start to end, and otherwise a *ValueError: if the step
// is zero, or if it leads away from end. up reports whether the step is positive, down whether it
// is negative. way is end - start, or a number with the same sign; if it is 0, every step except
// zero is valid.
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
// *ValueError if by is zero or leads away from the end, or a *LimitError.
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

// toInt64 returns the number v, a bool, int64 or float64, as an int64, with its fraction dropped. A
// float64 must be in the range of int64.
func toInt64(v Value) int64 {
	if n, ok := v.(int64); ok {
		return n
	}
	return int64(toFloat(v))
}

// steps returns how many numbers the sequence from, from+by, ... has before it reaches the number
// to. by must be positive if to is greater than from, and negative if to is less; if they are
// equal, the result is 0. steps computes the difference as uint64, which cannot overflow.
func steps(from, to, by int64) uint64 {
	switch {
	case from == to:
		return 0
	case by > 0:
		return (uint64(to)-uint64(from)-1)/uint64(by) + 1
	}
	return (uint64(from)-uint64(to)-1)/-uint64(by) + 1
}
