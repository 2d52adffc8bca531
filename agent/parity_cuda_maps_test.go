package agent_test

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/cudagroup"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// errAffinity is the error of functions whose arguments are on other devices than the map gives.
var errAffinity = errors.New("wrong device affinity")

type twoTensors struct{ X, Y *tensor.Tensor }

// addend are a tensor on the host, and a number that is added to it.
type addend struct {
	X *tensor.Tensor
	Y int64
}

// givenDevices are tensors, the devices on which the function must find them, and that of the sum.
type givenDevices struct {
	X, Y          *tensor.Tensor
	XTo, YTo, ZTo device.Device
}

// The functions of PyTorch's tests of device maps, by their names there.
var (
	gpuAdd             = agent.NewFunc[twoTensors, *tensor.Tensor]("_gpu_add")
	gpuAddGivenDevices = agent.NewFunc[givenDevices, *tensor.Tensor]("_gpu_add_given_devices")
	gpuAddMultiGPU     = agent.NewFunc[twoTensors, []*tensor.Tensor]("_gpu_add_multi_gpu")
	gpuAddReturnToGPU  = agent.NewFunc[twoTensors, []*tensor.Tensor]("_gpu_add_return_to_gpu")
	addToGPU           = agent.NewFunc[addend, *tensor.Tensor]("_add_to_gpu")
	gpuAddWrongGPUs    = agent.NewFunc[twoTensors, *tensor.Tensor]("_gpu_add_wrong_gpus")
)

// results are tensors that are computed one after the other, and the first error.
type results struct {
	list []*tensor.Tensor
	err  error
}

// add appends the tensor that f returns, moved to the GPU with that index, unless there was an error.
func (r *results) add(ctx context.Context, w *cudagroup.Worker, index int, f func() (*tensor.Tensor, error)) {
	if r.err != nil {
		return
	}
	x, err := f()
	if err == nil {
		x, err = w.To(ctx, x, cudagroup.GPU(index))
	}
	r.list, r.err = append(r.list, x), err
}

// mapFuncs returns the functions of the tests of device maps, computed by w.
func mapFuncs(w *cudagroup.Worker) agent.Funcs {
	e, one := w.Engine, ops.Int(1)
	return agent.Funcs{
		gpuAdd.Serve(func(ctx context.Context, p twoTensors) (*tensor.Tensor, error) {
			if p.X.Device() != cudagroup.GPU(1) || p.Y.Device() != cudagroup.GPU(1) {
				return nil, errAffinity
			}
			var r results
			r.add(ctx, w, 0, func() (*tensor.Tensor, error) { return e.Add(ctx, p.X, p.Y, one) })
			return r.list[0], r.err
		}),
		gpuAddGivenDevices.Serve(func(ctx context.Context, p givenDevices) (*tensor.Tensor, error) {
			if p.X.Device() != p.XTo || p.Y.Device() != p.YTo {
				return nil, errAffinity
			}
			x, err := e.To(ctx, p.X, p.ZTo)
			y, yErr := e.To(ctx, p.Y, p.ZTo)
			if err := errors.Join(err, yErr); err != nil {
				return nil, err
			}
			return e.Add(ctx, x, y, one)
		}),
		gpuAddMultiGPU.Serve(func(ctx context.Context, p twoTensors) ([]*tensor.Tensor, error) {
			if p.X.Device() != cudagroup.GPU(1) || p.Y.Device() != cudagroup.GPU(0) {
				return nil, errAffinity
			}
			x, err := e.To(ctx, p.X, cudagroup.GPU(0))
			y, yErr := e.To(ctx, p.Y, cudagroup.GPU(1))
			if err := errors.Join(err, yErr); err != nil {
				return nil, err
			}
			sum, err := e.Add(ctx, x, p.Y, one)
			difference, subErr := e.Sub(ctx, p.X, y, one)
			return []*tensor.Tensor{sum, difference}, errors.Join(err, subErr)
		}),
		gpuAddReturnToGPU.Serve(func(ctx context.Context, p twoTensors) ([]*tensor.Tensor, error) {
			if p.X.Device() != device.CPU() || p.Y.Device() != device.CPU() {
				return nil, errAffinity
			}
			var r results
			r.add(ctx, w, 0, func() (*tensor.Tensor, error) { return e.Add(ctx, p.X, p.Y, one) })
			r.add(ctx, w, 1, func() (*tensor.Tensor, error) { return e.Sub(ctx, p.X, p.Y, one) })
			r.add(ctx, w, 2, func() (*tensor.Tensor, error) { return e.Mul(ctx, p.X, p.Y) })
			r.add(ctx, w, 3, func() (*tensor.Tensor, error) { return e.Div(ctx, p.X, p.Y) })
			return r.list, r.err
		}),
		addToGPU.Serve(func(ctx context.Context, p addend) (*tensor.Tensor, error) {
			var r results
			r.add(ctx, w, 0, func() (*tensor.Tensor, error) { return e.AddNumber(ctx, p.X, ops.Int(p.Y), one) })
			return r.list[0], r.err
		}),
		gpuAddWrongGPUs.Serve(func(ctx context.Context, p twoTensors) (*tensor.Tensor, error) {
			if p.X.Device() == device.CPU() || p.Y.Device() == device.CPU() {
				return nil, errAffinity
			}
			x, err := e.To(ctx, p.X, device.CPU())
			if err != nil {
				return nil, err
			}
			return e.Add(ctx, x, p.Y, one)
		}),
	}
}

