package agent_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest/npu"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// withNPUs gives the worker of c a kind of two devices, which it returns, and a channel for it, and serves plusOne.
func withNPUs(t *testing.T, c *agent.Config) *delayed.Kind {
	k := npu.NewKind()
	c.Kinds = []device.Kind{k}
	c.Funcs = agent.Funcs{plusOne.Serve(addOne)}
	c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
		o.Channels = append(tensorpipe.DefaultProfile().Channels, pipe.ChannelEntry{Name: npu.Name, Priority: 1, Factory: npu.New(k, basic.New())})
		return tensorpipe.NewContext(o)
	}
	return k
}

func TestSetDeviceMap(t *testing.T) {
	var c agent.Config
	require.NoError(t, c.SetDeviceMap("worker1", agent.DeviceMap{npuOrCPU(0): npuOrCPU(1)}))
	require.NoError(t, c.SetDeviceMap("worker1", agent.DeviceMap{npuOrCPU(0): npuOrCPU(1), npuOrCPU(1): npuOrCPU(-1)}))
	require.NoError(t, c.SetDeviceMap("worker2", agent.DeviceMap{npuOrCPU(-1): npuOrCPU(0)}))
	err := c.SetDeviceMap("worker2", agent.DeviceMap{npuOrCPU(0): npuOrCPU(1), npuOrCPU(1): npuOrCPU(1)})
	require.ErrorIs(t, err, agent.ErrConfig)
	require.Contains(t, err.Error(), "to npu:1")
	err = c.SetDeviceMap("worker1", agent.DeviceMap{npuOrCPU(0): npuOrCPU(0)})
	require.ErrorIs(t, err, agent.ErrConfig)
	require.EqualError(t, err, "wrong configuration: the device map sends npu:0 to npu:1 and to npu:0")
	for _, bad := range []device.Device{{Kind: npu.Name, Index: -1}, {}} {
		require.ErrorIs(t, c.SetDeviceMap("worker1", agent.DeviceMap{bad: npuOrCPU(0)}), agent.ErrConfig)
		require.ErrorIs(t, c.SetDeviceMap("worker1", agent.DeviceMap{npuOrCPU(0): bad}), agent.ErrConfig)
	}
	require.Equal(t, map[string]agent.DeviceMap{
		"worker1": {npuOrCPU(0): npuOrCPU(1), npuOrCPU(1): npuOrCPU(-1)},
		"worker2": {npuOrCPU(-1): npuOrCPU(0)},
	}, c.DeviceMaps)
}

// Invalid maps of one worker are an error for all workers of a static group, with the same text.
func TestDeviceMapsThatDoNotFit(t *testing.T) {
	for want, change := range map[string]func(rank int, c *agent.Config){
		"Node worker0 has invalid target node names in its device maps\ndevice maps = [none]": func(rank int, c *agent.Config) {
			if rank == 0 {
				c.DeviceMaps = map[string]agent.DeviceMap{"none": {npuOrCPU(0): npuOrCPU(0)}}
			}
		},
		"Node worker0 has duplicated target devices in its device map for worker1": func(rank int, c *agent.Config) {
			if rank == 0 {
				c.DeviceMaps = map[string]agent.DeviceMap{"worker1": {npuOrCPU(0): npuOrCPU(0), npuOrCPU(1): npuOrCPU(0)}}
			}
		},
		"Node worker1 has target devices with invalid indices in its device map for worker0\ndevice map = {npu:0: npu:2}\ndevice count = map[npu:2]": func(rank int, c *agent.Config) {
			if rank == 1 {
				c.DeviceMaps = map[string]agent.DeviceMap{"worker0": {npuOrCPU(0): npuOrCPU(2)}}
			}
		},
		"Node worker0 has unexpected target devices in its device map for worker1\ndevice map = {npu:0: npu:0}\ndevices = [npu:1]": func(rank int, c *agent.Config) {
			if rank == 0 {
				c.DeviceMaps = map[string]agent.DeviceMap{"worker1": {npuOrCPU(0): npuOrCPU(0)}}
			} else {
				c.Devices = []device.Device{npuOrCPU(1)}
			}
		},
		"Node worker1 has target devices with invalid indices in its device map for worker0\ndevice map = {npu:0: npu:0}\ndevice count = map[]": func(rank int, c *agent.Config) {
			if rank == 0 {
				c.Kinds = nil
			} else {
				c.DeviceMaps = map[string]agent.DeviceMap{"worker0": {npuOrCPU(0): npuOrCPU(0)}}
			}
		},
	} {
		s := store.NewMemory(store.Limits{})
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		errs := make([]error, 2)
		var joins sync.WaitGroup
		for rank, name := range []string{"worker0", "worker1"} {
			c := agent.Config{Name: name, Rank: rank, WorldSize: 2, Store: s}
			t.Cleanup(withNPUs(t, &c).Close)
			change(rank, &c)
			joins.Go(func() { _, errs[rank] = agent.Join(t.Context(), c) })
		}
		joins.Wait()
		for _, err := range errs {
			require.ErrorIs(t, err, agent.ErrDeviceMaps)
			require.ErrorContains(t, err, want)
		}
	}
}

