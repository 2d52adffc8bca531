package agent_test

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// filledOn is onDevice, and waits until the tensor has its contents, since other streams use it.
func filledOn(t *testing.T, k *delayed.Kind, index int) *tensor.Tensor {
	x, s := onDevice(t, k, index, 16)
	require.NoError(t, s.Synchronize(t.Context()))
	return x
}

func newStream(t *testing.T, k *delayed.Kind, index int) *delayed.Stream {
	s, err := k.NewStream(k.Devices()[index])
	require.NoError(t, err)
	return s.(*delayed.Stream)
}

// requireAfter requires that the work on s that reads x waits for work that begins after release, and finds value then.
func requireAfter(t *testing.T, k *delayed.Kind, x *tensor.Tensor, s device.Stream, value byte, release ...func()) {
	t.Helper()
	buf, err := x.Buffer()
	require.NoError(t, err)
	got := make([]byte, buf.Len())
	require.NoError(t, k.Read(got, buf.WithStream(s)))
	synctest.Wait() // a stream that does not wait has read
	for _, f := range release {
		f()
	}
	require.NoError(t, s.Synchronize(t.Context()))
	require.Equal(t, bytes.Repeat([]byte{value}, len(got)), got)
}

// wrapper is a value with a tensor somewhere inside.
type wrapper struct {
	Name string
	All  map[string][]*tensor.Tensor
}

// A future finds the tensors in its value: a wait for it makes the streams of the waiting goroutine wait for the work
// that computes them, on the streams that were current.
func TestFutureFindsTensors(t *testing.T) {
	for name, value := range map[string]func(*tensor.Tensor) any{
		"a tensor": func(x *tensor.Tensor) any { return x },
		"a list":   func(x *tensor.Tensor) any { return []any{1, "two", x} },
		"a struct": func(x *tensor.Tensor) any {
			return []wrapper{{Name: "a"}, {All: map[string][]*tensor.Tensor{"b": {nil, x}}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, nil, func(t *testing.T, a *agent.Agent, kinds []*delayed.Kind) {
				k := kinds[0]
				f, err := agent.NewFuture[any](a, npuOrCPU(0))
				require.NoError(t, err)
				x := filledOn(t, k, 0)
				current, another := newStream(t, k, 0), newStream(t, k, 0)
				release := current.Hold()
				set(t, current, x, 1)
				v := value(x)
				if all, ok := v.([]wrapper); ok { // a type that is not registered may not be in an interface
					g, err := agent.NewFuture[[]wrapper](a, npuOrCPU(0))
					require.NoError(t, err)
					require.NoError(t, g.SetFrom(device.WithStream(t.Context(), current), all))
					_, err = g.Wait(device.WithStream(t.Context(), another))
					require.NoError(t, err)
				} else {
					require.NoError(t, f.SetFrom(device.WithStream(t.Context(), current), v))
					_, err = f.Wait(device.WithStream(t.Context(), another))
					require.NoError(t, err)
				}
				requireAfter(t, k, x, another, 1, release)
			})
		})
	}
}

// The devices of a future do not change: a value on another one makes it fail, and also the futures that follow.
func TestFutureOfForeignDevice(t *testing.T) {
	group, kinds := startDevices(t, map[int]int{0: 0}, nil)
	a, k := group[0], kinds[0]
	_, err := agent.NewFuture[any](a, npuOrCPU(0), device.CPU())
	require.ErrorIs(t, err, future.ErrDevices)
	_, err = agent.NewFuture[any](a, npuOrCPU(2))
	require.ErrorIs(t, err, device.ErrDevice)
	f, err := agent.NewFuture[*tensor.Tensor](a, npuOrCPU(1))
	require.NoError(t, err)
	next := future.ThenOn(f, func(_ context.Context, f *agent.Future[*tensor.Tensor]) (*tensor.Tensor, error) { return f.Result() })
	x := filledOn(t, k, 0)
	err = f.SetFrom(t.Context(), x)
	var foreign *future.DeviceError
	require.ErrorAs(t, err, &foreign)
	require.Equal(t, future.DeviceError{Found: []device.Device{npuOrCPU(0)}, Expected: []device.Device{npuOrCPU(1)}}, *foreign)
	_, err = f.Result()
	require.ErrorAs(t, err, &foreign)
	_, err = next.Wait(t.Context())
	require.ErrorAs(t, err, &foreign)
	require.ErrorIs(t, f.SetFrom(t.Context(), x), future.ErrDone)
	require.ErrorIs(t, future.New[int]().SetFrom(t.Context(), 1), future.ErrDevices)
}

