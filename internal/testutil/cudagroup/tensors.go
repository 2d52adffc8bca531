package cudagroup

import (
	"context"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// SleepTime is how long a kernel runs in place of the long ones of PyTorch's tests. Work that does not wait
// for it is done much earlier.
const SleepTime = 20 * time.Millisecond

// GPU returns the device with that index, or device.CPU() if the index is negative.
func GPU(index int) device.Device {
	if index < 0 {
		return device.CPU()
	}
	return device.Device{Kind: cudaipc.Name, Index: index}
}

// Map returns a device map from the GPU with index i to the one with index to[i]; see GPU.
func Map(to map[int]int) agent.DeviceMap {
	m := agent.DeviceMap{}
	for i, j := range to {
		m[GPU(i)] = GPU(j)
	}
	return m
}

// Stream returns a new stream on d.
func (w *Worker) Stream(d device.Device) device.Stream {
	s, err := w.Kind.NewStream(d)
	require.NoError(w, err)
	return s
}

// Sleep makes the current stream of ctx on d wait for SleepTime.
func (w *Worker) Sleep(ctx context.Context, d device.Device) error {
	return w.Kind.Sleep(device.StreamFrom(ctx, d), SleepTime)
}

// Full returns a float32 tensor of this shape on d whose elements are value, made on the host and valid on
// the stream of the case.
func (w *Worker) Full(value float64, d device.Device, shape ...int) *tensor.Tensor {
	x, err := w.Engine.Full(w.ctx, tensor.F32, ops.Float(value), shape...)
	require.NoError(w, err)
	x, err = w.To(w.ctx, x, d)
	require.NoError(w, err)
	return x
}

// To returns x on d, valid on the current stream of ctx.
func (w *Worker) To(ctx context.Context, x *tensor.Tensor, d device.Device) (*tensor.Tensor, error) {
	if drops.Running() && x.Device() == device.CPU() && d != device.CPU() {
		return w.copyLate(ctx, x, d)
	}
	return w.Engine.To(ctx, x, d)
}

// Current returns x as valid on the current stream of ctx, which it does not make wait for the stream on
// which x was valid: tensors of PyTorch have no streams, and their users have to wait. x must be
// contiguous. A tensor on the host is returned as it is.
func Current(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	s := device.StreamFrom(ctx, x.Device())
	if s == nil {
		return x, nil
	}
	b, err := x.Buffer()
	if err != nil {
		return nil, err
	}
	return tensor.FromBuffer(b.WithStream(s), x.DType(), x.Shape()...)
}

// WithoutStream returns x as a tensor without a stream, as all are in PyTorch: only the current stream of the context in
// which it is used is ordered with the work that computes it. x must be contiguous.
func WithoutStream(x *tensor.Tensor) (*tensor.Tensor, error) {
	b, err := x.Buffer()
	if err != nil {
		return nil, err
	}
	return tensor.FromBuffer(b.WithStream(nil), x.DType(), x.Shape()...)
}

// Ordered returns x as Current does, after it has made the current stream of ctx wait for the one on which x is valid.
func Ordered(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	b, err := x.Buffer()
	if err != nil {
		return nil, err
	}
	if s := device.StreamFrom(ctx, x.Device()); s != nil && b.Stream() != nil {
		if err := s.WaitFor(b.Stream()); err != nil {
			return nil, err
		}
	}
	return Current(ctx, x)
}

// Host returns a copy of x, which must be contiguous, in host memory. A tensor on a GPU is read on the
// current stream of the case, without a wait for the stream on which x is valid.
func (w *Worker) Host(x *tensor.Tensor) *tensor.Tensor {
	require.NotNil(w, x)
	return w.HostOn(w.ctx, x)
}

// HostOn returns a copy of x as Host does, read on the current stream of ctx.
func (w *Worker) HostOn(ctx context.Context, x *tensor.Tensor) *tensor.Tensor {
	x, err := Current(ctx, x)
	require.NoError(w, err)
	if !drops.Running() || x.Device() == device.CPU() {
		x, err = w.Engine.To(ctx, x, device.CPU())
		require.NoError(w, err)
		return x
	}
	y := w.enqueueHost(x)
	require.NoError(w, device.StreamFrom(ctx, x.Device()).Synchronize(w.ctx))
	y, err = w.Engine.Clone(w.ctx, y) // as it is after this wait, not a later one
	require.NoError(w, err)
	return y
}

// HostLater returns a function that returns a copy of x, on a GPU, as Host does, after a later call of Host for a tensor on
// that GPU. In a run of drops the copy is enqueued at once, so that only waits before HostLater count.
func (w *Worker) HostLater(x *tensor.Tensor) func() *tensor.Tensor {
	if !drops.Running() {
		return func() *tensor.Tensor { return w.Host(x) }
	}
	x, err := Current(w.ctx, x)
	require.NoError(w, err)
	y := w.enqueueHost(x)
	return func() *tensor.Tensor { return y }
}

// RequireFull requires that x, read as by Host, is a float32 tensor of this shape on d whose elements are
// value.
func (w *Worker) RequireFull(x *tensor.Tensor, value float64, d device.Device, shape ...int) {
	require.NotNil(w, x)
	require.Equal(w, d, x.Device())
	require.True(w, slices.Equal(shape, x.Shape()), "shape %v", x.Shape())
	got, err := tensor.Data[float32](w.Host(x))
	require.NoError(w, err)
	for i, v := range got {
		require.Equal(w, float32(value), v, "%s: element %d of %d", drops.WrongBytes, i, len(got))
	}
}