func TestInvalidDevices(t *testing.T) {
	for _, change := range []func(*agent.Config){
		func(c *agent.Config) { c.Devices = []device.Device{device.CPU()} },
		func(c *agent.Config) {
			c.DeviceMaps = map[string]agent.DeviceMap{"a": {device.Device{Kind: npu.Name, Index: -1}: device.CPU()}}
		},
	} {
		c := agent.Config{Name: "a", WorldSize: 1, Rendezvous: "mem://"}
		change(&c)
		_, err := agent.Join(t.Context(), c)
		require.ErrorIs(t, err, agent.ErrConfig)
	}
}

// A worker of a dynamic group may have a map to one that has not joined yet. The map is checked when that one joins,
// which fails if it does not fit.
func TestDeviceMapToLaterWorker(t *testing.T) {
	s := store.NewMemory(store.Limits{})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	join := func(name string, configure func(*agent.Config)) (*agent.Agent, *delayed.Kind, error) {
		c := agent.Config{Name: name, Rank: -1, Store: s}
		k := withNPUs(t, &c)
		t.Cleanup(k.Close)
		configure(&c)
		a, err := agent.Join(t.Context(), c)
		if err == nil {
			t.Cleanup(func() { require.NoError(t, a.Close()) })
		}
		return a, k, err
	}
	first, k, err := join("worker0", func(c *agent.Config) {
		require.NoError(t, c.SetDeviceMap("worker1", agent.DeviceMap{npuOrCPU(0): npuOrCPU(1)}))
	})
	require.NoError(t, err)
	require.Equal(t, []device.Device{npuOrCPU(0)}, first.Devices())
	_, _, err = join("worker1", func(c *agent.Config) { c.Devices = []device.Device{npuOrCPU(0)} })
	require.ErrorIs(t, err, agent.ErrDeviceMaps)
	require.ErrorContains(t, err, "Node worker0 has unexpected target devices in its device map for worker1")
	second, _, err := join("worker1", func(c *agent.Config) {
		require.NoError(t, c.SetDeviceMap("worker0", agent.DeviceMap{npuOrCPU(0): npuOrCPU(1)}))
	})
	require.NoError(t, err)
	require.Equal(t, []device.Device{npuOrCPU(0), npuOrCPU(1)}, second.Devices())

	x, mine := onDevice(t, k, 0, 16)
	ctx := device.WithStream(t.Context(), mine)
	y, err := plusOne.Call(ctx, first, "worker1", x)
	require.NoError(t, err)
	require.Equal(t, npuOrCPU(0), y.Device())
	requireSix(t, k, y, mine)
	require.Equal(t, []device.Device{npuOrCPU(0), npuOrCPU(1)}, first.Devices(), "the map of worker1 to it")
}

