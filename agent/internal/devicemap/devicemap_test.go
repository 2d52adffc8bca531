package devicemap_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/devicemap"
	"github.com/tensorpipe-go/tensorpipe/device"
)

func npu(index int) device.Device { return device.Device{Kind: "npu", Index: index} }

// pairs returns the map that sends tensors on the npu with index from to the one with index to; -1 is the CPU.
func pairs(indices ...int) devicemap.Map {
	m := devicemap.Map{}
	for i := 0; i < len(indices); i += 2 {
		all := [2]device.Device{}
		for j, index := range indices[i : i+2] {
			if all[j] = npu(index); index < 0 {
				all[j] = device.CPU()
			}
		}
		m[all[0]] = all[1]
	}
	return m
}

// group returns two nodes of two devices each; m is the map of worker0 to worker1.
func group(m devicemap.Map) []devicemap.Node {
	two := map[string]int{"npu": 2}
	return []devicemap.Node{
		{Name: "worker0", Counts: two, Maps: map[string]devicemap.Map{"worker1": m}},
		{Name: "worker1", Counts: two},
	}
}

func TestCheck(t *testing.T) {
	for want, change := range map[string]func([]devicemap.Node){
		"": func(all []devicemap.Node) {
			all[0].Devices, all[1].Devices = []device.Device{npu(1), npu(0)}, []device.Device{npu(0), npu(1)}
			all[0].Maps["worker1"] = pairs(0, 1, 1, -1, -1, 0)
		},
		"Node worker1 has duplicated devices\ndevices = [npu:0 npu:1 npu:0]": func(all []devicemap.Node) {
			all[1].Devices = []device.Device{npu(0), npu(1), npu(0)}
		},
		"Node worker0 has devices with invalid indices\ndevices = [npu:2]\ndevice count = map[npu:2]": func(all []devicemap.Node) {
			all[0].Devices = []device.Device{npu(2)}
		},
		"Node worker0 has invalid target node names in its device maps\ndevice maps = [worker1 worker2]\nnode names = [worker0 worker1]": func(all []devicemap.Node) {
			all[0].Maps["worker2"] = nil
		},
		"Node worker0 has duplicated target devices in its device map for worker1\ndevice map = {npu:0: npu:1, npu:1: npu:1}": func(all []devicemap.Node) {
			all[0].Maps["worker1"] = pairs(0, 1, 1, 1)
		},
		"Node worker0 has unexpected source devices in its device map for worker1\ndevice map = {npu:0: npu:1}\ndevices = [npu:1]": func(all []devicemap.Node) {
			all[0].Devices = []device.Device{npu(1)}
		},
		"Node worker0 has source devices with invalid indices in its device map for worker1\ndevice map = {npu:2: npu:1}\ndevice count = map[npu:2]": func(all []devicemap.Node) {
			all[0].Maps["worker1"] = pairs(2, 1)
		},
		"Node worker0 has unexpected target devices in its device map for worker1\ndevice map = {npu:0: npu:1}\ndevices = [npu:0]": func(all []devicemap.Node) {
			all[1].Devices = []device.Device{npu(0)}
		},
		"Node worker0 has target devices with invalid indices in its device map for worker1\ndevice map = {npu:0: npu:1}\ndevice count = map[npu:1]": func(all []devicemap.Node) {
			all[1].Counts = map[string]int{"npu": 1}
		},
	} {
		all := group(pairs(0, 1))
		change(all)
		err := devicemap.Check(all)
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, devicemap.ErrMaps)
		require.EqualError(t, err, "device maps do not fit: "+want)
	}
}

// A worker that joins a dynamic group checks its own maps and those to it. The map to a worker that has not joined yet is
// checked when it joins.
func TestCheckJoin(t *testing.T) {
	all := group(pairs(0, 2))
	require.NoError(t, devicemap.CheckJoin(all[:1], "worker0"))
	require.ErrorContains(t, devicemap.Check(all[:1]), "invalid target node names")
	for _, name := range []string{"worker0", "worker1"} {
		require.ErrorContains(t, devicemap.CheckJoin(all, name), "Node worker0 has target devices with invalid indices in its device map for worker1")
	}
	other := devicemap.Node{Name: "worker2"}
	require.NoError(t, devicemap.CheckJoin(append(all, other), "worker2"), "the map of others to each other")
	other.Devices = []device.Device{npu(0)}
	require.ErrorContains(t, devicemap.CheckJoin(append(all, other), "worker2"), "Node worker2 has devices with invalid indices")
}

func TestUsed(t *testing.T) {
	all := group(pairs(1, 0, -1, 1))
	require.Equal(t, []device.Device{npu(1)}, all[0].Used(all))
	require.Equal(t, []device.Device{npu(0), npu(1)}, all[1].Used(all))
	all[1].Maps = map[string]devicemap.Map{"worker0": pairs(0, -1, 1, 0), "worker1": pairs(0, 1)}
	require.Equal(t, []device.Device{npu(0), npu(1)}, all[0].Used(all))
	all[0].Devices = []device.Device{npu(3), npu(2)}
	require.Equal(t, []device.Device{npu(2), npu(3)}, all[0].Used(all))
	require.Empty(t, devicemap.Node{Name: "worker2"}.Used(all))
}

func TestInverse(t *testing.T) {
	require.Equal(t, pairs(1, 0, -1, 1, 0, -1), pairs(0, 1, 1, -1, -1, 0).Inverse())
}

func TestWith(t *testing.T) {
	m, err := pairs(0, 1).With(pairs(0, 1, 1, -1))
	require.NoError(t, err)
	require.Equal(t, pairs(0, 1, 1, -1), m)
	m, err = devicemap.Map(nil).With(pairs(2, 2))
	require.NoError(t, err)
	require.Equal(t, pairs(2, 2), m)
	for want, more := range map[string]devicemap.Map{
		"the device map sends npu:0 to npu:1 and to npu:0":                            pairs(0, 0),
		"the device map sends npu:0 and npu:1 to npu:1":                               pairs(0, 1, 1, 1),
		"device map: npu:-1: a device has a kind, and its index must not be negative": {npu(-1): npu(0)},
		"device map: any: a device has a kind, and its index must not be negative":    {npu(3): device.Device{}},
	} {
		_, err := pairs(0, 1).With(more)
		require.EqualError(t, err, want)
	}
}
