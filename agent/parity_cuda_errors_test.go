package agent_test

import (
	"maps"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/cudagroup"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// noMap is PyTorch's text for a tensor on a device without a device map.
const noMap = "TensorPipe RPC backend only supports CPU tensors by default.*`set_device_map` on `TensorPipeRpcBackendOptions`"

// requireText requires that the regular expression of a test of PyTorch matches the text of err in PyTorch's words.
func requireText(t require.TestingT, pattern string, err error) {
	require.Error(t, err)
	require.Regexp(t, regexp.MustCompile("(?s)"+pattern), torch.Error(err))
}

// rejectedMaps returns a case in which all workers try to join with the devices and with maps to the worker with the
// name that to returns, each set by a call of SetDeviceMap. All fail with an error that pattern matches.
func rejectedMaps(pattern string, to func(w *cudagroup.Worker) string, devices []device.Device, each ...map[int]int) func(w *cudagroup.Worker) {
	return func(w *cudagroup.Worker) {
		a, err := w.Join(func(c *agent.Config) {
			c.Devices = devices
			for _, m := range each {
				require.NoError(w, c.SetDeviceMap(to(w), cudagroup.Map(m)))
			}
		})
		require.Nil(w, a)
		require.ErrorIs(w, err, agent.ErrDeviceMaps)
		requireText(w, pattern, err)
	}
}

func nextWorker(w *cudagroup.Worker) string { return w.Next(1) }

// setNegative sets maps whose devices have negative indices.
func setNegative(w *cudagroup.Worker) {
	bad := device.Device{Kind: cudagroup.GPU(0).Kind, Index: -1}
	for _, m := range []agent.DeviceMap{{bad: cudagroup.GPU(0)}, {cudagroup.GPU(0): bad}} {
		var c agent.Config
		requireText(w, "Device index must not be negative", c.SetDeviceMap(w.Next(1), m))
		require.Empty(w, c.DeviceMaps)
	}
}

// oneToMany sets two maps that send one device to two.
func oneToMany(w *cudagroup.Worker) {
	if w.Rank != 0 {
		return
	}
	var c agent.Config
	require.NoError(w, c.SetDeviceMap(w.Next(1), cudagroup.Map(map[int]int{0: 1})))
	requireText(w, "`set_device_map` only supports 1-to-1 mapping", c.SetDeviceMap(w.Next(1), cudagroup.Map(map[int]int{0: 0})))
}

// requireWorks requires that calls with tensors in host memory work.
func requireWorks(w *cudagroup.Worker, a *agent.Agent) {
	sum, err := agent.One[*tensor.Tensor](a.Op(w.Context(), agent.To(w.Next(1)), "aten::add", w.Full(1, device.CPU(), 2), 1))
	require.NoError(w, err)
	w.RequireFull(sum, 2, device.CPU(), 2)
}

// missingMap calls an operator with a tensor on a GPU, for which there is no map, n times.
func missingMap(n int) func(w *cudagroup.Worker, a *agent.Agent) {
	return func(w *cudagroup.Worker, a *agent.Agent) {
		for range n {
			_, err := a.Op(w.Context(), agent.To(w.Next(1)), "aten::add", w.Full(0, cudagroup.GPU(0), 2), 1)
			requireText(w, noMap, err)
			requireWorks(w, a)
		}
	}
}

// missingReplyMap calls a function that returns a tensor on a GPU, for which there is no map, n times.
func missingReplyMap(n int) func(w *cudagroup.Worker, a *agent.Agent) {
	return func(w *cudagroup.Worker, a *agent.Agent) {
		for range n {
			_, err := addToGPU.Call(w.Context(), a, agent.To(w.Next(1)), addend{w.Full(0, device.CPU(), 2), 1})
			requireText(w, "Response device mapping is not available", err)
			requireWorks(w, a)
		}
	}
}

// withoutMaps returns a case in which the workers join without device maps.
func withoutMaps(f func(w *cudagroup.Worker, a *agent.Agent)) func(w *cudagroup.Worker) {
	return func(w *cudagroup.Worker) { withMaps(w, "", nil, func(a *agent.Agent) { f(w, a) }) }
}

// notTimeout requires that the error of a missing map, and the shutdown after it, take less than the timeout of calls.
func notTimeout(w *cudagroup.Worker) {
	begun := time.Now()
	var limit time.Duration
	withoutMaps(func(w *cudagroup.Worker, a *agent.Agent) {
		limit = a.DefaultTimeout()
		missingMap(1)(w, a)
	})(w)
	require.Less(w, time.Since(begun), limit)
}

// mismatch calls a function that adds tensors on two devices.
func mismatch(w *cudagroup.Worker) {
	to := w.Next(1)
	withMaps(w, to, []map[int]int{{0: 0}}, func(a *agent.Agent) {
		_, err := gpuAddWrongGPUs.Call(w.Context(), a, agent.To(to), twoTensors{w.Full(0, cudagroup.GPU(0), 2), w.Full(1, cudagroup.GPU(0), 2)})
		requireText(w, "Expected all tensors to be on the same device, but found at least two devices", err)
		w.RequireRoutes(to, cudagroup.Map(map[int]int{0: 0}))
	})
}

// torchThreads is the number of threads of a worker in PyTorch's tests.
const torchThreads = 8

func TestParityCudaErrors(t *testing.T) {
	const count = 4 // devices of the simulated driver
	nobody := func(*cudagroup.Worker) string { return "none_exist" }
	all := map[string]func(w *cudagroup.Worker){
		"device_maps_wrong_worker_name":         rejectedMaps("Node worker0 has invalid target node names in its device maps", nobody, nil, map[int]int{0: 1}),
		"device_maps_invalid_max_local_device":  rejectedMaps("Node worker0 has source devices with invalid indices in its device map for worker1", nextWorker, nil, map[int]int{count: 0}),
		"device_maps_invalid_max_remote_device": rejectedMaps("Node worker0 has target devices with invalid indices in its device map for worker1", nextWorker, nil, map[int]int{0: count}),
		"device_maps_many_to_one":               rejectedMaps("Node worker0 has duplicated target devices in its device map for worker1", nextWorker, nil, map[int]int{1: 0}, map[int]int{0: 0}),
		"devices_option_mismatch": rejectedMaps("Node worker0 has unexpected source devices in its device map for worker1", nextWorker,
			[]device.Device{cudagroup.GPU(1)}, map[int]int{0: 0}),
		"devices_option_mismatch_reverse": rejectedMaps("Node worker0 has unexpected target devices in its device map for worker1", nextWorker,
			[]device.Device{cudagroup.GPU(0)}, map[int]int{0: 1}),
		"device_maps_one_to_many":                  oneToMany,
		"device_maps_invalid_min_device":           setNegative,
		"device_maps_missing_config":               withoutMaps(missingMap(1)),
		"device_maps_missing_config_loop":          withoutMaps(missingMap(torchThreads + 5)),
		"device_maps_missing_config_not_timeout":   notTimeout,
		"device_maps_missing_config_response":      withoutMaps(missingReplyMap(1)),
		"device_maps_missing_config_response_loop": withoutMaps(missingReplyMap(torchThreads + 5)),
		"device_mismatch":                          mismatch,
	}
	var cases []cudagroup.Case
	for _, name := range slices.Sorted(maps.Keys(all)) {
		cases = append(cases, cudagroup.Case{ID: "rpc/TensorPipeAgentCudaRpcTest.test_" + name, Run: all[name]})
	}
	cudagroup.Run(t, world, cases...)
}
