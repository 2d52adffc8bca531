package ops_test

import (
	"context"
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// kernels computes with F32 on the devices of a kind whose streams are late.
type kernels struct{ kind *delayed.Kind }

func (k kernels) Alloc(ctx context.Context, d device.Device, dtype tensor.DType, shape ...int) (*tensor.Tensor, error) {
	size, err := tensor.ByteSize(dtype, shape)
	if err != nil {
		return nil, err
	}
	buf, err := k.kind.Alloc(d, size, device.StreamFrom(ctx, d))
	if err != nil {
		return nil, err
	}
	return tensor.FromBuffer(buf, dtype, shape...)
}

// run enqueues a call of f for each element of dst, on the stream of dst and after the work of the
// streams of the others. f gets the element of dst and those of the others at the same index.
func (k kernels) run(f func(to *float32, from []float32), dst *tensor.Tensor, others ...*tensor.Tensor) error {
	all := append([]*tensor.Tensor{dst}, others...)
	var memory []device.Buffer
	for _, t := range all {
		buf, err := t.Storage().Buffer()
		if err != nil {
			return err
		}
		memory = append(memory, buf)
	}
	stream := memory[0].Stream().(*delayed.Stream)
	for _, buf := range memory[1:] {
		ev, err := buf.Stream().Record()
		if err != nil {
			return err
		}
		if err := stream.Wait(ev); err != nil {
			return err
		}
	}
	return stream.Launch(func(mem ...[]byte) error {
		from := make([]float32, len(others))
		for i := range dst.Len() {
			for j, t := range others {
				from[j] = math.Float32frombits(binary.LittleEndian.Uint32(mem[j+1][position(t, i):]))
			}
			p := mem[0][position(dst, i):]
			to := math.Float32frombits(binary.LittleEndian.Uint32(p))
			f(&to, from)
			binary.LittleEndian.PutUint32(p, math.Float32bits(to))
		}
		return nil
	}, memory...)
}

// position returns the byte in the storage of t at which element i begins.
func position(t *tensor.Tensor, i int) int {
	at := t.Offset()
	for dim := t.Rank() - 1; dim >= 0; dim-- {
		at += i % t.Shape()[dim] * t.Strides()[dim]
		i /= t.Shape()[dim]
	}
	return 4 * at
}

func (k kernels) Fill(_ context.Context, dst *tensor.Tensor, value ops.Number) error {
	return k.run(func(to *float32, _ []float32) { *to = float32(value.Float64()) }, dst)
}

func (k kernels) Copy(_ context.Context, dst, src *tensor.Tensor) error {
	return k.run(func(to *float32, from []float32) { *to = from[0] }, dst, src)
}

func (k kernels) Add(_ context.Context, dst, x, y *tensor.Tensor, alpha ops.Number) error {
	a := float32(alpha.Float64())
	return k.run(func(to *float32, from []float32) { *to = from[0] + a*from[1] }, dst, x, y)
}

func (k kernels) Sub(_ context.Context, dst, x, y *tensor.Tensor, alpha ops.Number) error {
	a := float32(alpha.Float64())
	return k.run(func(to *float32, from []float32) { *to = from[0] - a*from[1] }, dst, x, y)
}

func (k kernels) Mul(_ context.Context, dst, x, y *tensor.Tensor) error {
	return k.run(func(to *float32, from []float32) { *to = from[0] * from[1] }, dst, x, y)
}

func (k kernels) Div(_ context.Context, dst, x, y *tensor.Tensor) error {
	return k.run(func(to *float32, from []float32) { *to = from[0] / from[1] }, dst, x, y)
}

func (k kernels) Scale(_ context.Context, dst, x *tensor.Tensor, factor ops.Number) error {
	return k.run(func(to *float32, from []float32) { *to = float32(factor.Float64()) * from[0] }, dst, x)
}

func (k kernels) Sum(ctx context.Context, dst, x *tensor.Tensor, dims []int) error {
	if err := k.Fill(ctx, dst, ops.Int(0)); err != nil {
		return err
	}
	strides := slices.Clone(dst.Strides())
	for _, dim := range dims {
		strides[dim] = 0
	}
	repeated, err := tensor.Strided(dst.Storage(), tensor.F32, x.Shape(), strides, dst.Offset())
	if err != nil {
		return err
	}
	return k.run(func(to *float32, from []float32) { *to += from[0] }, repeated, x)
}

func (k kernels) MatMul(ctx context.Context, dst, x, y *tensor.Tensor) error {
	if err := k.Fill(ctx, dst, ops.Int(0)); err != nil {
		return err
	}
	last := x.Rank() - 1
	for i := range x.Shape()[last] { // the sum of products of a column and a row
		column, err := x.Narrow(last, i, 1)
		if err != nil {
			return err
		}
		row, err := y.Narrow(last-1, i, 1)
		if err != nil {
			return err
		}
		if column, err = column.Expand(dst.Shape()...); err != nil {
			return err
		}
		if row, err = row.Expand(dst.Shape()...); err != nil {
			return err
		}
		if err := k.run(func(to *float32, from []float32) { *to += from[0] * from[1] }, dst, column, row); err != nil {
			return err
		}
	}
	return nil
}

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
	require.ErrorAs(t, f.engine.CopyInPlace(ctx, host, x), &mismatch)

	var missing *tensor.DeviceError
	_, err = (&ops.Engine{}).Add(ctx, x, x, ops.Int(1))
	require.ErrorAs(t, err, &missing)
	_, err = (&ops.Engine{}).SumTo(ctx, x, 1)
	require.ErrorAs(t, err, &missing)
	_, err = f.engine.Exp(ctx, x)
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
