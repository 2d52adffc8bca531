package agent_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest/npu"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

var plusOne = agent.NewFunc[*tensor.Tensor, *tensor.Tensor]("test.plusOne")

// addOne adds 1 to each byte of x and returns x. It enqueues the work on the stream of x and does
// not wait for it.
func addOne(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	buf, err := x.Buffer()
	if err != nil {
		return nil, err
	}
	return x, buf.Stream().(*delayed.Stream).Launch(func(mem ...[]byte) error {
		for i := range mem[0] {
			mem[0][i]++
		}
		return nil
	}, buf)
}

// npus returns device maps for Config.DeviceMaps: to worker0 and worker1, from the npu with index i to the npu with index
// to[i]. The index -1 is the CPU.
func npus(to map[int]int) map[string]agent.DeviceMap {
	m := agent.DeviceMap{}
	for i, j := range to {
		m[npuOrCPU(i)] = npuOrCPU(j)
	}
	return map[string]agent.DeviceMap{"worker0": m, "worker1": m}
}

func npuOrCPU(index int) device.Device {
	if index < 0 {
		return device.CPU()
	}
	return device.Device{Kind: npu.Name, Index: index}
}

var made = agent.NewFunc[int, *tensor.Tensor]("test.made")

// startDevices joins two workers with a device kind of two devices each, which it also returns.
// maps[rank], if it is not nil, is the device map of the worker with that rank, as device indices.
// Workers and kinds are closed at the end of the test.
func startDevices(t *testing.T, maps ...map[int]int) (group []*agent.Agent, kinds []*delayed.Kind) {
	kinds = []*delayed.Kind{npu.NewKind(), npu.NewKind()}
	group = startGroup(t, 2, func(rank int, c *agent.Config) {
		c.Funcs = agent.Funcs{plusOne.Serve(addOne, agent.WithOnce()), made.Serve(func(_ context.Context, on int) (*tensor.Tensor, error) {
			x, _ := onDevice(t, kinds[rank], on, 16)
			return addOne(t.Context(), x)
		})}
		c.Kinds = []device.Kind{kinds[rank]}
		if maps[rank] != nil {
			c.DeviceMaps = npus(maps[rank])
		}
		c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
			o.Channels = append(tensorpipe.DefaultProfile().Channels, pipe.ChannelEntry{Name: npu.Name, Priority: 1, Factory: npu.New(kinds[rank], basic.New())})
			return tensorpipe.NewContext(o)
		}
	})
	for _, k := range kinds {
		t.Cleanup(k.Close)
	}
	return group, kinds
}

// onDevice returns a tensor of n bytes, all 5, on the device of k with the given index, and the new
// stream on which the tensor is valid.
func onDevice(t *testing.T, k *delayed.Kind, index, n int) (*tensor.Tensor, *delayed.Stream) {
	s, err := k.NewStream(k.Devices()[index])
	require.NoError(t, err)
	buf, err := k.Alloc(k.Devices()[index], n, s)
	require.NoError(t, err)
	require.NoError(t, k.Write(buf, bytes.Repeat([]byte{5}, n)))
	x, err := tensor.FromBuffer(buf, tensor.U8, n)
	require.NoError(t, err)
	return x, s.(*delayed.Stream)
}

// requireSix requires that all bytes of x are 6. It reads x on the stream s of the caller, which
// waits only for work that the call has ordered before: without that order it may read too early.
func requireSix(t *testing.T, k *delayed.Kind, x *tensor.Tensor, s device.Stream) {
	t.Helper()
	buf, err := x.Buffer()
	require.NoError(t, err)
	got := make([]byte, buf.Len())
	require.NoError(t, k.Read(got, buf.WithStream(s)))
	require.NoError(t, s.Synchronize(t.Context()))
	require.Equal(t, bytes.Repeat([]byte{6}, len(got)), got)
}

func TestTensorsOnDevices(t *testing.T) {
	group, kinds := startDevices(t, map[int]int{0: 1}, map[int]int{0: 1, 1: 0})
	mine, err := kinds[0].NewStream(kinds[0].Devices()[0])
	require.NoError(t, err)
	ctx := device.WithStream(t.Context(), mine)
	for _, n := range []int{16, 1 << 20} {
		x, s := onDevice(t, kinds[0], 0, n)
		release := s.Hold()
		f := plusOne.Go(ctx, group[0], "worker1", x)
		release()
		y, err := f.Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, kinds[0].Devices()[0], y.Device(), "to the other device and back")
		requireSix(t, kinds[0], y, mine)

		x, _ = onDevice(t, kinds[0], 0, n)
		y, err = plusOne.Call(ctx, group[0], "worker1", x)
		require.NoError(t, err)
		requireSix(t, kinds[0], y, mine)
	}
	x, _ := onDevice(t, kinds[0], 1, 16)
	_, err = plusOne.Call(ctx, group[0], "worker1", x)
	require.ErrorIs(t, err, agent.ErrArguments)
	require.ErrorContains(t, err, "a tensor is on npu:1, and the device map for worker1 does not have it")
}

// The caller's device map determines the devices of tensors in replies, whatever the map of the
// callee is. A tensor on a device to which the caller's map sends nothing cannot be returned.
func TestReplyDevices(t *testing.T) {
	for name, callee := range map[string]map[int]int{"no map": nil, "another map": {0: 0, 1: 1}} {
		t.Run(name, func(t *testing.T) {
			group, kinds := startDevices(t, map[int]int{0: 1}, callee)
			mine, err := kinds[0].NewStream(kinds[0].Devices()[0])
			require.NoError(t, err)
			ctx := device.WithStream(t.Context(), mine)
			x, _ := onDevice(t, kinds[0], 0, 16)
			y, err := plusOne.Call(ctx, group[0], "worker1", x)
			require.NoError(t, err)
			require.Equal(t, kinds[0].Devices()[0], y.Device())
			requireSix(t, kinds[0], y, mine)

			y, err = made.Call(ctx, group[0], "worker1", 1)
			require.NoError(t, err)
			require.Equal(t, kinds[0].Devices()[0], y.Device())
			requireSix(t, kinds[0], y, mine)
			_, err = made.Call(ctx, group[0], "worker1", 0)
			require.ErrorIs(t, err, agent.ErrResult)
			var missing *agent.DeviceError
			require.ErrorAs(t, err, &missing)
			require.Equal(t, agent.DeviceError{Worker: "worker0", Device: kinds[0].Devices()[0], Reply: true}, *missing)
			require.ErrorContains(t, err, "a tensor is on npu:0, to which the device map of worker0 sends none of its devices")
		})
	}
}

// Replies use the caller's device map also on a pipe that the callee has opened.
func TestReplyDevicesOnPipeOfCallee(t *testing.T) {
	group, kinds := startDevices(t, map[int]int{0: 1, 1: 0}, nil)
	_, err := plusOne.Call(t.Context(), group[1], "worker0", nil)
	require.ErrorIs(t, err, agent.ErrPanic, "there is a pipe")
	for i := range 2 {
		y, err := made.Call(t.Context(), group[0], "worker1", i)
		require.NoError(t, err)
		require.Equal(t, kinds[0].Devices()[1-i], y.Device())
	}
}

func TestInvalidKinds(t *testing.T) {
	k := npu.NewKind()
	t.Cleanup(k.Close)
	for _, kinds := range [][]device.Kind{{nil}, {device.NewCPU()}, {k, k}} {
		_, err := agent.Join(t.Context(), agent.Config{Name: "a", WorldSize: 1, Rendezvous: "mem://", Kinds: kinds})
		require.ErrorIs(t, err, agent.ErrConfig)
	}
}
