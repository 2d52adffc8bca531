package ops_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// remoteMemory is the memory of a device that package tensor cannot address.
type remoteMemory []byte

func (m remoteMemory) Len() int { return len(m) }

var remote = device.Device{Kind: "remote"}

// toRemote returns a tensor on the device with the layout and the memory of x.
func toRemote(x *tensor.Tensor) (*tensor.Tensor, error) {
	p, err := x.Storage().Bytes()
	if err != nil {
		return nil, err
	}
	s, err := tensor.NewStorage(device.On(remote, remoteMemory(p), nil), nil)
	if err != nil {
		return nil, err
	}
	return tensor.Strided(s, x.DType(), x.Shape(), x.Strides(), x.Offset())
}

// fromRemote returns a tensor on the host with the layout and the memory of x.
func fromRemote(x *tensor.Tensor) (*tensor.Tensor, error) {
	buf, err := x.Storage().Buffer()
	if err != nil {
		return nil, err
	}
	mem, _ := buf.Memory()
	s, err := tensor.NewStorage(device.Bytes(mem.(remoteMemory)), nil)
	if err != nil {
		return nil, err
	}
	return tensor.Strided(s, x.DType(), x.Shape(), x.Strides(), x.Offset())
}

// remoteKernels computes on that device with an engine for the host.
type remoteKernels struct {
	ops.Kernels // panics for all other kernels
}

func (remoteKernels) Alloc(_ context.Context, _ device.Device, d tensor.DType, shape ...int) (*tensor.Tensor, error) {
	x, err := tensor.Alloc(dirtyMemory{}, d, shape...)
	if err != nil {
		return nil, err
	}
	return toRemote(x)
}

// compute sets dst to f(x, y), all on the device.
func compute(dst, x, y *tensor.Tensor, f func(x, y *tensor.Tensor) (*tensor.Tensor, error)) error {
	var host [3]*tensor.Tensor
	for i, t := range []*tensor.Tensor{dst, x, y} {
		var err error
		if host[i], err = fromRemote(t); err != nil {
			return err
		}
	}
	out, err := f(host[1], host[2])
	if err != nil {
		return err
	}
	return host[0].CopyFrom(out)
}

func (remoteKernels) MatMul(ctx context.Context, dst, x, y *tensor.Tensor) error {
	return compute(dst, x, y, func(x, y *tensor.Tensor) (*tensor.Tensor, error) { return (&ops.Engine{}).MatMul(ctx, x, y) })
}

func (remoteKernels) Add(ctx context.Context, dst, x, y *tensor.Tensor, alpha ops.Number) error {
	return compute(dst, x, y, func(x, y *tensor.Tensor) (*tensor.Tensor, error) { return (&ops.Engine{}).Add(ctx, x, y, alpha) })
}

// Products of tensors on a device are computed by the kernels of its kind, for all ranks.
func TestMatMulDevice(t *testing.T) {
	s := newSource(t)
	host, e := &ops.Engine{}, &ops.Engine{ByKind: map[string]ops.Kernels{"remote": remoteKernels{}}}
	for _, shapes := range [][2][]int{
		{{3}, {3}}, {{3}, {3, 4}}, {{2, 3}, {3}}, {{2, 3}, {3, 4}}, {{5, 2, 3}, {3, 4}}, {{5, 2, 3}, {3}}, {{3}, {5, 3, 4}}, {{5, 1, 2, 3}, {6, 3, 4}},
	} {
		x, y := s.tensor(tensor.F64, "contiguous", shapes[0]...), s.tensor(tensor.F64, "transposed", shapes[1]...)
		want, err := host.MatMul(t.Context(), x, y)
		require.NoError(t, err)
		a, err := toRemote(x)
		require.NoError(t, err)
		b, err := toRemote(y)
		require.NoError(t, err)
		got, err := e.MatMul(t.Context(), a, b)
		require.NoError(t, err)
		require.Equal(t, remote, got.Device())
		back, err := fromRemote(got)
		require.NoError(t, err)
		requireClose(t, tensor.F64, want.Shape(), floats(t, want), back)
	}
}

func TestLinearDevice(t *testing.T) {
	s := newSource(t)
	host, e := &ops.Engine{}, &ops.Engine{ByKind: map[string]ops.Kernels{"remote": remoteKernels{}}}
	x, w, bias := s.tensor(tensor.F32, "contiguous", 2, 3), s.tensor(tensor.F32, "contiguous", 4, 3), s.tensor(tensor.F32, "contiguous", 4)
	want, err := host.Linear(t.Context(), x, w, bias)
	require.NoError(t, err)
	var there []*tensor.Tensor
	for _, h := range []*tensor.Tensor{x, w, bias} {
		r, err := toRemote(h)
		require.NoError(t, err)
		there = append(there, r)
	}
	got, err := e.Linear(t.Context(), there[0], there[1], there[2])
	require.NoError(t, err)
	back, err := fromRemote(got)
	require.NoError(t, err)
	requireClose(t, tensor.F32, []int{2, 4}, floats(t, want), back)

	var mismatch *ops.DeviceMismatchError
	_, err = e.Linear(t.Context(), there[0], w, nil)
	require.ErrorAs(t, err, &mismatch)
	_, err = e.Linear(t.Context(), there[0], there[1], bias)
	require.ErrorAs(t, err, &mismatch)
	_, err = e.Linear(t.Context(), x, w, there[2])
	require.ErrorAs(t, err, &mismatch)
	var unknown *tensor.DeviceError
	_, err = host.Linear(t.Context(), there[0], there[1], nil)
	require.ErrorAs(t, err, &unknown)
	requireValueErrorOf(t, func() error { _, err := e.MatMul(t.Context(), there[0], there[0]); return err })
}

func requireValueErrorOf(t testing.TB, f func() error) {
	t.Helper()
	var invalid *ops.ValueError
	require.ErrorAs(t, f(), &invalid)
}
