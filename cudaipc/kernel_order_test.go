package cudaipc

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// late is how long each operation of the simulator takes in tests of order, in microseconds.
const late = "300"

// Operators on matrices of the shape [3, 3].
var ordered = map[string]operator{
	"add":   elementwise["add"],
	"div":   elementwise["div"],
	"scale": elementwise["scale"],
	"row": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		row, err := y.Select(0, 1)
		if err != nil {
			return nil, err
		}
		return e.Sub(ctx, x, row, ops.Int(1))
	},
	"clone": func(ctx context.Context, e *ops.Engine, x, _ *tensor.Tensor) (*tensor.Tensor, error) {
		x, err := x.Transpose(0, 1)
		if err != nil {
			return nil, err
		}
		return e.Contiguous(ctx, x)
	},
	"sum": func(ctx context.Context, e *ops.Engine, x, _ *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Sum(ctx, x, []int{0}, false, 0)
	},
	"matmul": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		return e.MatMul(ctx, x, y)
	},
	"linear": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		bias, err := y.Select(0, 0)
		if err != nil {
			return nil, err
		}
		return e.Linear(ctx, x, y, bias)
	},
}

// Operators run after the work of the streams of their operands, which wait for them: the operands are
// late, and change as soon as their streams allow it. The result is on a third stream.
func TestKernelOrder(t *testing.T) {
	f, r, host := newFixture(t, Options{}), rand.New(rand.NewPCG(13, 14)), &ops.Engine{}
	e := f.engine()
	xs, ys, zs := f.stream(f.zero), f.stream(f.zero), f.stream(f.zero)
	ctx := device.WithStream(t.Context(), zs)
	f.set("CUSIM_DELAY_US", late)
	for name, op := range ordered {
		x := random(t, r, tensor.F32, "contiguous", 3, 3)
		y := nonzero(t, random(t, r, tensor.F32, "contiguous", 3, 3))
		want, err := op(ctx, host, x, y)
		require.NoError(t, err)
		releaseX := f.hold(xs)
		a, b := f.send(x, xs), f.send(y, ys)
		require.NoError(t, f.Sleep(ys, time.Millisecond))
		blocking := f.blocking()
		got, err := op(ctx, e, a, b)
		require.NoError(t, err, name)
		require.NoError(t, e.FillInPlace(ctx, a, ops.Float(1e6)))
		require.NoError(t, e.FillInPlace(ctx, b, ops.Float(1e6)))
		require.Equal(t, blocking, f.blocking(), name)
		releaseX()
		f.requireEqual(want, got, 1e-6, name)
	}
}

// An operator in place makes its destination valid on the stream of that tensor.
func TestKernelOrderInPlace(t *testing.T) {
	f, r, host := newFixture(t, Options{}), rand.New(rand.NewPCG(15, 16)), &ops.Engine{}
	e := f.engine()
	xs, ys := f.stream(f.zero), f.stream(f.zero)
	f.set("CUSIM_DELAY_US", late)
	for _, layout := range layouts[:3] {
		x, y := random(t, r, tensor.F32, layout, 3, 3), random(t, r, tensor.F32, "contiguous", 3, 3)
		releaseY := f.hold(ys)
		a, b := f.send(x, xs), f.send(y, ys)
		require.NoError(t, e.AddInPlace(t.Context(), a, b, ops.Int(3)))
		require.NoError(t, e.MulInPlace(t.Context(), b, a))
		require.NoError(t, host.AddInPlace(t.Context(), x, y, ops.Int(3)))
		require.NoError(t, host.MulInPlace(t.Context(), y, x))
		releaseY()
		f.requireEqual(x, a, 0, layout)
		f.requireEqual(y, b, 0, layout)
	}
}

// Intermediate results and released tensors are used again in the order of their streams.
func TestKernelMemoryIsReusedInOrder(t *testing.T) {
	f, r, host := newFixture(t, Options{}), rand.New(rand.NewPCG(17, 18)), &ops.Engine{}
	e := f.engine()
	xs, zs := f.stream(f.zero), f.stream(f.zero)
	ctx := device.WithStream(t.Context(), zs)
	f.set("CUSIM_DELAY_US", late)
	x := random(t, r, tensor.F32, "transposed", 3, 3)
	want, err := host.Add(ctx, x, x, ops.Int(1))
	require.NoError(t, err)
	var releases []func()
	if f.control != nil {
		releases = append(releases, f.hold(xs), f.hold(zs))
	}
	a := f.send(x, xs)
	var results []*tensor.Tensor
	for range 5 {
		got, err := e.Add(ctx, a, a, ops.Int(1)) // with two copies
		require.NoError(t, err)
		results = append(results, got)
		spare, err := e.Mul(ctx, a, a)
		require.NoError(t, err)
		spare.Release()
	}
	// The memory of a is used on zs, too.
	turned, err := a.Transpose(0, 1)
	require.NoError(t, err)
	sum, err := e.Sum(ctx, turned, nil, false, 0)
	require.NoError(t, err)
	wantSum, err := host.Sum(ctx, x, nil, false, 0)
	require.NoError(t, err)
	if f.control != nil { // otherwise a stream may have no work left, and its memory moves to the other one
		require.Equal(t, 2, f.stats(f.zero).Segments, "one for each stream")
	}
	for _, release := range releases {
		release()
	}
	f.requireEqual(wantSum, sum, 1e-6, "sum")
	for _, got := range results {
		f.requireEqual(want, got, 0, "add")
	}
}

