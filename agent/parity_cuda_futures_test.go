package agent_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/cudagroup"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// tensorWrapper is a class of PyTorch's tests: a tensor, and fields that no message can contain.
type tensorWrapper struct {
	Tensor *tensor.Tensor
	Lock   sync.Mutex   `tensorpipe:"-"`
	Event  device.Event `tensorpipe:"-"`
}

// sparseWrapper is the same with a sparse tensor.
type sparseWrapper struct {
	Tensor *tensor.Sparse
	Lock   sync.Mutex   `tensorpipe:"-"`
	Event  device.Event `tensorpipe:"-"`
}

// onNewStream returns a context derived from that of the case whose current stream on d is a new one.
func onNewStream(w *cudagroup.Worker, d device.Device) context.Context {
	return device.WithStream(w.Context(), w.Stream(d))
}

// setTo makes the current stream of ctx add value to the elements of x, which are 0, after a long kernel.
func setTo(ctx context.Context, w *cudagroup.Worker, x *tensor.Tensor, value float64) error {
	x, err := cudagroup.Ordered(ctx, x)
	if err != nil {
		return err
	}
	if err := w.Sleep(ctx, x.Device()); err != nil {
		return err
	}
	return w.Engine.AddNumberInPlace(ctx, x, ops.Float(value), ops.Int(1))
}

// requireFullOn requires that the elements of x equal value, read on the current stream of ctx, which nothing else orders.
func requireFullOn(ctx context.Context, w *cudagroup.Worker, x *tensor.Tensor, value float64) {
	got, err := tensor.Data[float32](w.HostOn(ctx, x))
	require.NoError(w, err)
	require.Len(w, got, 100)
	for _, v := range got {
		require.Equal(w, float32(value), v, drops.WrongBytes)
	}
}

// newFuture returns a future of an agent that is alone in its group.
func newFuture[T any](w *cudagroup.Worker, devices ...device.Device) *agent.Future[T] {
	a, err := w.Join(func(*agent.Config) {})
	require.NoError(w, err)
	f, err := agent.NewFuture[T](a, devices...)
	require.NoError(w, err)
	return f
}

// extraction returns a case in which a future finds a tensor in the value that wrap returns: the tensor is computed late
// on one stream, and read on another one that waits for the future. In a run of drops x has other bytes for a while after
// each use.
func extraction[T any](wrap func(*cudagroup.Worker, *tensor.Tensor) T, unwrap func(T) *tensor.Tensor) func(w *cudagroup.Worker) {
	return func(w *cudagroup.Worker) {
		gpu := cudagroup.GPU(0)
		f := newFuture[T](w, gpu)
		ctx, another := onNewStream(w, gpu), onNewStream(w, gpu)
		x, more := w.Full(0, gpu, 100), w.Full(1, gpu, 100)
		w.SleepFor(ctx, gpu, cudagroup.LateTarget())
		expected, err := w.Engine.Add(ctx, x, more, ops.Int(1))
		require.NoError(w, err)
		w.OverwriteFor(w.Context(), x, 2*cudagroup.LateTarget()+1)
		late, err := cudagroup.Current(ctx, x)
		require.NoError(w, err)
		require.NoError(w, w.Sleep(ctx, gpu))
		require.NoError(w, w.Engine.AddInPlace(ctx, late, more, ops.Int(1)))
		w.OverwriteHalves(ctx, x)
		require.NoError(w, f.SetFrom(ctx, wrap(w, x)))
		v, err := f.Wait(another)
		require.NoError(w, err)
		requireFullOn(another, w, unwrap(v), 1)
		requireFullOn(another, w, expected, 1)
	}
}

// sparseExtraction is extraction for a sparse tensor. The test of PyTorch sets the future to the coalesced sum. There are
// no kernels that coalesce: here the future has the sum as a GPU can compute it, with the values of both tensors, and the
// host coalesces the copy that it has read.
func sparseExtraction[T any](wrap func(*cudagroup.Worker, *tensor.Sparse) T, unwrap func(T) *tensor.Sparse) func(w *cudagroup.Worker) {
	return func(w *cudagroup.Worker) {
		gpu := cudagroup.GPU(0)
		f := newFuture[T](w, gpu)
		ctx, another := onNewStream(w, gpu), onNewStream(w, gpu)
		built := buildSparse(w)
		expected, err := w.Engine.AddSparse(w.Context(), built, built, ops.Int(1))
		require.NoError(w, err)
		expected, err = expected.Coalesce()
		require.NoError(w, err)
		x, more := sparseOn(ctx, w, built, gpu), sparseOn(ctx, w, built, gpu)
		require.NoError(w, w.Sleep(ctx, gpu))
		require.NoError(w, f.SetFrom(ctx, wrap(w, concatenated(ctx, w, x, more))))
		v, err := f.Wait(another)
		require.NoError(w, err)
		got := unwrap(v)
		require.Equal(w, gpu, got.Device())
		read, err := tensor.NewSparse(w.HostOn(another, got.Indices()), w.HostOn(another, got.Values()), got.Shape()...)
		require.NoError(w, err, drops.WrongBytes)
		read, err = read.Coalesce()
		require.NoError(w, err)
		same, err := tensor.EqualSparse(expected, read)
		require.NoError(w, err)
		require.True(w, same, "%s: %v is not %v", drops.WrongBytes, read.Values(), expected.Values())
	}
}

