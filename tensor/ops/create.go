package ops

import (
	"cmp"
	"context"
	"math"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Zeros returns a new contiguous tensor of zeros. The error is a *LimitError, that of the allocator,
// or that of tensor.ByteSize for an invalid dtype or shape.
func (e *Engine) Zeros(_ context.Context, d tensor.DType, shape ...int) (*tensor.Tensor, error) {
	return e.zeros(d, shape...)
}

// Empty returns a new contiguous tensor with undefined contents. The errors are those of Zeros.
func (e *Engine) Empty(_ context.Context, d tensor.DType, shape ...int) (*tensor.Tensor, error) {
	return e.empty(d, shape...)
}

// Full returns a new tensor in which each element is the number n, cast to d. The error is a
// *ValueError if d is an integer dtype and n is outside its range; the others are those of Zeros.
func (e *Engine) Full(ctx context.Context, d tensor.DType, n Number, shape ...int) (*tensor.Tensor, error) {
	if !n.fits(d) {
		return nil, valueErrorf("value cannot be converted to type %v without overflow", d)
	}
	out, err := e.empty(d, shape...)
	if err != nil {
		return nil, err
	}
	return out, e.FillInPlace(ctx, out, n)
}

// FullOn returns a tensor as Full does, on the device on. On a device other than the host it is valid on the stream that
// ctx has for the device, and FullOn does not wait. The errors are those of Full, a *tensor.DeviceError if the engine has
// no kernels for the device, or one of the kernels.
func (e *Engine) FullOn(ctx context.Context, on device.Device, d tensor.DType, n Number,
	shape ...int) (*tensor.Tensor, error) {
	if on.Kind == device.KindCPU || on.IsZero() {
		if n == Int(0) {
			return e.zeros(d, shape...)
		}
		return e.Full(ctx, d, n, shape...)
	}
	k := e.ByKind[on.Kind]
	switch {
	case k == nil:
		return nil, &tensor.DeviceError{Device: on}
	case !n.fits(d):
		return nil, valueErrorf("value cannot be converted to type %v without overflow", d)
	}
	if err := e.checkSize(d, shape); err != nil {
		return nil, err
	}
	out, err := k.Alloc(ctx, on, d, shape...)
	if err != nil {
		return nil, err
	}
	return out, k.Fill(ctx, out, n)
}

// Ones returns a new tensor of ones. The errors are those of Zeros.
func (e *Engine) Ones(ctx context.Context, d tensor.DType, shape ...int) (*tensor.Tensor, error) {
	return e.Full(ctx, d, Int(1), shape...)
}

// numberTensor returns a new tensor of dtype d without dimensions that has the element n, converted
// to d as Cast does.
func (e *Engine) numberTensor(n Number, d tensor.DType) (*tensor.Tensor, error) {
	switch n.kind {
	case boolNumber:
		return e.cast(tensor.Scalar(n.whole == 1), d)
	case realNumber:
		return e.cast(tensor.Scalar(n.real), d)
	}
	return e.cast(tensor.Scalar(n.whole), d)
}

// Eye returns a new matrix of zeros with ones on its diagonal. The errors are those of Zeros.
func (e *Engine) Eye(ctx context.Context, d tensor.DType, rows, columns int) (*tensor.Tensor, error) {
	t, err := e.zeros(d, rows, columns)
	if err != nil {
		return nil, err
	}
	n := min(rows, columns)
	if n == 0 {
		return t, nil
	}
	diagonal, err := tensor.Strided(t.Storage(), d, []int{n}, []int{columns + 1}, t.Offset())
	if err != nil {
		return nil, err
	}
	return t, e.FillInPlace(ctx, diagonal, Int(1))
}

// Arange returns a new vector of dtype d with the numbers start, start+step, ... before end. The
// zero DType stands for F32 if one of the numbers is a floating point number, and otherwise for I64.
// The error is a *ValueError for a dtype that is Bool or complex, a number outside the range of an
// integer dtype, a range that is not finite, or a step that is zero, NaN or away from end, a
// *LimitError, or an error of package tensor.
func (e *Engine) Arange(_ context.Context, d tensor.DType, start, end, step Number) (*tensor.Tensor, error) {
	natural := tensor.I64
	for _, n := range []Number{start, end, step} {
		if n.kind == realNumber {
			natural = tensor.F32
		}
	}
	if d == 0 {
		d = natural
	}
	switch {
	case !d.Valid():
		return nil, &tensor.DTypeError{Name: d.String(), Reason: "is not an element type"}
	case d == tensor.Bool || isComplex(d):
		return nil, valueErrorf("arange does not support %v", d)
	}
	for _, n := range []Number{start, end, step} {
		if !n.fits(d) {
			return nil, valueErrorf("value cannot be converted to type %v without overflow", d)
		}
	}
	var t *tensor.Tensor
	var err error
	if isInt(d) && natural == tensor.I64 {
		t, err = e.arangeInts(start.Int64(), end.Int64(), step.Int64())
	} else {
		t, err = e.arangeFloats(start.Float64(), end.Float64(), step.Float64(), isInt(d))
	}
	if err != nil {
		return nil, err
	}
	return e.cast(t, d)
}

// arangeFloats returns a new F64 vector of the numbers start, start+step, ... before end. If whole
// is true, start and step are truncated to integers after the number of elements has been computed
// from the exact numbers, as in PyTorch. The error is a *ValueError if end-start is not finite or
// step is zero, NaN or leads away from end; otherwise it is one of those of empty.
func (e *Engine) arangeFloats(start, end, step float64, whole bool) (*tensor.Tensor, error) {
	if math.IsNaN(end-start) || math.IsInf(end-start, 0) {
		return nil, valueErrorf("unsupported range: %v -> %v", start, end)
	}
	if err := checkStep(step > 0, step < 0, end-start); err != nil {
		return nil, err
	}
	n := math.Ceil((end - start) / step)
	if limit := e.limit(); n > float64(limit/8) {
		return nil, &LimitError{Bytes: int(min(8*n, float64(math.MaxInt/2))), Limit: limit}
	}
	t, data, err := newTensor[float64](e, int(n))
	if err != nil {
		return nil, err
	}
	if whole {
		start, step = math.Trunc(start), math.Trunc(step)
	}
	for i := range data {
		data[i] = start + float64(i)*step
	}
	runtime.KeepAlive(t)
	return t, nil
}

// limit returns e.MaxBytes, or the largest int if there is no limit.
func (e *Engine) limit() int {
	if e.MaxBytes > 0 {
		return e.MaxBytes
	}
	return math.MaxInt
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
// *ValueError if by is zero or leads away from the end, or one of those of empty.
func (e *Engine) arangeInts(from, to, by int64) (*tensor.Tensor, error) {
	if err := checkStep(by > 0, by < 0, float64(cmp.Compare(to, from))); err != nil {
		return nil, err
	}
	n := steps(from, to, by)
	if limit := e.limit(); n > uint64(limit/8) {
		return nil, &LimitError{Bytes: int(min(n, math.MaxInt/8) * 8), Limit: limit}
	}
	t, data, err := newTensor[int64](e, int(n))
	if err != nil {
		return nil, err
	}
	for i := range data {
		data[i] = from + int64(i)*by
	}
	runtime.KeepAlive(t)
	return t, nil
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
