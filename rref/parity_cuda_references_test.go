package rref_test

import (
	"context"
	"regexp"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/cudagroup"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// tensorWrapper is a class of PyTorch's tests: a tensor, and fields that no message can contain.
type tensorWrapper struct {
	worker *cudagroup.Worker
	mu     sync.Mutex
	tensor *tensor.Tensor
	event  device.Event
}

var (
	newTensorWrapper = agent.NewFunc[*tensor.Tensor, *tensorWrapper]("TensorWrapper")
	increase         = rref.NewMethod[*tensorWrapper, float64, agent.None]("increase")
	sumOfWrapper     = rref.NewMethod[*tensorWrapper, agent.None, *tensor.Tensor]("sum")
	addToGPU         = agent.NewFunc[addend, *tensor.Tensor]("_add_to_gpu")
)

// addend are the arguments of addToGPU.
type addend struct {
	X *tensor.Tensor
	Y int64
}

func (t *tensorWrapper) increase(ctx context.Context, v float64) (none agent.None, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return none, t.worker.Engine.AddNumberInPlace(ctx, t.tensor, ops.Float(v), ops.Int(1))
}

func (t *tensorWrapper) sum(ctx context.Context, _ agent.None) (*tensor.Tensor, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, err := device.StreamFrom(ctx, t.tensor.Device()).Record()
	if err != nil {
		return nil, err
	}
	t.event.Release()
	t.event = e
	return t.worker.Engine.Sum(ctx, t.tensor, nil, false, tensor.F32)
}

// cudaFuncs returns the functions of the cases of this file, and cudaMethods the methods.
func cudaFuncs(w *cudagroup.Worker) agent.Funcs {
	return append(agent.Funcs{
		newTensorWrapper.Serve(func(ctx context.Context, x *tensor.Tensor) (*tensorWrapper, error) {
			e, err := device.StreamFrom(ctx, x.Device()).Record()
			return &tensorWrapper{worker: w, tensor: x, event: e}, err
		}),
		addToGPU.Serve(func(ctx context.Context, p addend) (*tensor.Tensor, error) {
			x, err := w.Engine.AddNumber(ctx, p.X, ops.Int(p.Y), ops.Int(1))
			if err != nil {
				return nil, err
			}
			return w.To(ctx, x, cudagroup.GPU(0))
		}),
	}, linearFuncs(w)...)
}

func cudaMethods(*cudagroup.Worker) rref.Methods {
	return append(rref.Methods{
		increase.Serve((*tensorWrapper).increase),
		sumOfWrapper.Serve((*tensorWrapper).sum),
	}, linearMethods()...)
}

// requireText requires that the regular expression of a test of PyTorch matches the text of err in PyTorch's words.
func requireText(t require.TestingT, pattern string, err error) {
	require.Error(t, err)
	require.Regexp(t, regexp.MustCompile("(?s)"+pattern), torch.Error(err))
}

// requireWorks requires that calls with tensors in host memory work.
func requireWorks(m cudaMember) {
	sum, err := agent.One[*tensor.Tensor](m.agent.Op(m.Context(), agent.To(m.Next(1)), "aten::add", m.Full(1, device.CPU(), 2), 1))
	require.NoError(m, err)
	m.RequireFull(sum, 2, device.CPU(), 2)
}

// missingMap makes a value from a tensor on a GPU, for which there is no map.
func missingMap(w *cudagroup.Worker) {
	withModels(w, func(*agent.Config) {}, func(m cudaMember) {
		f := rref.RemoteOp[*tensor.Tensor](m.Context(), m.agent, agent.To(m.Next(1)), "aten::add", m.Full(0, cudagroup.GPU(0), 2), 1)
		_, err := f.ToHere(m.Context())
		requireText(m, "TensorPipe RPC backend only supports CPU tensors by default.*`set_device_map` on `TensorPipeRpcBackendOptions`", err)
		requireWorks(m)
	})
}

// missingReplyMap fetches a value on a GPU, for which there is no map.
func missingReplyMap(w *cudagroup.Worker) {
	withModels(w, func(*agent.Config) {}, func(m cudaMember) {
		f := rref.Remote(m.Context(), m.agent, agent.To(m.Next(1)), addToGPU, addend{m.Full(0, device.CPU(), 2), 1})
		_, err := f.ToHere(m.Context())
		requireText(m, "Response device mapping is not available", err)
		requireWorks(m)
	})
}

// mappedReference fetches a value on a GPU to another one.
func mappedReference(w *cudagroup.Worker) {
	withModels(w, func(c *agent.Config) { setMap(w, c, w.Next(1), 1, 0) }, func(m cudaMember) {
		f := rref.Remote(m.Context(), m.agent, agent.To(m.Next(1)), addToGPU, addend{m.Full(0, device.CPU(), 2), 1})
		for range 2 {
			x, err := f.ToHere(m.Context())
			require.NoError(m, err)
			m.RequireFull(x, 1, cudagroup.GPU(1), 2)
		}
		m.RequireRoutes(m.Next(1), cudagroup.Map(map[int]int{1: 0}))
	})
}

// unsendableFields calls methods of a value that cannot be sent.
func unsendableFields(w *cudagroup.Worker) {
	withModels(w, func(c *agent.Config) { setMap(w, c, w.Next(1), 0, 0) }, func(m cudaMember) {
		f := rref.Remote(m.Context(), m.agent, agent.To(m.Next(1)), newTensorWrapper, m.Full(0, cudagroup.GPU(0), 42))
		_, err := increase.Call(m.Context(), f, 1)
		require.NoError(m, err)
		sum, err := sumOfWrapper.Call(m.Context(), f, agent.None{})
		require.NoError(m, err)
		m.RequireFull(sum, 42, cudagroup.GPU(0))
		m.RequireRoutes(m.Next(1), cudagroup.Map(map[int]int{0: 0}))
	})
}

func TestParityCudaReferences(t *testing.T) {
	const test = "rpc/TensorPipeAgentCudaRpcTest.test_"
	cudagroup.Run(t, parityWorld,
		cudagroup.Case{ID: test + "device_maps_missing_config_remote", Run: missingMap},
		cudagroup.Case{ID: test + "device_maps_missing_config_remote_response", Run: missingReplyMap},
		cudagroup.Case{ID: test + "device_maps_remote", Run: mappedReference},
		cudagroup.Case{ID: test + "rref_with_unpickleable_attributes", Run: unsendableFields},
	)
}
