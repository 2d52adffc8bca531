package agent_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/cudagroup"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// The functions of PyTorch's tests that return futures, by their names there.
var (
	asyncCudaSleepAndSetToOne = agent.NewFunc[*tensor.Tensor, *tensor.Tensor]("async_cuda_sleep_and_set_to_one")
	asyncCudaNestedAdd        = agent.NewFunc[nestedSlowAdd, *tensor.Tensor]("async_cuda_nested_add")
)

// sleepAndSetToOne returns a future of x, which a stream of its own sets to 1 after a long kernel.
func sleepAndSetToOne(ctx context.Context, w *cudagroup.Worker, x *tensor.Tensor) *agent.Future[*tensor.Tensor] {
	own, err := w.Kind.NewStream(x.Device())
	if err != nil {
		return future.Failed[*tensor.Tensor](err)
	}
	if err := own.WaitFor(device.StreamFrom(ctx, x.Device())); err != nil {
		return future.Failed[*tensor.Tensor](err)
	}
	inner := device.WithStream(ctx, own)
	if err := setTo(inner, w, x, 1); err != nil {
		return future.Failed[*tensor.Tensor](err)
	}
	f, err := agent.NewFuture[*tensor.Tensor](agent.FromContext(ctx), x.Device())
	if err == nil {
		err = f.SetFrom(inner, x)
	}
	if err != nil {
		return future.Failed[*tensor.Tensor](err)
	}
	return f
}

// asyncNestedAdd returns a future of the sum of X, Y and Z of p: another worker adds X and Y, and a callback adds Z after
// a long kernel.
func asyncNestedAdd(ctx context.Context, w *cudagroup.Worker, p nestedSlowAdd) *agent.Future[*tensor.Tensor] {
	f := agent.FromContext(ctx).OpAsync(ctx, p.To, "aten::add", p.X, p.Y)
	return future.ThenOn(f, func(ctx context.Context, f *agent.Future[[]any]) (*tensor.Tensor, error) {
		sum, err := agent.One[*tensor.Tensor](f.Result())
		if err != nil {
			return nil, err
		}
		if sum, err = cudagroup.Current(ctx, sum); err != nil {
			return nil, err
		}
		if err := w.Sleep(ctx, sum.Device()); err != nil {
			return nil, err
		}
		if sum, err = w.Engine.Add(ctx, sum, p.Z, ops.Int(1)); err != nil {
			return nil, err
		}
		return sum, nil
	})
}

// withAsync joins the worker with both functions and a map of cuda:0 for the next worker. call returns the future of a
// call of that one, whose result must be a tensor of numbers want on a stream that waits for nothing but the future.
func withAsync(call func(w *cudagroup.Worker, a *agent.Agent, to agent.To) *agent.Future[*tensor.Tensor], want float64) func(w *cudagroup.Worker) {
	return func(w *cudagroup.Worker) {
		m := cudagroup.Map(map[int]int{0: 0})
		w.Live(func(c *agent.Config) {
			c.Funcs = agent.Funcs{
				asyncCudaSleepAndSetToOne.ServeAsync(func(ctx context.Context, x *tensor.Tensor) *agent.Future[*tensor.Tensor] {
					return sleepAndSetToOne(ctx, w, x)
				}),
				asyncCudaNestedAdd.ServeAsync(func(ctx context.Context, p nestedSlowAdd) *agent.Future[*tensor.Tensor] {
					return asyncNestedAdd(ctx, w, p)
				}),
			}
			require.NoError(w, c.SetDeviceMap(w.Next(1), m))
		}, func(a *agent.Agent) {
			f := call(w, a, agent.To(w.Next(1)))
			another := onNewStream(w, cudagroup.GPU(0))
			x, err := f.Wait(another)
			require.NoError(w, err)
			require.Equal(w, cudagroup.GPU(0), x.Device())
			requireFullOn(another, w, x, want)
			w.RequireRoutes(w.Next(1), m)
		})
	}
}

func TestParityCudaAsync(t *testing.T) {
	const test = "rpc/TensorPipeAgentCudaRpcTest.test_async_execution_"
	cudagroup.Run(t, world,
		cudagroup.Case{ID: test + "with_cuda_future", Run: withAsync(func(w *cudagroup.Worker, a *agent.Agent, to agent.To) *agent.Future[*tensor.Tensor] {
			return asyncCudaSleepAndSetToOne.Go(w.Context(), a, to, w.Full(0, cudagroup.GPU(0), 100))
		}, 1)},
		cudagroup.Case{ID: test + "nested_with_cuda_future", Run: withAsync(func(w *cudagroup.Worker, a *agent.Agent, to agent.To) *agent.Future[*tensor.Tensor] {
			one := func() *tensor.Tensor { return w.Full(1, cudagroup.GPU(0), 100) }
			return asyncCudaNestedAdd.Go(w.Context(), a, to, nestedSlowAdd{agent.To(w.Next(2)), one(), one(), one()})
		}, 3)},
		cudagroup.Case{ID: "rpc/TensorPipeAgentRpcTest.test_dynamic_rpc_existing_rank_can_communicate_with_new_rank_cuda", Run: dynamicGroup},
	)
}

// dynamicGroup has the first worker join a dynamic group with maps for those that join later, and then call them.
func dynamicGroup(w *cudagroup.Worker) {
	each := []map[int]int{{1: 0}, {0: 1}}
	configure := func(c *agent.Config) {
		c.WorldSize = 0
		for rank := 1; rank < w.World && w.Rank == 0; rank++ {
			for _, m := range each {
				require.NoError(w, c.SetDeviceMap(w.Next(rank), cudagroup.Map(m)))
			}
		}
	}
	if w.Rank != 0 {
		w.Barrier()
	}
	w.Live(configure, func(a *agent.Agent) {
		if w.Rank == 0 {
			w.Barrier()
		}
		w.Barrier() // all have joined
		for rank := 1; rank < w.World && w.Rank == 0; rank++ {
			for i := range 2 {
				sum, err := agent.One[*tensor.Tensor](a.Op(w.Context(), agent.To(w.Next(rank)), "aten::add", w.Full(1, cudagroup.GPU(i), 2), 1))
				require.NoError(w, err)
				w.RequireFull(sum, 2, cudagroup.GPU(i), 2)
			}
			w.RequireRoutes(w.Next(rank), cudagroup.Map(map[int]int{0: 1, 1: 0}))
		}
		w.Barrier()
	})
}
