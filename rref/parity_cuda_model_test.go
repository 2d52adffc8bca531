package rref_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/cudagroup"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// imageSize is the side of the images of PyTorch's tests, which have one channel.
const imageSize = 28

// batch returns the number of images of iteration i. All batches of PyTorch's tests have 200. Those after the first are
// smaller here, because the model takes the simulated devices 0.3 s for 200, and those of a run of drops are smaller still.
func batch(i int) int {
	if i == 0 {
		return drops.Pick(200, 5)
	}
	return drops.Pick(20, 5)
}

// convNet is the model of PyTorch's tests of synchronization, on one GPU. There are no kernels for convolutions and
// pooling, so they are composed of others; see conv2d and maxPool2d.
type convNet struct {
	worker                         *cudagroup.Worker
	on                             device.Device
	conv1, conv2, linear1, linear2 layer
}

// layer has the parameters of a module.
type layer struct {
	weight, bias *tensor.Tensor
	used         func() // called after a use; a run of drops overwrites the parameters then
}

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

// random returns a tensor on d, valid on the current stream of ctx, of numbers that next takes from a source which is
// the same for each seed.
func random(ctx context.Context, w *cudagroup.Worker, seed uint64, next func(*rand.Rand) float32, d device.Device, shape ...int) (*tensor.Tensor, error) {
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
		data[i] = next(source)
	}
	return w.To(ctx, x, d)
}

// normal returns a number of the standard normal distribution.
func normal(r *rand.Rand) float32 { return float32(r.NormFloat64()) }

// newLayer returns the parameters that PyTorch gives a module: uniform random numbers whose bound depends on the number
// of inputs of each output, which is the product of shape without its first number.
func newLayer(ctx context.Context, w *cudagroup.Worker, seed uint64, d device.Device, shape ...int) (layer, error) {
	inputs := 1
	for _, n := range shape[1:] {
		inputs *= n
	}
	bound := float32(1 / math.Sqrt(float64(inputs)))
	next := func(r *rand.Rand) float32 { return bound * (2*r.Float32() - 1) }
	cpu := device.CPU()
	weight, err := random(ctx, w, 2*seed, next, cpu, shape...)
	bias, biasErr := random(ctx, w, 2*seed+1, next, cpu, shape[0])
	if err = errors.Join(err, biasErr); err != nil {
		return layer{}, err
	}
	return layer{weight, bias, func() {}}.to(ctx, w, d)
}

// to returns a copy of l on d.
func (l layer) to(ctx context.Context, w *cudagroup.Worker, d device.Device) (layer, error) {
	weight, first, err := w.Parameter(ctx, l.weight, d, 2)
	bias, second, biasErr := w.Parameter(ctx, l.bias, d, 3)
	return layer{weight, bias, func() { first(); second() }}, errors.Join(err, biasErr)
}

func makeConvNet(ctx context.Context, w *cudagroup.Worker, on device.Device) (*convNet, error) {
	conv1, err1 := newLayer(ctx, w, 1, on, 16, 1, 3, 3)
	if drops.Running() { // see net
		return &convNet{worker: w, on: on, conv1: conv1}, err1
	}
	conv2, err2 := newLayer(ctx, w, 2, on, 32, 16, 3, 3)
	linear1, err3 := newLayer(ctx, w, 3, on, 128, 4608)
	linear2, err4 := newLayer(ctx, w, 4, on, 10, 128)
	return &convNet{w, on, conv1, conv2, linear1, linear2}, errors.Join(err1, err2, err3, err4)
}

// conv2d is a convolution with stride 1 and without padding: a product of the weight, of shape [out, in, height, width],
// and the parts of the images x, of shape [images, in, height, width], to which each result belongs. x must be
// contiguous.
func conv2d(ctx context.Context, e *ops.Engine, x *tensor.Tensor, l layer) (*tensor.Tensor, error) {
	n, in, height, width := x.Shape()[0], x.Shape()[1], x.Shape()[2], x.Shape()[3]
	out, kernel := l.weight.Shape()[0], l.weight.Shape()[2:]
	rows, columns := height-kernel[0]+1, width-kernel[1]+1
	parts, err := tensor.Strided(x.Storage(), x.DType(), []int{n, in, kernel[0], kernel[1], rows, columns},
		[]int{in * height * width, height * width, width, 1, width, 1}, x.Offset())
	if err != nil {
		return nil, err
	}
	inputs := in * kernel[0] * kernel[1]
	if parts, err = e.Reshape(ctx, parts, n, inputs, rows*columns); err != nil { // a copy
		return nil, err
	}
	defer parts.Release()
	weight, err := e.View(ctx, l.weight, out, inputs)
	if err != nil {
		return nil, err
	}
	y, err := e.MatMul(ctx, weight, parts)
	if err != nil {
		return nil, err
	}
	bias, err := e.View(ctx, l.bias, out, 1)
	if err != nil {
		return nil, err
	}
	if err := e.AddInPlace(ctx, y, bias, ops.Int(1)); err != nil {
		return nil, err
	}
	return e.View(ctx, y, n, out, rows, columns)
}