// The device maps of a worker that cannot join for them are in the list for a moment: they change nothing for the
// others, and do not keep further workers from joining.
func TestWrongDeviceMapOfAnother(t *testing.T) {
	s := store.NewMemory(store.Limits{})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	join := func(name string, m agent.DeviceMap) (*agent.Agent, error) {
		c := agent.Config{Name: name, Rank: -1, Store: s, Replace: true}
		k := withNPUs(t, &c)
		t.Cleanup(k.Close)
		c.Funcs = append(c.Funcs, double.Serve(func(_ context.Context, n int) (int, error) { return 2 * n, nil }))
		if m != nil {
			c.DeviceMaps = map[string]agent.DeviceMap{"worker0": m}
		}
		a, err := agent.Join(t.Context(), c)
		if err == nil {
			t.Cleanup(func() { require.NoError(t, a.Close()) })
		}
		return a, err
	}
	first, err := join("worker0", nil)
	require.NoError(t, err)
	second, err := join("worker1", agent.DeviceMap{npuOrCPU(0): npuOrCPU(1)})
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 20 {
			_, err := join("wrong", agent.DeviceMap{npuOrCPU(0): npuOrCPU(7)})
			assert.ErrorIs(t, err, agent.ErrDeviceMaps)
		}
	}()
	for i := 0; ; i++ {
		select {
		case <-ended:
			return
		default:
		}
		n, err := double.Call(t.Context(), second, "worker0", i)
		require.NoError(t, err)
		require.Equal(t, 2*i, n)
		require.Subset(t, []device.Device{npuOrCPU(1)}, first.Devices())
		if i%100 == 0 && i < 1000 {
			_, err := join(fmt.Sprint("other", i), nil)
			require.NoError(t, err)
		}
	}
}

// A device map may have the CPU as a key, for tensors in host memory, and as a value.
func TestDeviceMapWithCPU(t *testing.T) {
	where := agent.NewFunc[*tensor.Tensor, string]("test.where")
	back := agent.NewFunc[*tensor.Tensor, *tensor.Tensor]("test.back")
	for name, m := range map[string]map[int]int{"to the CPU": {0: -1}, "from the CPU": {-1: 0}, "crosswise": {-1: 1, 1: -1}, "CPU to CPU": {-1: -1}} {
		t.Run(name, func(t *testing.T) {
			kinds := make([]*delayed.Kind, 2)
			group := startGroup(t, 2, func(rank int, c *agent.Config) {
				kinds[rank] = withNPUs(t, c)
				c.Funcs = agent.Funcs{
					where.Serve(func(_ context.Context, x *tensor.Tensor) (string, error) { return x.Device().String(), nil }),
					back.Serve(same),
				}
				if rank == 0 {
					c.DeviceMaps = map[string]agent.DeviceMap{"worker1": npus(m)["worker1"]}
				}
			})
			for _, k := range kinds {
				t.Cleanup(k.Close)
			}
			for from, to := range m {
				x, err := tensor.FromSlice([]byte{5, 5, 5, 5}, 4)
				require.NoError(t, err)
				var mine device.Stream
				if from >= 0 {
					x, mine = onDevice(t, kinds[0], from, 4)
				}
				got, err := where.Call(t.Context(), group[0], "worker1", x)
				require.NoError(t, err)
				require.Equal(t, npuOrCPU(to).String(), got)
				ctx := t.Context()
				if mine != nil {
					ctx = device.WithStream(ctx, mine)
				}
				y, err := back.Call(ctx, group[0], "worker1", x)
				require.NoError(t, err)
				require.Equal(t, npuOrCPU(from), y.Device(), "it comes back")
				buf, err := y.Buffer()
				require.NoError(t, err)
				data := make([]byte, 4)
				if mine != nil {
					require.NoError(t, kinds[0].Read(data, buf.WithStream(mine)))
					require.NoError(t, mine.Synchronize(t.Context()))
				} else {
					data = buf.AppendSegments(nil)[0]
				}
				require.Equal(t, []byte{5, 5, 5, 5}, data)
			}
		})
	}
}
