package dist_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/cudagroup"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// steps has the other worker keep two parameters on the device d, whose steps an optimizer does by the
// gradients of three passes, and returns the parameters then.
func (w *cudaWorker) steps(a dist.Algorithm, d device.Device) (all [][]float32) {
	t, shape := w.group, []int{2, 3}
	var refs []*rref.Ref[variable]
	for _, value := range []float32{1, 2} {
		x := parameter(value, shape...)
		f := rref.Remote(w.ctx, w.Agent, w.at(1), moved, movedArgs{x, d.Index, d.Kind != device.KindCPU})
		refs = append(refs, f)
	}
	optimizer := dist.NewOptimizer(refs, a)
	for step := range 3 {
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			y := w.to(ctx, constant(float32(step+1), shape...), cudagroup.GPU(0))
			if d.Kind == device.KindCPU {
				y = constant(float32(step+1), shape...)
			}
			for _, f := range refs {
				var err error
				y, err = mulMethod.Call(ctx, f, y)
				require.NoError(t, err)
			}
			require.NoError(t, c.Backward(ctx, sum(t, ctx, y)))
			require.NoError(t, optimizer.Step(ctx))
		})
	}
	require.NoError(t, optimizer.Release(w.ctx))
	for _, f := range refs {
		x, err := f.ToHere(w.ctx)
		require.NoError(t, err)
		all = append(all, w.floats(x.Value()))
		require.NoError(t, f.Release(w.ctx))
	}
	return all
}

// movedArgs are a Variable on the host, and the GPU to which it is moved if OnGPU is set.
type movedArgs struct {
	Value variable
	Index int
	OnGPU bool
}

var moved = agent.NewFunc[movedArgs, variable]("test.moved")

func move(ctx context.Context, args movedArgs) (variable, error) {
	if !args.OnGPU {
		return args.Value, nil
	}
	x, err := autograd.EngineOf(ctx).To(ctx, args.Value.Tensor(), cudagroup.GPU(args.Index))
	if err != nil {
		return nil, err
	}
	return autograd.Parameter(x)
}

// optimizers requires that optimizers change parameters on a GPU as on the host.
func optimizers(w *cudaWorker) {
	if w.rank != 0 {
		return
	}
	for _, a := range []dist.Algorithm{
		dist.SGD{LR: 0.1}, dist.SGD{LR: 0.1, Momentum: 0.5, WeightDecay: 0.25}, dist.Adam{LR: 0.1, WeightDecay: 0.25}, dist.Adagrad{LR: 0.1},
	} {
		want, got := w.steps(a, device.CPU()), w.steps(a, cudagroup.GPU(1))
		for i := range want {
			require.NotEqual(w.group, slices.Repeat([]float32{float32(i + 1)}, len(want[i])), want[i], "no step")
			require.InDeltaSlice(w.group, want[i], got[i], 1e-5, "%T", a)
		}
	}
}

// mixedDevices sends tensors of a GPU and of the host to the host of the other worker. The gradients of both
// come back by the inverse of the map, to the GPU; that of the host's tensor is then moved.
func mixedDevices(w *cudaWorker) {
	if w.rank != 0 {
		return
	}
	x, y := w.leaf(cudagroup.GPU(0), uniform, 4), w.leaf(device.CPU(), uniform, 4)
	w.inContext(w.group, func(ctx context.Context, c *dist.Context) {
		z, err := mul.Call(ctx, w.Agent, w.at(1), pair{x, y})
		require.NoError(w.group, err)
		require.Equal(w.group, cudagroup.GPU(0), z.Value().Device())
		require.NoError(w.group, c.Backward(ctx, sum(w.group, ctx, z)))
		require.Equal(w.group, w.floats(y.Value()), w.floats(w.gradient(c, x)))
		require.Equal(w.group, w.floats(x.Value()), w.floats(w.gradient(c, y)))
	})
}

// TestCuda has cases of two processes with GPUs.
func TestCuda(t *testing.T) {
	toGPU := func(to device.Device) func(*cudagroup.Worker) map[string]agent.DeviceMap {
		return func(w *cudagroup.Worker) map[string]agent.DeviceMap {
			if w.Rank != 0 {
				return nil
			}
			return map[string]agent.DeviceMap{w.Next(1): {cudagroup.GPU(0): to}}
		}
	}
	cudagroup.Run(t, 2,
		cudaCase("optimizers", toGPU(cudagroup.GPU(1)), optimizers),
		cudaCase("mixed devices", toGPU(device.CPU()), mixedDevices),
	)
}
