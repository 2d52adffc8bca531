package dist_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/cudagroup"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// While both workers hold back the work of all their streams, a forward and a backward pass through the other worker
// complete, and no call of the driver waits. After the release the gradients have the right bytes.
func TestHostNeverWaitsInPasses(t *testing.T) {
	maps := func(w *cudagroup.Worker) map[string]agent.DeviceMap {
		return map[string]agent.DeviceMap{w.Next(1): cudagroup.Map(map[int]int{0: 1, 1: 0})}
	}
	cudagroup.Run(t, 2, cudaCase("passes", maps, func(w *cudaWorker) {
		w.passes(func(f func()) { f() }, func(*tensor.Tensor) {}) // opens the memory of the other worker
		w.passes(w.group.WhileHeld, w.group.RequireQueued)
		w.group.RequireChannel("cuda_ipc", w.group.Next(1), cudagroup.GPU(0), cudagroup.GPU(1))
	}))
}

// passes requires the gradients of the sum of a product that the other worker computes. around calls its argument, which
// does both passes, and check is called then with the product and the gradients.
func (w *cudaWorker) passes(around func(f func()), check func(x *tensor.Tensor)) {
	gpu := cudagroup.GPU(0)
	x, y := w.leaf(gpu, uniform, 1<<10), w.leaf(gpu, uniform, 1<<10)
	w.inContext(w.group, func(ctx context.Context, c *dist.Context) {
		around(func() {
			z := exec(w.group, ctx, w.worker, rpcSync, agent.To(w.group.Next(1)), mulStep(x, y))
			require.NoError(w.group, c.Backward(ctx, sum(w.group, ctx, z)))
			check(z.Tensor())
			check(w.gradient(c, x).Tensor())
			check(w.gradient(c, y).Tensor())
		})
		w.requireClose(w.made[y], w.floats(w.gradient(c, x)))
		w.requireClose(w.made[x], w.floats(w.gradient(c, y)))
	})
}
