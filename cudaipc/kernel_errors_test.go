package cudaipc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

func TestLayout(t *testing.T) {
	l := newLayout(4, []int{2, 1, 3, 5}, []int{15, 99, 5, 1}, []int{15, 7, 5, 1})
	require.Equal(t, []axis{{30, 4, 4}}, l.dims)
	require.True(t, l.contiguous())
	require.True(t, newLayout(16, []int{3}, []int{1}, []int{1}).contiguous())
	require.True(t, newLayout(2, nil, nil, nil).contiguous())
	require.False(t, newLayout(2, []int{3}, []int{1}, []int{2}).contiguous())
	l = newLayout(16, []int{2, 3}, []int{3, 1}, []int{1, 2})
	require.Equal(t, []axis{{2, 8, 8}, {3, 16, 32}, {2, 48, 16}}, l.dims)
	require.Equal(t, 12, l.len())
	require.Len(t, l.params(), 3+3*maxKernelRank)

	for _, c := range []struct {
		shape, strides []int
		stride         int
		even           bool
	}{
		{nil, nil, 0, true}, {[]int{1}, []int{5}, 0, true}, {[]int{4}, []int{6}, 6, true}, {[]int{2, 4}, []int{24, 6}, 6, true},
		{[]int{2, 4}, []int{0, 0}, 0, true}, {[]int{2, 4}, []int{0, 6}, 0, false}, {[]int{2, 1, 4}, []int{24, 1, 6}, 6, true},
	} {
		stride, even := evenStride(c.shape, c.strides)
		require.Equal(t, c.even, even, c)
		require.Equal(t, c.stride, stride, c)
	}
}

// Invalid operands give an error of a type, before anything is enqueued.
func TestKernelErrors(t *testing.T) {
	f := newFixture(t, Options{})
	s, far := f.stream(f.zero), f.stream(f.second())
	k := f.Kernels()
	alloc := func(s *Stream, d tensor.DType, shape ...int) *tensor.Tensor {
		x, err := k.Alloc(device.WithStream(t.Context(), s), s.Device(), d, shape...)
		require.NoError(t, err)
		return x
	}
	ctx := t.Context()
	x, y, z := alloc(s, tensor.F32, 2, 3), alloc(s, tensor.F32, 3, 2), alloc(s, tensor.F32, 2, 2)
	whole, peer := alloc(s, tensor.I64, 2, 3), alloc(far, tensor.F32, 2, 3)
	host, err := tensor.Zeros(tensor.F32, 2, 3)
	require.NoError(t, err)
	launches := f.simulator().Calls("cuLaunchKernel")

	var dtype *tensor.DTypeError
	require.ErrorAs(t, k.Add(ctx, whole, whole, whole, ops.Int(1)), &dtype)
	require.ErrorAs(t, k.Scale(ctx, whole, whole, ops.Int(1)), &dtype)
	require.ErrorAs(t, k.Sum(ctx, whole, whole, nil), &dtype)
	require.ErrorAs(t, k.Sum(ctx, x, whole, nil), &dtype)
	require.ErrorAs(t, k.MatMul(ctx, whole, whole, whole), &dtype)
	require.ErrorAs(t, k.MatMul(ctx, z, x, whole), &dtype)
	require.ErrorAs(t, k.Copy(ctx, whole, x), &dtype)
	require.ErrorAs(t, k.Mul(ctx, x, x, whole), &dtype)
	row, line := alloc(s, tensor.F32, 1, 3), alloc(s, tensor.I64, 1, 3)
	require.ErrorAs(t, k.Map(ctx, ops.FunctionExp, whole, whole), &dtype)
	require.ErrorAs(t, k.ArgMax(ctx, line, whole, 0), &dtype)
	require.ErrorAs(t, k.ArgMax(ctx, row, x, 0), &dtype)
	require.ErrorAs(t, k.Take(ctx, row, whole, line, 0, -1), &dtype)
	require.ErrorAs(t, k.Take(ctx, row, x, row, 0, -1), &dtype)
	require.ErrorAs(t, k.Put(ctx, x, line, line, 0), &dtype)
	_, err = k.Alloc(ctx, f.zero, 0, 1)
	require.ErrorAs(t, err, &dtype)
	var shape *tensor.ShapeError
	require.ErrorAs(t, k.Mul(ctx, x, x, y), &shape)
	require.ErrorAs(t, k.Copy(ctx, x, y), &shape)
	require.ErrorAs(t, k.Sum(ctx, x, x, []int{0}), &shape)
	require.ErrorAs(t, k.MatMul(ctx, x, x, y), &shape)
	require.ErrorAs(t, k.MatMul(ctx, z, x, x), &shape)
	require.ErrorAs(t, k.MatMul(ctx, z, x, alloc(s, tensor.F32, 3)), &shape)
	require.ErrorAs(t, k.MatMul(ctx, alloc(s, tensor.F32), alloc(s, tensor.F32), alloc(s, tensor.F32)), &shape)
	_, err = k.Alloc(ctx, f.zero, tensor.F32, -1)
	require.ErrorAs(t, err, &shape)
	require.ErrorAs(t, k.ReluBackward(ctx, x, x, y), &shape)
	require.ErrorAs(t, k.ArgMax(ctx, line, x, 1), &shape)
	require.ErrorAs(t, k.ArgMax(ctx, line, alloc(s, tensor.F32, 0, 3), 0), &shape)
	require.ErrorAs(t, k.Take(ctx, row, y, line, 0, -1), &shape)
	require.ErrorAs(t, k.Take(ctx, row, alloc(s, tensor.F32, 3), line, 0, -1), &shape)
	require.ErrorAs(t, k.Take(ctx, row, x, whole, 0, -1), &shape)
	require.ErrorAs(t, k.Put(ctx, x, x, line, 0), &shape)
	require.ErrorAs(t, k.Put(ctx, x, row, whole, 0), &shape)
	var missing *tensor.DeviceError
	require.ErrorAs(t, k.Map(ctx, ops.FunctionSin, x, x), &missing)
	var index *tensor.IndexError
	require.ErrorAs(t, k.ArgMax(ctx, line, x, 2), &index)
	require.ErrorAs(t, k.Put(ctx, x, row, line, -1), &index)
	require.ErrorAs(t, k.Take(ctx, row, x, line, 2, -1), &index)
	require.ErrorAs(t, k.Sum(ctx, x, x, []int{2}), &index)
	var mismatch *ops.DeviceMismatchError
	require.ErrorAs(t, k.Mul(ctx, x, x, peer), &mismatch)
	require.ErrorIs(t, k.Mul(ctx, x, host, x), device.ErrMemory)
	require.ErrorIs(t, k.Mul(ctx, host, x, x), device.ErrMemory)
	require.ErrorIs(t, k.Fill(ctx, host, ops.Int(1)), device.ErrMemory)
	_, err = k.Alloc(ctx, device.Device{Kind: Name, Index: 99}, tensor.F32, 1)
	require.ErrorIs(t, err, device.ErrDevice)
	y.Release()
	if !invariants.Enabled { // panics
		require.ErrorIs(t, k.Fill(ctx, y, ops.Int(1)), tensor.ErrReleased)
	}
	require.Equal(t, launches, f.simulator().Calls("cuLaunchKernel"))
}
