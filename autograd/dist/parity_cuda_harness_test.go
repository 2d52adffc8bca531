package dist_test

import (
	"context"
	"math/rand/v2"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/cudagroup"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// cudaWorker is a worker of a parity case with GPUs, in a process of its own. Its context has the kernels
// of the GPUs, and a stream for each.
type cudaWorker struct {
	*worker
	group *cudagroup.Worker
	made  map[variable][]float32 // the elements of leaves
}

// cudaCase returns the case with that ID: each process joins with
// the device maps that maps returns, by the name of the worker, runs s, and shuts down. Nothing of a Context
// may be left then.
func cudaCase(id string, maps func(w *cudagroup.Worker) map[string]agent.DeviceMap, s func(w *cudaWorker)) cudagroup.Case {
	return cudagroup.Case{ID: id, Run: func(g *cudagroup.Worker) {
		graph := dist.New(dist.Options{Engine: g.Engine})
		g.Live(func(c *agent.Config) {
			c.Funcs, c.DeviceMaps = cudaFunctions(), maps(g)
			c.Extensions = []agent.Extension{rref.New(rref.Options{Methods: cudaMethods()}), graph}
		}, func(a *agent.Agent) {
			ctx := autograd.WithEngine(g.Context(), g.Engine)
			s(&cudaWorker{&worker{Agent: a, graph: graph, ctx: ctx, rank: g.Rank, last: g.Rank}, g, map[variable][]float32{}})
		})
		require.Equal(g, empty, graph.Metrics())
	}}
}

// withoutMaps returns no device maps.
func withoutMaps(*cudagroup.Worker) map[string]agent.DeviceMap { return nil }

// mapsToNext returns the map that sends tensors on the GPU with the rank of w to the worker with the next
// rank, on the GPU with that rank.
func mapsToNext(w *cudagroup.Worker) map[string]agent.DeviceMap {
	return map[string]agent.DeviceMap{w.Next(1): cudagroup.Map(map[int]int{w.Rank: (w.Rank + 1) % w.World})}
}

// own returns the GPU whose index is the rank of w.
func (w *cudaWorker) own() device.Device { return cudagroup.GPU(w.rank) }

// requireIPC requires that tensors go over the channel cuda_ipc to the worker of that rank, from the GPU
// local to the one whose index is the rank.
func (w *cudaWorker) requireIPC(local, rank int) {
	w.group.RequireChannel(cudaipc.IPCName, w.group.Next(rank-w.rank+parityWorld), cudagroup.GPU(local), cudagroup.GPU(rank))
}

// leaf returns a leaf on d that requires a gradient, whose elements are scale times a random number from
// next.
func (w *cudaWorker) leaf(d device.Device, next func(*rand.Rand) float32, shape ...int) variable {
	t, data := w.tensorAndData(d, next, shape...)
	x, err := autograd.Parameter(t)
	require.NoError(w.group, err)
	w.made[x] = data
	return x
}

// tensor returns a tensor on d whose elements are random numbers from next.
func (w *cudaWorker) tensor(d device.Device, next func(*rand.Rand) float32, shape ...int) *tensor.Tensor {
	x, _ := w.tensorAndData(d, next, shape...)
	return x
}

// tensorAndData returns a tensor as tensor does, and its elements.
func (w *cudaWorker) tensorAndData(d device.Device, next func(*rand.Rand) float32, shape ...int) (*tensor.Tensor, []float32) {
	n, err := tensor.NumElements(shape)
	require.NoError(w.group, err)
	data, random := make([]float32, n), rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	for i := range data {
		data[i] = next(random)
	}
	x, err := tensor.FromSlice(slices.Clone(data), shape...)
	require.NoError(w.group, err)
	x, err = w.group.To(w.ctx, x, d)
	require.NoError(w.group, err)
	require.Equal(w.group, d, x.Device())
	return x, data
}

// uniform returns a random number in [0, 1).
func uniform(r *rand.Rand) float32 { return r.Float32() }

// normal returns a random number of the standard normal distribution.
func normal(r *rand.Rand) float32 { return float32(r.NormFloat64()) }

// to returns x on d.
func (w *cudaWorker) to(ctx context.Context, x variable, d device.Device) variable {
	gpu := d
	if d == device.CPU() {
		gpu = x.Value().Device()
	}
	var y variable
	w.group.TakePageLocked(ctx, gpu, 4*x.Tensor().Len(), func() {
		var err error
		y, err = autograd.To(ctx, x, d)
		require.NoError(w.group, err)
	})
	require.Equal(w.group, d, y.Value().Device())
	return y
}

// add returns the sum of x and y, which is on the GPU d.
func (w *cudaWorker) add(ctx context.Context, x, y variable, d device.Device) variable {
	z, err := autograd.Add(ctx, x, y)
	require.NoError(w.group, err)
	require.Equal(w.group, d, z.Value().Device())
	return z
}

// floats returns the elements of v, which is float32, as the host sees them after the work of its device.
func (w *cudaWorker) floats(v autograd.Value) []float32 {
	require.NotNil(w.group, v.Tensor())
	x, err := cudagroup.Ordered(w.ctx, v.Tensor())
	require.NoError(w.group, err)
	data, err := tensor.Data[float32](w.group.Host(x))
	require.NoError(w.group, err)
	return data
}

// requireSame requires that both are on the device d, with the same shape, and that their elements differ by
// rounding at most.
func (w *cudaWorker) requireSame(want, got autograd.Value, d device.Device) {
	require.Equal(w.group, []device.Device{d, d}, []device.Device{want.Device(), got.Device()})
	require.Equal(w.group, want.Shape(), got.Shape())
	w.requireClose(w.floats(want), w.floats(got))
}

// requireClose requires that elements differ by rounding at most.
func (w *cudaWorker) requireClose(want, got []float32) {
	for i, x := range want {
		if diff := x - got[i]; !(max(diff, -diff) <= 1e-5+1.3e-6*max(x, -x)) { // also if one is NaN
			require.Equal(w.group, x, got[i], "%s: element %d of %d", drops.WrongBytes, i, len(want))
		}
	}
}

// requireSum requires that x is the sum of the leaves all, on the device d: the gradients of sums do not depend on their
// elements.
func (w *cudaWorker) requireSum(x variable, d device.Device, all ...variable) {
	require.Equal(w.group, d, x.Value().Device())
	want := make([]float32, x.Tensor().Len())
	for _, leaf := range all {
		for i, v := range w.made[leaf] {
			want[i] += v
		}
	}
	w.requireClose(want, w.floats(x.Value()))
}

// gradient returns the gradient of the leaf x in c, which is on the device of x.
func (w *cudaWorker) gradient(c *dist.Context, x variable) autograd.Value {
	g, err := c.Gradient(x)
	require.NoError(w.group, err)
	require.Equal(w.group, x.Value().Device(), g.Device())
	return g
}