// withMaps joins the worker with the functions of mapFuncs and these maps for the worker with that name,
// each set by a call of SetDeviceMap, and runs f with its agent.
func withMaps(w *cudagroup.Worker, worker string, each []map[int]int, f func(a *agent.Agent)) {
	w.Live(func(c *agent.Config) {
		c.Funcs = mapFuncs(w)
		for _, m := range each {
			require.NoError(w, c.SetDeviceMap(worker, cudagroup.Map(m)))
		}
	}, f)
}

// mapCase is a call of gpuAddGivenDevices with 0 on the device x and 1 on the device y of the caller, whose
// sum is on the device z of the other end. Devices are those of cudagroup.GPU.
type mapCase struct {
	name    string
	x, y, z int
	pairs   map[int]int
	self    bool
}

func (c mapCase) run(w *cudagroup.Worker) {
	to := w.Next(1)
	if c.self {
		to = w.Name()
	}
	withMaps(w, to, []map[int]int{c.pairs}, func(a *agent.Agent) {
		m := cudagroup.Map(c.pairs)
		x, y, z := cudagroup.GPU(c.x), cudagroup.GPU(c.y), cudagroup.GPU(c.z)
		sum, err := gpuAddGivenDevices.Call(w.Context(), a, agent.To(to),
			givenDevices{w.Full(0, x, 2), w.Full(1, y, 2), m[x], m[y], z})
		require.NoError(w, err)
		w.RequireFull(sum, 1, from(m, z), 2)
		w.RequireRoutes(to, m)
	})
}

// from returns the device that m sends to another one.
func from(m agent.DeviceMap, to device.Device) device.Device {
	for from, d := range m {
		if d == to {
			return from
		}
	}
	return device.Device{}
}

// mapCases are the tests of PyTorch that call its helper _test_device_maps_gpu.
func mapCases() []cudagroup.Case {
	straight, crossed := map[int]int{0: 0, 1: 1}, map[int]int{0: 1, 1: 0}
	cases := []mapCase{
		{"cpu", -1, -1, -1, map[int]int{-1: -1}, false},
		{"cpu_to_gpu_default", -1, -1, 0, map[int]int{-1: 0}, false},
		{"cpu_to_gpu_non_default", -1, -1, 1, map[int]int{-1: 1}, false},
		{"gpu_to_cpu_default", 0, 0, -1, map[int]int{0: -1}, false},
		{"gpu_to_cpu_non_default", 1, 1, -1, map[int]int{1: -1}, false},
		{"gpu_default", 0, 0, 0, map[int]int{0: 0}, false},
		{"gpu_non_default", 1, 1, 1, map[int]int{1: 1}, false},
		{"gpu_default_to_non_default", 0, 0, 1, map[int]int{0: 1}, false},
		{"gpu_non_default_to_default", 1, 1, 0, map[int]int{1: 0}, false},
	}
	for _, self := range []bool{false, true} {
		prefix := "gpu_mixed_"
		if self {
			prefix += "self_"
		}
		for i, m := range []map[int]int{straight, crossed} {
			cases = append(cases,
				mapCase{prefix + []string{"1", "5"}[i], 0, 1, 0, m, self},
				mapCase{prefix + []string{"2", "6"}[i], 0, 1, 1, m, self},
				mapCase{prefix + []string{"3", "7"}[i], 1, 0, 0, m, self},
				mapCase{prefix + []string{"4", "8"}[i], 1, 0, 1, m, self},
			)
		}
	}
	var all []cudagroup.Case
	for _, c := range cases {
		all = append(all, cudagroup.Case{ID: "rpc/TensorPipeAgentCudaRpcTest.test_device_map_" + c.name, Run: c.run})
	}
	return all
}

