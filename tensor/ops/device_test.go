package ops_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// deviceFixture is a device whose two streams do their work late, and an engine that computes on it.
type deviceFixture struct {
	*testing.T
	kind    *delayed.Kind
	engine  *ops.Engine
	device  device.Device
	streams []device.Stream
}

func newDeviceFixture(t *testing.T) *deviceFixture {
	k := delayed.New("npu", 2)
	t.Cleanup(k.Close)
	f := &deviceFixture{T: t, kind: k, device: k.Devices()[0]}
	f.engine = &ops.Engine{ByKind: map[string]ops.Kernels{"npu": kernels{k}}, MaxBytes: 1 << 20}
	for range 2 {
		s, err := k.NewStream(f.device)
		require.NoError(t, err)
		f.streams = append(f.streams, s)
	}
	return f
}

// send returns a copy of x on the device, valid on that stream.
func (f *deviceFixture) send(x *tensor.Tensor, stream device.Stream) *tensor.Tensor {
	f.Helper()
	host, err := x.Buffer()
	require.NoError(f, err)
	buf, err := f.kind.Alloc(f.device, host.Len(), stream)
	require.NoError(f, err)
	require.NoError(f, f.kind.Copy(buf, host))
	out, err := tensor.FromBuffer(buf, x.DType(), x.Shape()...)
	require.NoError(f, err)
	return out
}

// fetch waits for x and returns a copy on the host.
func (f *deviceFixture) fetch(x *tensor.Tensor) *tensor.Tensor {
	f.Helper()
	buf, err := x.Storage().Buffer()
	require.NoError(f, err)
	p := make([]byte, buf.Len())
	require.NoError(f, f.kind.Read(p, buf))
	require.NoError(f, buf.Stream().Synchronize(f.Context()))
	s, err := tensor.NewStorage(device.Bytes(p), nil)
	require.NoError(f, err)
	out, err := tensor.Strided(s, x.DType(), x.Shape(), x.Strides(), x.Offset())
	require.NoError(f, err)
	return out
}