// sparseOn returns a copy of s on d.
func sparseOn(ctx context.Context, w *cudagroup.Worker, s *tensor.Sparse, d device.Device) *tensor.Sparse {
	indices, err := w.To(ctx, s.Indices(), d)
	require.NoError(w, err)
	values, err := w.To(ctx, s.Values(), d)
	require.NoError(w, err)
	s, err = tensor.NewSparse(indices, values, s.Shape()...)
	require.NoError(w, err)
	return s
}

// concatenated returns the sum of x and y, which lists the values of both.
func concatenated(ctx context.Context, w *cudagroup.Worker, x, y *tensor.Sparse) *tensor.Sparse {
	join := func(dim int, a, b *tensor.Tensor) *tensor.Tensor {
		shape := append([]int(nil), a.Shape()...)
		n := shape[dim]
		shape[dim] += b.Shape()[dim]
		both, err := w.Kind.Kernels().Alloc(ctx, a.Device(), a.DType(), shape...)
		require.NoError(w, err)
		for i, part := range []*tensor.Tensor{a, b} {
			to, err := both.Narrow(dim, i*n, part.Shape()[dim])
			require.NoError(w, err)
			require.NoError(w, w.Engine.CopyInPlace(ctx, to, part))
		}
		return both
	}
	sum, err := tensor.NewSparse(join(1, x.Indices(), y.Indices()), join(0, x.Values(), y.Values()), x.Shape()...)
	require.NoError(w, err)
	return sum
}

// callbackChangesDevices has a callback return a tensor on another device than its argument. In a run of drops the tensor
// has other bytes for a while before the copy, on the stream of the callback, and so have both tensors after it.
func callbackChangesDevices(w *cudagroup.Worker) {
	zero, one := cudagroup.GPU(0), cudagroup.GPU(1)
	x, y := w.Full(0, zero, 100), w.Full(0, one, 100)
	var before func() *tensor.Tensor // y before the callback
	if drops.Running() {
		before = w.HostLater(y)
	}
	w.OverwriteFor(w.Context(), y, latest())
	parent := newFuture[*tensor.Tensor](w, zero, one)
	child := future.ThenOn(parent, func(ctx context.Context, f *agent.Future[*tensor.Tensor]) (*tensor.Tensor, error) {
		x, err := f.Result()
		if err != nil {
			return nil, err
		}
		from, err := cudagroup.Current(ctx, x)
		to, toErr := cudagroup.Ordered(ctx, y)
		if err := errors.Join(err, toErr); err != nil {
			return nil, err
		}
		w.OverwriteFor(ctx, x, cudagroup.LateSource())
		w.SleepFor(ctx, one, cudagroup.LateSource()/2+cudagroup.LateTarget())
		if err := w.Engine.CopyInPlace(ctx, to, from); err != nil {
			return nil, err
		}
		w.OverwriteFor(ctx, x, 3*(cudagroup.LateSource()+cudagroup.LateTarget()))
		w.WaitFor(w.Context(), ctx, one)
		w.OverwriteHalves(ctx, y)
		return y, nil
	})
	ctx, another := onNewStream(w, zero), onNewStream(w, one)
	require.NoError(w, setTo(ctx, w, x, 1))
	w.WaitFor(w.Context(), ctx, zero)
	w.OverwriteHalves(ctx, x)
	require.NoError(w, parent.SetFrom(ctx, x))
	got, err := child.Wait(another)
	require.NoError(w, err)
	require.Equal(w, one, got.Device())
	requireFullOn(another, w, got, 1)
	if drops.Running() {
		requireFullOn(another, w, x, 1)
		requireFullOn(another, w, before(), 0)
	}
}

// latest returns how long a tensor is overwritten so that it is later than all others of a case in one try of a drop, in
// sleeps.
func latest() int {
	if drops.Try() == 2 {
		return 8 * cudagroup.LateSource()
	}
	return 0
}

// valueOnBadDevice sets a future to a tensor on a device that the future does not have. A callback that does not use the
// value succeeds.
func valueOnBadDevice(w *cudagroup.Worker) {
	zero, one := cudagroup.GPU(0), cudagroup.GPU(1)
	x, y := w.Full(0, zero, 100), w.Full(0, one, 100)
	parent := newFuture[*tensor.Tensor](w, one)
	child := future.ThenOn(parent, func(ctx context.Context, _ *agent.Future[*tensor.Tensor]) (*tensor.Tensor, error) {
		if err := setTo(ctx, w, y, 1); err != nil {
			return nil, err
		}
		w.WaitFor(w.Context(), ctx, one)
		w.OverwriteHalves(ctx, y)
		return y, nil
	})
	ctx, another := onNewStream(w, zero), onNewStream(w, one)
	require.NoError(w, setTo(ctx, w, x, 1))
	set := parent.SetFrom(ctx, x)
	_, err := parent.Wait(w.Context())
	require.Equal(w, set, err)
	requireText(w, `The result contained tensors residing on device\(s\) cuda:0 which are not among the expected device\(s\) cuda:1`, err)
	got, err := child.Wait(another)
	require.NoError(w, err)
	requireFullOn(another, w, got, 1)
	if drops.Running() {
		requireFullOn(ctx, w, x, 1)
	}
}

