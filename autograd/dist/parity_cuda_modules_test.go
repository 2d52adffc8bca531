package dist_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/cudagroup"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// remoteCompute is a module that doubles its input.
type remoteCompute struct{}

// TensorpipeName implements codec.Namer.
func (*remoteCompute) TensorpipeName() string { return "MyRemoteCompute" }

func (*remoteCompute) forward(ctx context.Context, x variable) (variable, error) {
	return autograd.MulNumber(ctx, x, 2)
}

// localCompute is a module that calls the next stage, which is on another worker.
type localCompute struct{ next *rref.Ref[*remoteCompute] }

func (l *localCompute) forward(ctx context.Context, x variable) (variable, error) {
	return computeForward.Call(ctx, l.next, x)
}

// linear is a module with parameters.
type linear struct{ Weight, Bias variable }

// newLinear returns a module on d, with the random parameters that PyTorch gives one: its weight is a matrix of
// size rows and columns.
func newLinear(w *cudaWorker, d device.Device, size int) linear {
	bound := float32(1 / math.Sqrt(float64(size)))
	next := func(r *rand.Rand) float32 { return bound * (2*r.Float32() - 1) }
	return linear{w.leaf(d, next, size, size), w.leaf(d, next, size)}
}

// to returns l on d: the same module if it is there.
func (l linear) to(ctx context.Context, d device.Device) (linear, error) {
	for _, p := range []*variable{&l.Weight, &l.Bias} {
		t, err := autograd.EngineOf(ctx).To(ctx, (*p).Tensor(), d)
		if err != nil {
			return l, err
		}
		if t != (*p).Tensor() {
			if *p, err = autograd.Parameter(t); err != nil {
				return l, err
			}
		}
	}
	return l, nil
}

func (l linear) parameters() []variable { return []variable{l.Weight, l.Bias} }

func (l linear) forward(ctx context.Context, x variable) (variable, error) {
	return autograd.Linear(ctx, x, l.Weight, l.Bias)
}

// wrapperArgs are the module of a wrapper, and the index of the GPU to which it is moved.
type wrapperArgs struct {
	Model linear
	GPU   int
}

// wrapper is a module that calls another one on its GPU.
type wrapper struct {
	model linear
	on    device.Device
}

// TensorpipeName implements codec.Namer.
func (*wrapper) TensorpipeName() string { return "WrapperModule" }

func newWrapperModule(ctx context.Context, args wrapperArgs) (*wrapper, error) {
	on := cudagroup.GPU(args.GPU)
	model, err := args.Model.to(ctx, on)
	return &wrapper{model, on}, err
}

func (m *wrapper) forward(ctx context.Context, x variable) (variable, error) {
	if d := x.Value().Device(); d != m.on {
		return nil, fmt.Errorf("the input is on %v and not on %v", d, m.on)
	}
	return m.model.forward(ctx, x)
}

// gradients returns the gradients of the parameters in a Context.
func (m *wrapper) gradients(ctx context.Context, id dist.ID) (all []*tensor.Tensor, err error) {
	c, err := id.Context(agent.FromContext(ctx))
	if err != nil {
		return nil, err
	}
	for _, p := range m.model.parameters() {
		g, err := c.Gradient(p)
		if err != nil {
			return nil, err
		}
		if d := g.Device(); d != m.on {
			return nil, fmt.Errorf("a gradient is on %v and not on %v", d, m.on)
		}
		all = append(all, g.Tensor())
	}
	return all, nil
}

var (
	newRemoteCompute = agent.NewFunc[agent.None, *remoteCompute]("MyRemoteCompute")
	computeForward   = rref.NewMethod[*remoteCompute, variable, variable]("forward")
	newWrapper       = agent.NewFunc[wrapperArgs, *wrapper]("WrapperModule")
	wrapperForward   = rref.NewMethod[*wrapper, variable, variable]("forward")
	wrapperGradients = rref.NewMethod[*wrapper, dist.ID, []*tensor.Tensor]("gradients")
)

func cudaFunctions() agent.Funcs {
	return append(functions(),
		newRemoteCompute.Serve(func(context.Context, agent.None) (*remoteCompute, error) { return &remoteCompute{}, nil }),
		newWrapper.Serve(newWrapperModule), moved.Serve(move),
	)
}

func cudaMethods() rref.Methods {
	return append(methods(),
		computeForward.Serve((*remoteCompute).forward),
		wrapperForward.Serve((*wrapper).forward), wrapperGradients.Serve((*wrapper).gradients),
	)
}