// A wait for a future also waits for the work on the streams of its tensors, if ctx has no stream.
func TestFutureUsesStreamsOfTensors(t *testing.T) {
	inBubble(t, map[int]int{0: 0}, nil, func(t *testing.T, a *agent.Agent, kinds []*delayed.Kind) {
		f, err := agent.NewFuture[*tensor.Tensor](a)
		require.NoError(t, err)
		x, own := onDevice(t, kinds[0], 0, 16)
		another := newStream(t, kinds[0], 0)
		release := own.Hold()
		set(t, own, x, 1)
		require.NoError(t, f.SetFrom(t.Context(), x))
		_, err = f.Wait(device.WithStream(t.Context(), another))
		require.NoError(t, err)
		requireAfter(t, kinds[0], x, another, 1, release)
	})
}

// A callback gets a stream for each device of the future, which waits for the work before, and need not wait for its own
// work: a wait for its result does that. It may return a tensor on another device than its argument.
func TestCallbackOnDevices(t *testing.T) {
	inBubble(t, map[int]int{0: 0, 1: 1}, nil, func(t *testing.T, a *agent.Agent, kinds []*delayed.Kind) {
		k := kinds[0]
		f, err := agent.NewFuture[*tensor.Tensor](a)
		require.NoError(t, err)
		x := filledOn(t, k, 0)
		y := filledOn(t, k, 1)
		var releaseCallback func()
		next := future.ThenOn(f, func(ctx context.Context, f *agent.Future[*tensor.Tensor]) (*tensor.Tensor, error) {
			x, err := f.Result()
			require.NoError(t, err)
			from, to := device.StreamFrom(ctx, npuOrCPU(0)), device.StreamFrom(ctx, npuOrCPU(1))
			src, err := x.Buffer()
			require.NoError(t, err)
			dst, err := y.Buffer()
			require.NoError(t, err)
			releaseCallback = to.(*delayed.Stream).Hold()
			return y, k.Copy(dst.WithStream(to), src.WithStream(from))
		})
		current, another := newStream(t, k, 0), newStream(t, k, 1)
		release := current.Hold()
		set(t, current, x, 1)
		require.NoError(t, f.SetFrom(device.WithStream(t.Context(), current), x))
		got, err := next.Wait(device.WithStream(t.Context(), another))
		require.NoError(t, err)
		require.Same(t, y, got)
		requireAfter(t, k, y, another, 1, release, releaseCallback)
	})
}

// A wait for the result of a callback waits for the work of the callback also if the result has no tensors, or cannot be
// sent. All has the devices of all its futures.
func TestCallbackWithoutTensors(t *testing.T) {
	for name, result := range map[string]any{"none": nil, "no message": make(chan int)} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, map[int]int{0: 0, 1: 1}, nil, func(t *testing.T, a *agent.Agent, kinds []*delayed.Kind) {
				f, err := agent.NewFuture[int](a, npuOrCPU(0))
				require.NoError(t, err)
				g, err := agent.NewFuture[int](a, npuOrCPU(1))
				require.NoError(t, err)
				x := filledOn(t, kinds[0], 1)
				var release func()
				next := future.ThenOn(future.All(f, g), func(ctx context.Context, _ *agent.Future[[]*agent.Future[int]]) (any, error) {
					s := device.StreamFrom(ctx, npuOrCPU(1))
					release = s.(*delayed.Stream).Hold()
					set(t, s, x, 1)
					return result, nil
				})
				require.NoError(t, f.SetFrom(t.Context(), 1))
				require.NoError(t, g.SetFrom(t.Context(), 2))
				another := newStream(t, kinds[0], 1)
				_, err = next.Wait(device.WithStream(t.Context(), another))
				require.NoError(t, err)
				requireAfter(t, kinds[0], x, another, 1, release)
			})
		})
	}
}

// So does a callback of the future of a call.
func TestCallbackOfCall(t *testing.T) {
	group, kinds := startDevices(t, map[int]int{0: 1}, nil)
	x, mine := onDevice(t, kinds[0], 0, 16)
	plus := future.ThenOn(plusOne.Go(device.WithStream(t.Context(), mine), group[0], "worker1", x), func(ctx context.Context, f *agent.Future[*tensor.Tensor]) (*tensor.Tensor, error) {
		x, err := f.Result()
		if err == nil {
			set(t, device.StreamFrom(ctx, x.Device()), x, 6)
		}
		return x, err
	})
	got, err := plus.Wait(device.WithStream(t.Context(), mine))
	require.NoError(t, err)
	requireSix(t, kinds[0], got, mine)
}