// Memory that is valid on another stream than that for which it was allocated is not used again
// before the kernels that read or write it are done.
func TestKernelsUseMemoryOfOtherStreams(t *testing.T) {
	f, r, host := newFixture(t, Options{}), rand.New(rand.NewPCG(21, 22)), &ops.Engine{}
	e := f.engine()
	xs, other := f.stream(f.zero), f.stream(f.zero)
	ctx := device.WithStream(t.Context(), other)
	f.set("CUSIM_DELAY_US", late)
	x := random(t, r, tensor.F32, "contiguous", 3, 3)
	release := f.hold(other)
	a, err := e.To(device.WithStream(ctx, xs), x, f.zero)
	require.NoError(t, err)
	require.NoError(t, a.Storage().SetStream(other))
	got, err := e.MulNumber(ctx, a, ops.Int(3))
	require.NoError(t, err)
	a.Release()
	require.Positive(t, f.stats(f.zero).Pending)
	b, err := e.To(device.WithStream(ctx, xs), random(t, r, tensor.F32, "contiguous", 3, 3), f.zero)
	require.NoError(t, err)
	require.NoError(t, b.Storage().SetStream(other))
	require.NoError(t, e.ZeroInPlace(ctx, b))
	b.Release()
	require.Equal(t, 2*blockAlign, f.stats(f.zero).Pending)
	release()
	want, err := host.MulNumber(ctx, x, ops.Int(3))
	require.NoError(t, err)
	f.requireEqual(want, got, 0, "product")
}

// Tensors move to GPUs, between them and back, after the work on their streams, as in TestTo of
// package ops.
func TestTensorsBetweenDevices(t *testing.T) {
	f, r := newFixture(t, Options{}), rand.New(rand.NewPCG(19, 20))
	e := f.engine()
	zero, one := f.stream(f.zero), f.stream(f.second())
	ctx := device.WithStreams(t.Context(), zero, one)
	f.set("CUSIM_DELAY_US", late)
	x := random(t, r, tensor.F32, "transposed", 3, 3)
	kept, err := x.Clone()
	require.NoError(t, err)

	release := f.hold(zero)
	blocking := f.blocking()
	there, err := e.To(ctx, x, f.zero)
	require.NoError(t, err)
	require.Equal(t, f.zero, there.Device())
	require.NoError(t, e.ZeroInPlace(ctx, x), "x may be changed at once")
	farther, err := e.To(ctx, there, f.second())
	require.NoError(t, err)
	require.Equal(t, f.second(), farther.Device())
	require.NoError(t, e.FillInPlace(ctx, there, ops.Int(7)), "after the copy")
	double, err := e.MulNumber(ctx, farther, ops.Int(2))
	require.NoError(t, err)
	back := there
	require.NoError(t, e.CopyInPlace(ctx, back, double))
	require.Equal(t, blocking, f.blocking())
	release()

	f.requireEqual(kept, farther, 0, "farther")
	host, err := e.To(ctx, back, device.CPU())
	require.NoError(t, err)
	want, err := e.MulNumber(ctx, kept, ops.Int(2))
	require.NoError(t, err)
	require.Equal(t, values(t, want), values(t, host))

	require.NoError(t, e.CopyInPlace(ctx, x, farther))
	require.Equal(t, values(t, kept), values(t, x))
	row := random(t, r, tensor.F64, "contiguous", 3)
	require.NoError(t, e.CopyInPlace(ctx, there, row))
	rounded, err := e.Cast(ctx, row, tensor.F32)
	require.NoError(t, err)
	first, err := there.Select(0, 2)
	require.NoError(t, err)
	host, err = e.To(ctx, first, device.CPU())
	require.NoError(t, err)
	require.Equal(t, values(t, rounded), values(t, host))
}

// The way to the host ends with its context.
func TestToHostEndsWithItsContext(t *testing.T) {
	f := newFixture(t, Options{})
	e, s := f.engine(), f.stream(f.zero)
	x, err := e.To(device.WithStream(t.Context(), s), bytesTensor(t, 1, 10), f.zero)
	require.NoError(t, err)
	release := f.hold(s)
	require.NoError(t, f.Sleep(s, 1))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	_, err = e.To(ctx, x, device.CPU())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	release()
	back, err := e.To(t.Context(), x, device.CPU())
	require.NoError(t, err)
	require.Equal(t, values(t, bytesTensor(t, 1, 10)), values(t, back))
}

func TestSleep(t *testing.T) {
	f := newFixture(t, Options{})
	s, other := f.stream(f.zero), f.stream(f.zero)
	start := time.Now()
	require.NoError(t, f.Sleep(s, 20*time.Millisecond))
	f.synchronize(other)
	f.synchronize(s)
	require.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond)
	require.NoError(t, f.Sleep(s, -1))
	require.ErrorIs(t, f.Sleep(nil, 1), device.ErrStream)
}
