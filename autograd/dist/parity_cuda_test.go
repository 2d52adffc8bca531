package dist_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/cudagroup"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
)

// gpuSimple requires that the gradients of a sum on a GPU in a Context are those of a local pass.
func gpuSimple(w *cudaWorker) {
	gpu := cudagroup.GPU(0)
	t1, t2 := w.leaf(gpu, uniform, 3, 3), w.leaf(gpu, uniform, 3, 3)
	loss := sum(w.group, w.ctx, w.add(w.ctx, t1, t2, gpu))
	require.NoError(w.group, autograd.Backward(w.ctx, []variable{loss}))
	w.inContext(w.group, func(ctx context.Context, c *dist.Context) {
		t3 := w.add(ctx, t1, t2, gpu)
		require.NoError(w.group, c.Backward(ctx, sum(w.group, ctx, t3)))
		require.Len(w.group, c.Gradients(), 2)
		w.requireSame(t1.Grad(), w.gradient(c, t1), gpu)
		w.requireSame(t2.Grad(), w.gradient(c, t2), gpu)
		w.requireSum(t3, gpu, t1, t2)
	})
}

// gpuToCPU computes on the CPU, here and on other workers, from results of the GPU, and the other way
// around. The root is on the GPU if onGPU is set. The gradients must be those of a local pass.
func gpuToCPU(onGPU bool) func(w *cudaWorker) {
	return func(w *cudaWorker) {
		t, gpu, cpu := w.group, cudagroup.GPU(0), device.CPU()
		t1, t2 := w.leaf(gpu, uniform, 3, 3), w.leaf(cpu, uniform, 3, 3)
		for range drops.Pick(3, 1) {
			t1.ZeroGrad()
			t2.ZeroGrad()
			for _, m := range []mode{local, rpcSync} {
				w.inContext(t, func(ctx context.Context, c *dist.Context) {
					t3 := exec(t, ctx, w.worker, m, w.next(), addStep(t2, t2))
					t4 := w.add(ctx, w.to(ctx, t3, gpu), t1, gpu)
					t5 := exec(t, ctx, w.worker, m, w.next(), addStep(w.to(ctx, t4, cpu), t2))
					root := w.add(ctx, w.to(ctx, t5, gpu), t4, gpu)
					last := root
					if !onGPU {
						root = exec(t, ctx, w.worker, m, w.next(), addStep(w.to(ctx, root, cpu), t5))
						require.Equal(t, cpu, root.Value().Device())
					}
					loss := sum(t, ctx, root)
					if m == local {
						require.NoError(t, autograd.Backward(ctx, []variable{loss}))
						w.requireSum(last, gpu, t2, t2, t1, t2, t2, t2, t1)
						return
					}
					t.TakePageLocked(ctx, gpu, 4*t1.Tensor().Len(), func() { require.NoError(t, c.Backward(ctx, loss)) })
					require.Len(t, c.Gradients(), 2)
					w.requireSame(t1.Grad(), w.gradient(c, t1), gpu)
					w.requireSame(t2.Grad(), w.gradient(c, t2), cpu)
					w.requireSum(last, gpu, t2, t2, t1, t2, t2, t2, t1)
				})
			}
		}
	}
}

// deviceMapsBackward adds two tensors of a GPU on another worker, on another GPU. Their gradients come back
// to theirs, by the inverse of the device map.
func deviceMapsBackward(w *cudaWorker) {
	t1, t2 := w.leaf(w.own(), uniform, 10), w.leaf(w.own(), uniform, 10)
	w.inContext(w.group, func(ctx context.Context, c *dist.Context) {
		res := exec(w.group, ctx, w.worker, rpcSync, w.at(1), addStep(t1, t2))
		require.Equal(w.group, w.own(), res.Value().Device())
		w.requireIPC(w.rank, (w.rank+1)%parityWorld)
		require.NoError(w.group, c.Backward(ctx, sum(w.group, ctx, res)))
		require.Len(w.group, c.Gradients(), 2)
		for _, x := range []variable{t1, t2} {
			g := w.gradient(c, x)
			require.Equal(w.group, w.own(), g.Device())
			require.Equal(w.group, w.floats(constant(1, 10).Value()), w.floats(g), drops.WrongBytes)
		}
		w.requireSum(res, w.own(), t1, t2)
	})
}

// TestParityCuda has the cases with small tensors on GPUs.
func TestParityCuda(t *testing.T) {
	cudagroup.Run(t, parityWorld,
		cudaCase("dist_autograd/CudaDistAutogradTest.test_gpu_simple", withoutMaps, gpuSimple),
		cudaCase("dist_autograd/CudaDistAutogradTest.test_gpu_to_cpu_continuation", withoutMaps, gpuToCPU(false)),
		cudaCase("dist_autograd/CudaDistAutogradTest.test_gpu_to_cpu_continuation_gpu_root", withoutMaps, gpuToCPU(true)),
		cudaCase("dist_autograd/TensorPipeCudaDistAutogradTest.test_device_maps_backward_pass", mapsToNext, deviceMapsBackward),
	)
}