// requireMultiGPU calls gpuAddMultiGPU with 0 on cuda:0 and 1 on cuda:1, with the map of both to each other.
func requireMultiGPU(w *cudagroup.Worker, a *agent.Agent, to string) {
	got, err := gpuAddMultiGPU.Call(w.Context(), a, agent.To(to),
		twoTensors{w.Full(0, cudagroup.GPU(0), 2), w.Full(1, cudagroup.GPU(1), 2)})
	require.NoError(w, err)
	require.Len(w, got, 2)
	w.RequireFull(got[0], 1, cudagroup.GPU(1), 2)
	w.RequireFull(got[1], -1, cudagroup.GPU(0), 2)
	w.RequireRoutes(to, cudagroup.Map(map[int]int{0: 1, 1: 0}))
}

func multiGPU(steps int) func(w *cudagroup.Worker) {
	return func(w *cudagroup.Worker) {
		to := w.Next(steps)
		withMaps(w, to, []map[int]int{{0: 1}, {1: 0}}, func(a *agent.Agent) { requireMultiGPU(w, a, to) })
	}
}

// returnToGPU calls a function with tensors on the host that returns one on each GPU.
func returnToGPU(steps int) func(w *cudagroup.Worker) {
	return func(w *cudagroup.Worker) {
		to, each := w.Next(steps), []map[int]int{{0: 1}, {1: 2}, {2: 3}, {3: 0}}
		withMaps(w, to, each, func(a *agent.Agent) {
			got, err := gpuAddReturnToGPU.Call(w.Context(), a, agent.To(to),
				twoTensors{w.Full(0, device.CPU(), 2), w.Full(1, device.CPU(), 2)})
			require.NoError(w, err)
			require.Len(w, got, 4)
			all := agent.DeviceMap{}
			for i, value := range []float64{1, -1, 0, 0} {
				w.RequireFull(got[i], value, cudagroup.GPU((3+i)%4), 2)
				maps.Copy(all, cudagroup.Map(each[i]))
			}
			w.RequireRoutes(to, all)
		})
	}
}

func TestParityCudaMaps(t *testing.T) {
	const test = "rpc/TensorPipeAgentCudaRpcTest.test_device_maps_"
	cudagroup.Run(t, world, append(mapCases(),
		cudagroup.Case{ID: test + "gpu", Run: func(w *cudagroup.Worker) {
			to, pairs := w.Next(1), map[int]int{0: 1, 1: 0}
			withMaps(w, to, []map[int]int{pairs}, func(a *agent.Agent) {
				sum, err := gpuAdd.Call(w.Context(), a, agent.To(to),
					twoTensors{w.Full(0, cudagroup.GPU(0), 2), w.Full(1, cudagroup.GPU(0), 2)})
				require.NoError(w, err)
				w.RequireFull(sum, 1, cudagroup.GPU(1), 2)
				w.RequireRoutes(to, cudagroup.Map(pairs))
			})
		}},
		cudagroup.Case{ID: test + "multi_gpu", Run: multiGPU(1)},
		cudagroup.Case{ID: test + "multi_gpu_self", Run: multiGPU(0)},
		cudagroup.Case{ID: test + "in_options", Run: func(w *cudagroup.Worker) {
			to := w.Next(1)
			w.Live(func(c *agent.Config) {
				c.Funcs = mapFuncs(w)
				c.DeviceMaps = map[string]agent.DeviceMap{to: cudagroup.Map(map[int]int{0: 1, 1: 0})}
			}, func(a *agent.Agent) { requireMultiGPU(w, a, to) })
		}},
		cudagroup.Case{ID: test + "return_to_gpu", Run: returnToGPU(1)},
		cudagroup.Case{ID: test + "return_to_gpu_self", Run: returnToGPU(0)},
	)...)
}
