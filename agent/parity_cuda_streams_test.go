package agent_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/cudagroup"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

type nestedSlowAdd struct {
	To      agent.To
	X, Y, Z *tensor.Tensor
}

// The functions of PyTorch's tests of streams, by their names there.
var (
	slowAddOnUserStream       = agent.NewFunc[twoTensors, *tensor.Tensor]("_slow_add_on_user_stream")
	nestedSlowAddOnUserStream = agent.NewFunc[nestedSlowAdd, *tensor.Tensor]("_nested_slow_add_on_user_stream")
	returnTensorView          = agent.NewFunc[int, *tensor.Tensor]("_return_tensor_view")
)

// slowAdd adds x and y after a long kernel on a stream of its own, which waits for the current stream of ctx, and lets
// that one wait for the sum. It treats tensors as PyTorch does, where they have no stream: only the current stream is
// ordered before and after.
func slowAdd(ctx context.Context, w *cudagroup.Worker, x, y *tensor.Tensor) (*tensor.Tensor, error) {
	current := device.StreamFrom(ctx, x.Device())
	own, err := w.Kind.NewStream(x.Device())
	if err != nil {
		return nil, err
	}
	if err := own.WaitFor(current); err != nil {
		return nil, err
	}
	inner := device.WithStream(ctx, own)
	operands := make([]*tensor.Tensor, 2)
	for i, t := range []*tensor.Tensor{x, y} {
		if operands[i], err = cudagroup.Current(inner, t); err != nil {
			return nil, err
		}
	}
	if err := w.Sleep(inner, x.Device()); err != nil {
		return nil, err
	}
	sum, err := w.Engine.Add(inner, operands[0], operands[1], ops.Int(1))
	if err != nil {
		return nil, err
	}
	if err := current.WaitFor(own); err != nil {
		return nil, err
	}
	b, err := sum.Buffer()
	if err != nil {
		return nil, err
	}
	if err := w.Kind.RecordStream(b, current.(*cudaipc.Stream)); err != nil {
		return nil, err
	}
	return cudagroup.WithoutStream(sum)
}

// withStreams joins the worker with the functions of the tests of streams and a map for the next worker, and runs f.
func withStreams(w *cudagroup.Worker, pairs map[int]int, f func(a *agent.Agent, to agent.To)) {
	w.Live(func(c *agent.Config) {
		c.Funcs = agent.Funcs{
			slowAddOnUserStream.Serve(func(ctx context.Context, p twoTensors) (*tensor.Tensor, error) {
				return slowAdd(ctx, w, p.X, p.Y)
			}),
			nestedSlowAddOnUserStream.Serve(func(ctx context.Context, p nestedSlowAdd) (*tensor.Tensor, error) {
				sum, err := slowAddOnUserStream.Call(ctx, agent.FromContext(ctx), p.To, twoTensors{p.X, p.Y})
				if err != nil {
					return nil, err
				}
				return slowAdd(ctx, w, sum, p.Z)
			}),
			returnTensorView.Serve(func(ctx context.Context, i int) (*tensor.Tensor, error) { return tensorView(ctx, w, i) }),
		}
		require.NoError(w, c.SetDeviceMap(w.Next(1), cudagroup.Map(pairs)))
	}, func(a *agent.Agent) {
		f(a, agent.To(w.Next(1)))
		w.RequireRoutes(w.Next(1), cudagroup.Map(pairs))
	})
}

// tensorView returns a part of a tensor of numbers i, which is computed by a long kernel.
func tensorView(ctx context.Context, w *cudagroup.Worker, i int) (*tensor.Tensor, error) {
	gpu, e := cudagroup.GPU(0), w.Engine
	x, err := e.Ones(ctx, tensor.F32, 1000, 200)
	if err != nil {
		return nil, err
	}
	if x, err = e.To(ctx, x, gpu); err != nil {
		return nil, err
	}
	if err := w.Sleep(ctx, gpu); err != nil {
		return nil, err
	}
	if x, err = e.MulNumber(ctx, x, ops.Int(int64(i))); err != nil {
		return nil, err
	}
	parts, err := e.Split(ctx, x, 100, 0)
	if err != nil {
		return nil, err
	}
	return parts[0], nil
}