// modifyInPlace changes the tensor of a completed future.
func modifyInPlace(w *cudagroup.Worker) {
	gpu := cudagroup.GPU(0)
	x, f := w.Full(0, gpu, 100), newFuture[*tensor.Tensor](w, gpu)
	require.NoError(w, f.SetFrom(w.Context(), x))
	require.NoError(w, w.Engine.FillInPlace(w.Context(), x, ops.Int(1)))
	_, err := f.Wait(w.Context())
	require.NoError(w, err)
}

// replaceTensor replaces and releases the tensor of a completed future.
func replaceTensor(w *cudagroup.Worker) {
	gpu := cudagroup.GPU(0)
	list, f := []*tensor.Tensor{w.Full(0, gpu, 100)}, newFuture[[]*tensor.Tensor](w, gpu)
	require.NoError(w, f.SetFrom(w.Context(), list))
	list[0].Release()
	list[0] = w.Full(1, gpu, 100)
	_, err := f.Wait(w.Context())
	require.NoError(w, err)
}

func TestParityCudaFutures(t *testing.T) {
	const test = "rpc/TensorPipeAgentCudaRpcTest.test_cuda_future_"
	parsed, err := device.Parse("cuda:0")
	require.NoError(t, err)
	on := func(d device.Device) func(w *cudagroup.Worker) {
		return func(w *cudagroup.Worker) { require.False(w, newFuture[*tensor.Tensor](w, d).IsDone()) }
	}
	cudagroup.Run(t, 1,
		cudagroup.Case{ID: test + "device_as_int", Run: on(cudagroup.GPU(0))},
		cudagroup.Case{ID: test + "device_as_str", Run: on(parsed)},
		cudagroup.Case{ID: test + "device_as_device", Run: on(device.Device{Kind: "cuda", Index: 0})},
		cudagroup.Case{ID: test + "device_not_cuda", Run: func(w *cudagroup.Worker) {
			a, err := w.Join(func(*agent.Config) {})
			require.NoError(w, err)
			_, err = agent.NewFuture[*tensor.Tensor](a, device.CPU())
			requireText(w, "Expected devices to have indices, got cpu", err)
		}},
		cudagroup.Case{ID: test + "can_extract_cuda_tensor", Run: extraction(alone[*tensor.Tensor], itself[*tensor.Tensor])},
		cudagroup.Case{ID: test + "can_extract_list_with_cuda_tensor", Run: extraction(listOf[*tensor.Tensor], first[*tensor.Tensor])},
		cudagroup.Case{ID: test + "can_extract_custom_class_with_cuda_tensor", Run: extraction(
			func(w *cudagroup.Worker, x *tensor.Tensor) *tensorWrapper {
				return &tensorWrapper{Tensor: x, Event: newEvent(w)}
			},
			func(v *tensorWrapper) *tensor.Tensor { return v.Tensor })},
		cudagroup.Case{ID: test + "can_extract_cuda_sparse_tensor", Run: sparseExtraction(alone[*tensor.Sparse], itself[*tensor.Sparse])},
		cudagroup.Case{ID: test + "can_extract_list_with_cuda_sparse_tensor", Run: sparseExtraction(listOf[*tensor.Sparse], first[*tensor.Sparse])},
		cudagroup.Case{ID: test + "can_extract_custom_class_with_cuda_sparse_tensor", Run: sparseExtraction(
			func(w *cudagroup.Worker, x *tensor.Sparse) *sparseWrapper {
				return &sparseWrapper{Tensor: x, Event: newEvent(w)}
			},
			func(v *sparseWrapper) *tensor.Sparse { return v.Tensor })},
		cudagroup.Case{ID: test + "callback_changes_devices", Run: callbackChangesDevices},
		cudagroup.Case{ID: test + "value_on_bad_device", Run: valueOnBadDevice},
		cudagroup.Case{ID: test + "modify_tensor_inplace", Run: modifyInPlace},
		cudagroup.Case{ID: test + "replace_tensor", Run: replaceTensor},
	)
}

func itself[T any](v T) T                        { return v }
func first[T any](v []T) T                       { return v[0] }
func alone[T any](_ *cudagroup.Worker, v T) T    { return v }
func listOf[T any](_ *cudagroup.Worker, v T) []T { return []T{v} }

func newEvent(w *cudagroup.Worker) device.Event {
	e, err := w.Stream(cudagroup.GPU(0)).Record()
	require.NoError(w, err)
	return e
}