// deviceOperators are the operators that a device can compute, on matrices of the shape [3, 3].
var deviceOperators = map[string]func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error){
	"add": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Add(ctx, x, y, ops.Float(2))
	},
	"add a row": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		row, err := y.Select(0, 1)
		if err != nil {
			return nil, err
		}
		return e.Add(ctx, row, x, ops.Int(1))
	},
	"add a number": func(ctx context.Context, e *ops.Engine, x, _ *tensor.Tensor) (*tensor.Tensor, error) {
		return e.AddNumber(ctx, x, ops.Float(2.5), ops.Int(1))
	},
	"sub": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Sub(ctx, x, y, ops.Int(1))
	},
	"mul": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Mul(ctx, x, y)
	},
	"div": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Div(ctx, x, y)
	},
	"scale": func(ctx context.Context, e *ops.Engine, x, _ *tensor.Tensor) (*tensor.Tensor, error) {
		return e.MulNumber(ctx, x, ops.Float(-3))
	},
	"neg": func(ctx context.Context, e *ops.Engine, x, _ *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Neg(ctx, x)
	},
	"sqrt": func(ctx context.Context, e *ops.Engine, x, _ *tensor.Tensor) (*tensor.Tensor, error) {
		square, err := e.Mul(ctx, x, x)
		if err != nil {
			return nil, err
		}
		return e.Sqrt(ctx, square)
	},
	"gradient of sqrt": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		return e.SqrtBackward(ctx, x, y)
	},
	"cat": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		turned, err := y.Transpose(0, 1)
		if err != nil {
			return nil, err
		}
		return e.Cat(ctx, []*tensor.Tensor{x, turned, x}, -1)
	},
	"stack": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Stack(ctx, []*tensor.Tensor{x, y}, 1)
	},
	"gradient of a bias": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		_, _, bias, err := e.LinearBackward(ctx, x, nil, y, [3]bool{false, false, true})
		return bias, err
	},
	"sum": func(ctx context.Context, e *ops.Engine, x, _ *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Sum(ctx, x, []int{0}, false, 0)
	},
	"mean": func(ctx context.Context, e *ops.Engine, x, _ *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Mean(ctx, x, nil, true, 0)
	},
	"sum to": func(ctx context.Context, e *ops.Engine, x, _ *tensor.Tensor) (*tensor.Tensor, error) {
		return e.SumTo(ctx, x, 3)
	},
	"matmul": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		return e.MatMul(ctx, x, y)
	},
	"product of batches": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		batches, err := x.View(3, 1, 1, 3)
		if err != nil {
			return nil, err
		}
		return e.MatMul(ctx, batches, y)
	},
	"product of vectors": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		row, err := x.Select(0, 1)
		if err != nil {
			return nil, err
		}
		column, err := y.Select(1, 2)
		if err != nil {
			return nil, err
		}
		return e.Dot(ctx, row, column)
	},
	"linear": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		bias, err := y.Select(0, 0)
		if err != nil {
			return nil, err
		}
		return e.Linear(ctx, x, y, bias)
	},
	"clone": func(ctx context.Context, e *ops.Engine, x, _ *tensor.Tensor) (*tensor.Tensor, error) {
		x, err := x.Transpose(0, 1)
		if err != nil {
			return nil, err
		}
		return e.Contiguous(ctx, x)
	},
	"shared memory": func(ctx context.Context, e *ops.Engine, x, _ *tensor.Tensor) (*tensor.Tensor, error) {
		turned, err := x.Transpose(0, 1)
		if err != nil {
			return nil, err
		}
		if err := e.SubInPlace(ctx, x, turned, ops.Int(2)); err != nil {
			return nil, err
		}
		return x, e.CopyInPlace(ctx, turned, x)
	},
	"in place": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		if err := e.AddInPlace(ctx, x, y, ops.Int(2)); err != nil {
			return nil, err
		}
		if err := e.MulNumberInPlace(ctx, x, ops.Int(2)); err != nil {
			return nil, err
		}
		row, err := x.Select(0, 2)
		if err != nil {
			return nil, err
		}
		if err := e.ZeroInPlace(ctx, row); err != nil {
			return nil, err
		}
		first, err := y.Select(0, 0)
		if err != nil {
			return nil, err
		}
		return x, e.CopyInPlace(ctx, row, first)
	},
}

// TestDevice checks that operators on a device give the results of the host. Operands are valid on
// two streams, of which one does not begin before everything has been enqueued.
func TestDevice(t *testing.T) {
	for name, op := range deviceOperators {
		t.Run(name, func(t *testing.T) {
			f, s := newDeviceFixture(t), newSource(t)
			x, y := s.tensor(tensor.F32, "contiguous", 3, 3), s.tensor(tensor.F32, "contiguous", 3, 3)
			release := f.streams[0].(*delayed.Stream).Hold()
			a, b := f.send(x, f.streams[0]), f.send(y, f.streams[1])
			ctx := device.WithStream(t.Context(), f.streams[1])
			got, err := op(ctx, f.engine, a, b)
			require.NoError(t, err)
			require.Equal(t, f.device, got.Device())
			release()
			arrived := f.fetch(got)
			want, err := op(t.Context(), &ops.Engine{}, x, y)
			require.NoError(t, err)
			requireClose(t, tensor.F32, want.Shape(), floats(t, want), arrived)
		})
	}
}