// syncStreams doubles large tensors on another worker, on another GPU, and requires the gradients of local
// passes.
func syncStreams(w *cudaWorker) {
	t := w.group
	remoteModule := rref.Remote(w.ctx, w.Agent, w.at(1), newRemoteCompute, agent.None{})
	module := &localCompute{remoteModule}
	for range drops.Pick(race.Pick(10, 2), 1) {
		input := w.leaf(w.own(), uniform, drops.Pick(race.Pick(1000, 50), 1), 10000)
		r := rand.Float64()
		loss := func(ctx context.Context, result variable, err error) variable {
			require.NoError(t, err)
			scaled, err := autograd.MulNumber(ctx, sum(t, ctx, result), r)
			require.NoError(t, err)
			return scaled
		}
		result, err := autograd.MulNumber(w.ctx, input, 2)
		require.NoError(t, autograd.Backward(w.ctx, []variable{loss(w.ctx, result, err)}))
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			result, err := module.forward(ctx, input)
			require.NoError(t, err)
			require.NoError(t, c.Backward(ctx, loss(ctx, result, err)))
			w.requireSame(input.Grad(), w.gradient(c, input), w.own())
			w.requireSum(result, w.own(), input, input)
		})
	}
	w.requireIPC(w.rank, (w.rank+1)%parityWorld)
	require.NoError(t, remoteModule.Release(w.ctx))
}

// TestParityCudaSyncStreams has the case of large tensors.
func TestParityCudaSyncStreams(t *testing.T) {
	cudagroup.Run(t, parityWorld, cudaCase("dist_autograd/TensorPipeCudaDistAutogradTest.test_dist_autograd_sync_streams", mapsToNext, syncStreams))
}

// The sizes of gradientsSynchronizations. PyTorch's test has 5000 rows, for which the simulated GPUs need more
// than 10 s. A run of drops has small layers.
var (
	layerSize = drops.Pick(2000, 20)
	inputRows = drops.Pick(2000, 10)
)

// mapsToAll returns the maps that send tensors on the GPU with the rank of w to each worker, on the GPU with
// its rank.
func mapsToAll(w *cudagroup.Worker) map[string]agent.DeviceMap {
	all := map[string]agent.DeviceMap{}
	for rank := range w.World {
		all[fmt.Sprint("worker", rank)] = cudagroup.Map(map[int]int{w.Rank: rank})
	}
	return all
}

// gradientsSynchronizations has the first worker call layers on the three others, one after the other, and
// requires that their parameters get the gradients of the same layers on its own GPU.
func gradientsSynchronizations(w *cudaWorker) {
	w.group.ModelsCalledBy(0)
	if w.rank != 0 {
		return
	}
	t, gpu := w.group, cudagroup.GPU(0)
	var layers []linear
	var remotes []*rref.Ref[*wrapper]
	for rank := 1; rank < parityWorld; rank++ {
		l := newLinear(w, gpu, layerSize)
		layers = append(layers, l)
		remotes = append(remotes, rref.Remote(w.ctx, w.Agent, agent.Rank(rank), newWrapper, wrapperArgs{l, rank}))
	}
	input := autograd.Constant(w.tensor(gpu, normal, race.Pick(inputRows, 10), layerSize))
	x := input
	for _, l := range layers {
		var err error
		x, err = l.forward(w.ctx, x)
		require.NoError(t, err)
	}
	require.NoError(t, autograd.Backward(w.ctx, []variable{sum(t, w.ctx, x)}))
	local := x
	w.inContext(t, func(ctx context.Context, c *dist.Context) {
		x := input
		for _, f := range remotes {
			var err error
			x, err = wrapperForward.Call(ctx, f, x)
			require.NoError(t, err)
			require.Equal(t, gpu, x.Value().Device())
		}
		result := w.group.HostLater(x.Tensor())
		require.NoError(t, c.Backward(ctx, sum(t, ctx, x)))
		var futures []*agent.Future[[]*tensor.Tensor]
		for _, f := range remotes {
			futures = append(futures, wrapperGradients.Go(ctx, f, c.ID()))
		}
		for i, f := range futures {
			grads, err := f.Wait(ctx)
			require.NoError(t, err)
			require.Len(t, grads, 2)
			for k, p := range layers[i].parameters() {
				w.requireSame(p.Grad(), autograd.Dense(grads[k]), gpu)
				if drops.Running() { // gradients agree with other parameters, too
					w.requireClose(w.made[p], w.floats(p.Value()))
				}
			}
		}
		if drops.Running() { // gradients do not depend on the result
			got, err := tensor.Data[float32](result())
			require.NoError(t, err)
			w.requireClose(w.floats(local.Value()), got)
		}
	})
	for i, f := range remotes {
		w.requireIPC(0, i+1)
		require.NoError(t, f.Release(w.ctx))
	}
}

// TestParityCudaGradients has the case of modules with parameters on several GPUs.
func TestParityCudaGradients(t *testing.T) {
	cudagroup.Run(t, parityWorld, cudaCase("dist_autograd/TensorPipeCudaDistAutogradTest.test_gradients_synchronizations", mapsToAll, gradientsSynchronizations))
}