func oneCall(w *cudagroup.Worker) {
	withStreams(w, map[int]int{0: 1}, func(a *agent.Agent, to agent.To) {
		x := w.Full(1, cudagroup.GPU(0), 2, 2)
		sum, err := slowAddOnUserStream.Call(w.Context(), a, to, twoTensors{x, x})
		require.NoError(w, err)
		w.RequireFull(sum, 2, cudagroup.GPU(0), 2, 2)
	})
}

func manyCalls(w *cudagroup.Worker) {
	withStreams(w, map[int]int{0: 1}, func(a *agent.Agent, to agent.To) {
		var calls []*agent.Future[*tensor.Tensor]
		for i := range 20 {
			x := w.Full(float64(i), cudagroup.GPU(0), 2, 2)
			calls = append(calls, slowAddOnUserStream.Go(w.Context(), a, to, twoTensors{x, x}))
		}
		for i, f := range calls {
			sum, err := f.Wait(w.Context())
			require.NoError(w, err)
			w.RequireFull(sum, float64(2*i), cudagroup.GPU(0), 2, 2)
		}
	})
}

// nestedArguments are tensors for nestedSlowAddOnUserStream, of the numbers x, y and z.
func nestedArguments(w *cudagroup.Worker, x, y, z float64) nestedSlowAdd {
	gpu := cudagroup.GPU(0)
	return nestedSlowAdd{agent.To(w.Next(2)), w.Full(x, gpu, 2, 2), w.Full(y, gpu, 2, 2), w.Full(z, gpu, 2, 2)}
}

func nestedCall(w *cudagroup.Worker) {
	withStreams(w, map[int]int{0: 1, 1: 0}, func(a *agent.Agent, to agent.To) {
		sum, err := nestedSlowAddOnUserStream.Call(w.Context(), a, to, nestedArguments(w, 1, 2, 3))
		require.NoError(w, err)
		w.RequireFull(sum, 6, cudagroup.GPU(0), 2, 2)
	})
}

func nestedCalls(w *cudagroup.Worker) {
	const n = 5
	withStreams(w, map[int]int{0: 1, 1: 0}, func(a *agent.Agent, to agent.To) {
		var calls []*agent.Future[*tensor.Tensor]
		for i := range n {
			calls = append(calls, nestedSlowAddOnUserStream.Go(w.Context(), a, to, nestedArguments(w, float64(i-1), float64(i), float64(i+1))))
		}
		for i, f := range calls {
			sum, err := f.Wait(w.Context())
			require.NoError(w, err)
			w.RequireFull(sum, float64(3*i), cudagroup.GPU(0), 2, 2)
		}
	})
}

func tensorViews(w *cudagroup.Worker) {
	const n = 5
	withStreams(w, map[int]int{0: 0}, func(a *agent.Agent, to agent.To) {
		var calls []*agent.Future[*tensor.Tensor]
		for i := range n {
			calls = append(calls, returnTensorView.Go(w.Context(), a, to, i))
		}
		for i, f := range calls {
			x, err := f.Wait(w.Context())
			require.NoError(w, err)
			w.RequireFull(x, float64(i), cudagroup.GPU(0), 100, 200)
		}
	})
}

func TestParityCudaStreams(t *testing.T) {
	const test = "rpc/TensorPipeAgentCudaRpcTest.test_"
	cudagroup.Run(t, world,
		cudagroup.Case{ID: test + "custom_stream", Run: oneCall},
		cudagroup.Case{ID: test + "custom_stream_multi", Run: manyCalls},
		cudagroup.Case{ID: test + "custom_stream_nested", Run: nestedCall},
		cudagroup.Case{ID: test + "custom_stream_nested_multi", Run: nestedCalls},
		cudagroup.Case{ID: test + "tensor_view_as_return_value", Run: tensorViews},
	)
}