// TestTo checks that a tensor moves to a device, between devices and back, after the work on its stream. Only the way to
// the host waits, until its context ends.
func TestTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newDeviceFixture(t), newSource(t)
		other := f.kind.Devices()[1]
		x := s.tensor(tensor.F32, "transposed", 3, 3)
		want := floats(t, x)
		ctx := device.WithStream(t.Context(), f.streams[0])
		same, err := f.engine.To(ctx, x, device.CPU())
		require.NoError(t, err)
		require.Same(t, x, same)

		release := f.streams[0].(*delayed.Stream).Hold()
		there, err := f.engine.To(ctx, x, f.device)
		require.NoError(t, err)
		require.Equal(t, f.device, there.Device())
		require.NoError(t, f.engine.ZeroInPlace(ctx, x), "x may be changed at once")
		same, err = f.engine.To(ctx, there, f.device)
		require.NoError(t, err)
		require.Same(t, there, same)
		turned, err := there.Transpose(0, 1)
		require.NoError(t, err)
		farther, err := f.engine.To(ctx, turned, other)
		require.NoError(t, err)
		require.Equal(t, other, farther.Device())
		ended, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err = f.engine.To(ended, there, device.CPU())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		release()

		back, err := f.engine.To(ctx, there, device.CPU())
		require.NoError(t, err)
		require.Equal(t, want, floats(t, back))
		back, err = f.engine.To(ctx, farther, device.CPU())
		require.NoError(t, err)
		back, err = back.Transpose(0, 1)
		require.NoError(t, err)
		require.Equal(t, want, floats(t, back))

		require.NoError(t, f.engine.CopyInPlace(ctx, x, there))
		require.Equal(t, want, floats(t, x))
		row := s.tensor(tensor.F64, "contiguous", 3)
		require.NoError(t, f.engine.CopyInPlace(ctx, there, row))
		first, err := there.Select(0, 2)
		require.NoError(t, err)
		back, err = f.engine.To(ctx, first, device.CPU())
		require.NoError(t, err)
		rounded, err := f.engine.Cast(ctx, row, tensor.F32)
		require.NoError(t, err)
		require.Equal(t, floats(t, rounded), floats(t, back))

		var missing *tensor.DeviceError
		_, err = f.engine.To(ctx, x, device.Device{Kind: "gpu"})
		require.ErrorAs(t, err, &missing)
		_, err = (&ops.Engine{}).To(ctx, there, device.CPU())
		require.ErrorAs(t, err, &missing)
	})
}

// TestDeviceErrors checks the errors of operands that are on other devices or have other dtypes than
// the kernels of a device can combine.
func TestDeviceErrors(t *testing.T) {
	f := newDeviceFixture(t)
	ctx := t.Context()
	host := tensorOf(t, tensor.F32, func(int) float64 { return 1 }, 3)
	x := f.send(host, f.streams[0])
	wide := f.send(tensorOf(t, tensor.F64, func(int) float64 { return 1 }, 3), f.streams[0])

	var mismatch *ops.DeviceMismatchError
	_, err := f.engine.Add(ctx, x, host, ops.Int(1))
	require.ErrorAs(t, err, &mismatch)
	require.EqualError(t, err, "Expected all tensors to be on the same device, but found at least two devices, npu:0 and cpu:0!")
	require.ErrorAs(t, f.engine.MulInPlace(ctx, host, x), &mismatch)

	var missing *tensor.DeviceError
	_, err = (&ops.Engine{}).Add(ctx, x, x, ops.Int(1))
	require.ErrorAs(t, err, &missing)
	_, err = (&ops.Engine{}).SumTo(ctx, x, 1)
	require.ErrorAs(t, err, &missing)
	_, err = f.engine.Sin(ctx, x)
	require.ErrorAs(t, err, &missing)
	_, err = (&ops.Engine{}).Relu(ctx, x)
	require.ErrorAs(t, err, &missing)
	_, err = f.engine.Max(ctx, x)
	require.ErrorAs(t, err, &missing)
	_, err = f.engine.Compare(ctx, ops.Lt, x, x)
	require.ErrorAs(t, err, &missing)

	var invalid *ops.ValueError
	_, err = f.engine.Add(ctx, x, wide, ops.Int(1))
	require.ErrorAs(t, err, &invalid)
	require.ErrorAs(t, f.engine.AddInPlace(ctx, x, wide, ops.Int(1)), &invalid)
	var limit *ops.LimitError
	_, err = f.engine.Add(ctx, x, expand(t, x, 1<<20, 3), ops.Int(1))
	require.ErrorAs(t, err, &limit)
	x.Storage().SetReadOnly(true)
	require.ErrorIs(t, f.engine.ZeroInPlace(ctx, x), tensor.ErrReadOnly)
}
