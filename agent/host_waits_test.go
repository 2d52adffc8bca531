package agent_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/cudagroup"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// While both workers hold back the work of all their streams, calls, replies, replies by futures and callbacks complete,
// and no call of the driver waits. After the release each result has the right bytes, although the arguments were
// changed after the calls.
func TestHostNeverWaitsInCalls(t *testing.T) {
	cudagroup.Run(t, 2, cudagroup.Case{ID: "calls", Run: func(w *cudagroup.Worker) {
		w.Live(func(c *agent.Config) {
			c.Funcs = heldFuncs(w)
			require.NoError(w, c.SetDeviceMap(w.Next(1), cudagroup.Map(map[int]int{0: 1, 1: 0})))
		}, func(a *agent.Agent) {
			requireHeldResults(w, callHeldFuncs(w, a)) // opens the memory of the other worker
			var results []*tensor.Tensor
			w.WhileHeld(func() {
				results = callHeldFuncs(w, a)
				for _, x := range results {
					w.RequireQueued(x)
				}
			})
			requireHeldResults(w, results)
			w.RequireChannel("cuda_ipc", w.Next(1), cudagroup.GPU(0), cudagroup.GPU(1))
		})
	}})
}

func heldFuncs(w *cudagroup.Worker) agent.Funcs {
	return agent.Funcs{
		slowAddOnUserStream.Serve(func(ctx context.Context, p twoTensors) (*tensor.Tensor, error) {
			return slowAdd(ctx, w, p.X, p.Y)
		}),
		asyncCudaSleepAndSetToOne.ServeAsync(func(ctx context.Context, x *tensor.Tensor) *agent.Future[*tensor.Tensor] {
			return sleepAndSetToOne(ctx, w, x)
		}),
		asyncCudaNestedAdd.ServeAsync(func(ctx context.Context, p nestedSlowAdd) *agent.Future[*tensor.Tensor] {
			return asyncNestedAdd(ctx, w, p)
		}),
	}
}

// heldLen is the number of elements of the tensors in TestHostNeverWaitsInCalls.
const heldLen = 1 << 12

// callHeldFuncs calls each of heldFuncs at the other worker, which calls this one from asyncCudaNestedAdd, and waits for
// the results, one of which a callback computes. Then it changes the arguments.
func callHeldFuncs(w *cudagroup.Worker, a *agent.Agent) []*tensor.Tensor {
	ctx, to := w.Context(), agent.To(w.Next(1))
	full := func(v float64) *tensor.Tensor { return w.Full(v, cudagroup.GPU(0), heldLen) }
	zero, one, two, three := full(0), full(1), full(2), full(3)

	called, err := slowAddOnUserStream.Call(ctx, a, to, twoTensors{one, two})
	require.NoError(w, err)
	async := asyncCudaSleepAndSetToOne.Go(ctx, a, to, zero)
	nested := asyncCudaNestedAdd.Go(ctx, a, to, nestedSlowAdd{agent.To(w.Name()), one, two, three})
	callback := future.ThenOn(slowAddOnUserStream.Go(ctx, a, to, twoTensors{two, two}),
		func(ctx context.Context, f *agent.Future[*tensor.Tensor]) (*tensor.Tensor, error) {
			sum, err := f.Result()
			if err != nil {
				return nil, err
			}
			if sum, err = cudagroup.Current(ctx, sum); err != nil {
				return nil, err
			}
			return w.Engine.Add(ctx, sum, three, ops.Int(1))
		})
	results := []*tensor.Tensor{called}
	for _, f := range []*agent.Future[*tensor.Tensor]{async, nested, callback} {
		x, err := f.Wait(ctx)
		require.NoError(w, err)
		results = append(results, x)
	}
	for _, x := range []*tensor.Tensor{zero, one, two, three} {
		require.NoError(w, w.Engine.FillInPlace(ctx, x, ops.Int(99)))
	}
	return results
}

// requireHeldResults requires the bytes of the results of callHeldFuncs.
func requireHeldResults(w *cudagroup.Worker, results []*tensor.Tensor) {
	for i, want := range []float64{3, 1, 6, 7} {
		w.RequireFull(results[i], want, cudagroup.GPU(0), heldLen)
	}
}
