package rref_test

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/cudagroup"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// The sizes of PyTorch's images: a batch of them has one channel, and square images.
const (
	images    = 200
	imageSize = 28
)

// convNet is the model of PyTorch's tests of synchronization: a convolution of 3x3 pixels to 4 channels, and a linear
// layer to 10 numbers, on one GPU. The further layers of PyTorch's model would take the simulated devices seconds.
type convNet struct {
	worker *cudagroup.Worker
	on     device.Device
	kernel *tensor.Tensor // [9, channels]
	linear *tensor.Tensor // [channels of all pixels, 10]
}

const (
	netChannels = 4
	netSide     = imageSize - 2 // of the images after the convolution
)

// netInput are the input of a convNet, or a reference to it.
type netInput struct {
	X   *tensor.Tensor
	Ref *rref.Ref[*tensor.Tensor]
}

var (
	newConvNet = agent.NewFunc[device.Device, *convNet]("MyConvNetForMNIST")
	forwardNet = rref.NewMethod[*convNet, netInput, *tensor.Tensor]("forward")
	rrefRelay  = agent.NewFunc[*rref.Ref[*tensor.Tensor], *tensor.Tensor]("_rref_relay")
)

// random returns a tensor of random numbers on d, the same for each seed, valid on the current stream of ctx.
func random(ctx context.Context, w *cudagroup.Worker, seed uint64, d device.Device, shape ...int) (*tensor.Tensor, error) {
	x, err := tensor.Zeros(tensor.F32, shape...)
	if err != nil {
		return nil, err
	}
	data, err := tensor.MutableData[float32](x)
	if err != nil {
		return nil, err
	}
	source := rand.New(rand.NewPCG(seed, 0))
	for i := range data {
		data[i] = float32(source.NormFloat64())
	}
	return w.Engine.To(ctx, x, d)
}

func makeConvNet(ctx context.Context, w *cudagroup.Worker, on device.Device) (*convNet, error) {
	kernel, err := random(ctx, w, 1, on, 9, netChannels)
	linear, linearErr := random(ctx, w, 2, on, netChannels*netSide*netSide, 10)
	return &convNet{w, on, kernel, linear}, errors.Join(err, linearErr)
}

// forward computes the model for the input on the current stream of ctx, after a long kernel.
func (m *convNet) forward(ctx context.Context, args netInput) (*tensor.Tensor, error) {
	x := args.X
	if args.Ref != nil {
		var err error
		if x, err = args.Ref.ToHere(ctx); err != nil {
			return nil, err
		}
	}
	if x.Device() != m.on {
		return nil, &ops.DeviceMismatchError{First: x.Device(), Second: m.on}
	}
	x, err := cudagroup.Current(ctx, x)
	if err != nil {
		return nil, err
	}
	if err := m.worker.Sleep(ctx, m.on); err != nil {
		return nil, err
	}
	const n = imageSize
	e := m.worker.Engine
	patches, err := tensor.Strided(x.Storage(), tensor.F32, []int{images, netSide, netSide, 3, 3}, []int{n * n, n, 1, n, 1}, x.Offset())
	if err != nil {
		return nil, err
	}
	rows, err := e.Reshape(ctx, patches, images*netSide*netSide, 9)
	if err != nil {
		return nil, err
	}
	hidden, err := e.MatMul(ctx, rows, m.kernel)
	if err != nil {
		return nil, err
	}
	flat, err := e.View(ctx, hidden, images, netSide*netSide*netChannels)
	if err != nil {
		return nil, err
	}
	y, err := e.MatMul(ctx, flat, m.linear)
	if err != nil {
		return nil, err
	}
	return cudagroup.WithoutStream(y)
}

// cudaMember is a worker of a case with its agent.
type cudaMember struct {
	*cudagroup.Worker
	agent *agent.Agent
}

// withModels joins the worker, which may change its Config by configure, with the functions and methods of the cases of
// references, and calls f. After the shutdown no reference must be left.
func withModels(w *cudagroup.Worker, configure func(c *agent.Config), f func(m cudaMember)) {
	methods := rref.Methods{
		forwardNet.Serve(func(m *convNet, ctx context.Context, args netInput) (*tensor.Tensor, error) {
			return m.forward(ctx, args)
		}),
	}
	refs := rref.New(rref.Options{Methods: append(methods, cudaMethods(w)...)})
	w.Live(func(c *agent.Config) {
		c.Extensions = []agent.Extension{refs}
		c.Funcs = append(cudaFuncs(w),
			newConvNet.Serve(func(ctx context.Context, on device.Device) (*convNet, error) { return makeConvNet(ctx, w, on) }),
			rrefRelay.Serve(func(ctx context.Context, f *rref.Ref[*tensor.Tensor]) (*tensor.Tensor, error) { return f.ToHere(ctx) }))
		configure(c)
	}, func(a *agent.Agent) { f(cudaMember{w, a}) })
	require.Equal(w, empty, refs.Metrics())
}

// setMap sets the map of c for the worker from the GPU with index from to the one with index to.
func setMap(w *cudagroup.Worker, c *agent.Config, worker string, from, to int) {
	require.NoError(w, c.SetDeviceMap(worker, cudagroup.Map(map[int]int{from: to})))
}

// requireSameTensor requires that both are on d and equal, read on the current streams of the case.
func requireSameTensor(w *cudagroup.Worker, d device.Device, want, got *tensor.Tensor) {
	require.Equal(w, d, want.Device())
	require.Equal(w, d, got.Device())
	same, err := tensor.Equal(w.Host(want), w.Host(got))
	require.NoError(w, err)
	require.True(w, same, "results differ")
}