// maxPool2d returns the maxima of the squares of 2x2 pixels of the images x, whose sides must be even: those of pairs of
// rows, and of these those of pairs of pixels.
func maxPool2d(ctx context.Context, e *ops.Engine, x *tensor.Tensor) (*tensor.Tensor, error) {
	n, channels, height, width := x.Shape()[0], x.Shape()[1], x.Shape()[2], x.Shape()[3]
	rows, err := e.View(ctx, x, n*channels*height/2, 2, width)
	if err != nil {
		return nil, err
	}
	high, which, err := e.MaxDim(ctx, rows, 1, false)
	if err != nil {
		return nil, err
	}
	defer high.Release()
	which.Release()
	if high, err = e.View(ctx, high, n, channels, height/2, width/2, 2); err != nil {
		return nil, err
	}
	maxima, which, err := e.MaxDim(ctx, high, 4, false)
	if err != nil {
		return nil, err
	}
	which.Release()
	return maxima, nil
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
	if x, err = m.net(ctx, x); err != nil {
		return nil, err
	}
	m.conv1.used()
	return cudagroup.WithoutStream(x)
}

// net computes the layers one after the other, and releases their inputs but x, as PyTorch does. In a run of drops the
// model has one layer: in the others streams are ordered by the same calls.
func (m *convNet) net(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	e := m.worker.Engine
	relu := func(x *tensor.Tensor) (*tensor.Tensor, error) { return e.Relu(ctx, x) }
	conv := func(l layer) func(*tensor.Tensor) (*tensor.Tensor, error) {
		return func(x *tensor.Tensor) (*tensor.Tensor, error) { return conv2d(ctx, e, x, l) }
	}
	linear := func(l layer) func(*tensor.Tensor) (*tensor.Tensor, error) {
		return func(x *tensor.Tensor) (*tensor.Tensor, error) { return e.Linear(ctx, x, l.weight, l.bias) }
	}
	pool := func(x *tensor.Tensor) (*tensor.Tensor, error) { return maxPool2d(ctx, e, x) }
	y := x
	flatten := func(x *tensor.Tensor) (*tensor.Tensor, error) { return e.View(ctx, x, x.Shape()[0], 4608) }
	modules := []func(*tensor.Tensor) (*tensor.Tensor, error){
		conv(m.conv1), relu, conv(m.conv2), relu, pool, flatten, linear(m.linear1), relu, linear(m.linear2),
	}
	for _, module := range drops.Pick(modules, modules[:1]) {
		next, err := module(y)
		if err != nil {
			return nil, err
		}
		if s := y.Storage(); s != x.Storage() && s != next.Storage() {
			s.Release()
		}
		y = next
	}
	return y, nil
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

// callModels is withModels where only the worker of that rank calls f.
func callModels(w *cudagroup.Worker, rank int, configure func(c *agent.Config), f func(m cudaMember)) {
	if w.World > 1 {
		w.ModelsCalledBy(rank)
	}
	withModels(w, configure, func(m cudaMember) {
		if m.Rank == rank {
			f(m)
		}
	})
}

// setMap sets the map of c for the worker from the GPU with index from to the one with index to.
func setMap(w *cudagroup.Worker, c *agent.Config, worker string, from, to int) {
	require.NoError(w, c.SetDeviceMap(worker, cudagroup.Map(map[int]int{from: to})))
}

// requireForward requires that y, on the host, is the result of the model for the images of iteration i, as the host
// computes it. That takes long for the first batch.
func requireForward(m cudaMember, y *tensor.Tensor, i int) {
	if i == 0 && !drops.Running() {
		return
	}
	ctx, cpu := m.Context(), device.CPU()
	model, err := makeConvNet(ctx, m.Worker, cpu)
	require.NoError(m, err)
	want, err := model.net(ctx, m.images(i, cpu))
	require.NoError(m, err)
	requireClose(m, want, y)
}

// requireClose requires that both, on the host, have the same float32 numbers up to rounding.
func requireClose(m cudaMember, want, got *tensor.Tensor) {
	require.Equal(m, want.Shape(), got.Shape())
	x, err := tensor.Data[float32](want)
	require.NoError(m, err)
	y, err := tensor.Data[float32](got)
	require.NoError(m, err)
	for i, v := range y {
		if diff := v - x[i]; !(max(diff, -diff) <= 1e-3) { // also if it is NaN
			require.Equal(m, x[i], v, drops.WrongBytes)
		}
	}
}

// read returns a copy of x, which must be on the GPU with index local, in host memory, read on the current stream of the
// case.
func (m cudaMember) read(x *tensor.Tensor, local int) *tensor.Tensor {
	require.Equal(m, cudagroup.GPU(local), x.Device())
	return m.Host(x)
}

// requireSame requires that both, on the host, are equal.
func requireSame(m cudaMember, want, got *tensor.Tensor) {
	same, err := tensor.Equal(want, got)
	require.NoError(m, err)
	require.True(m, same, "results differ: %s", drops.WrongBytes)
}
