package rref_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/cudagroup"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// devicePairs are the devices of PyTorch's cases of synchronization, by their numbers in the names of the tests: the GPU
// of the caller, and that of the model.
type devicePairs [][2]int

// cases returns a case for each pair, numbered from 1.
func (p devicePairs) cases(name string, run func(w *cudagroup.Worker, local, remote int)) (all []cudagroup.Case) {
	for i, pair := range p {
		id := fmt.Sprintf("rpc/TensorPipeAgentCudaRpcTest.test_%s_synchronization%d", name, i+1)
		all = append(all, cudagroup.Case{ID: id, Run: func(w *cudagroup.Worker) { run(w, pair[0], pair[1]) }})
	}
	return all
}

// iterations is how often a case compares two results of the model.
func iterations() int { return drops.Pick(race.Pick(10, 3), 1) }

// images returns the images of iteration i on d.
func (m cudaMember) images(i int, d device.Device) *tensor.Tensor {
	x, err := random(m.Context(), m.Worker, uint64(100+i), normal, d, batch(i), 1, imageSize, imageSize)
	require.NoError(m, err)
	return x
}

// toHere compares the result of the model that stays at its owner, and is fetched, with that of a call. If fetching did
// not wait for the model, they would differ.
func toHere(w *cudagroup.Worker, local, remote int) {
	callModels(w, 1, func(c *agent.Config) { setMap(w, c, w.Next(1), local, remote) }, func(m cudaMember) {
		model := rref.Remote(m.Context(), m.agent, agent.To(m.Next(1)), newConvNet, cudagroup.GPU(remote))
		for i := range iterations() {
			m.compare(model, netInput{X: m.images(i, cudagroup.GPU(local))}, i, local)
		}
		m.RequireRoutes(m.Next(1), cudagroup.Map(map[int]int{local: remote}))
	})
}

// compare requires that the result for the images of iteration i that the owner of the model keeps, once it is fetched, is
// that of a call.
func (m cudaMember) compare(model *rref.Ref[*convNet], args netInput, i, local int) {
	kept := forwardNet.Remote(m.Context(), model, args)
	actual, err := kept.ToHere(m.Context())
	require.NoError(m, err)
	got := m.HostLater(actual) // the current stream waits for the next result too
	expected, err := forwardNet.Call(m.Context(), model, args)
	require.NoError(m, err)
	require.Equal(m, cudagroup.GPU(local), actual.Device())
	want := m.read(expected, local)
	requireSame(m, want, got())
	requireForward(m, want, i)
}

// asArgument is toHere with a reference to the input, which the owner of the model fetches. Without devices all may be
// used.
func asArgument(devices ...device.Device) func(w *cudagroup.Worker, local, remote int) {
	return func(w *cudagroup.Worker, local, remote int) {
		callModels(w, 1, func(c *agent.Config) {
			setMap(w, c, w.Next(1), local, remote)
			setMap(w, c, w.Next(w.World-1), remote, local)
			c.Devices = devices
		}, func(m cudaMember) {
			model := rref.Remote(m.Context(), m.agent, agent.To(m.Next(1)), newConvNet, cudagroup.GPU(remote))
			for i := range iterations() {
				m.compare(model, netInput{Ref: rref.Own(m.agent, m.images(i, cudagroup.GPU(local)))}, i, local)
			}
			m.RequireRoutes(m.Next(1), cudagroup.Map(map[int]int{local: remote}))
		})
	}
}

// relayed is asArgument where the result goes through a third worker, which fetches it from the owner of the model.
func relayed(w *cudagroup.Worker, local, remote int) {
	const input, owner, relay = "worker0", "worker1", "worker2"
	callModels(w, 0, func(c *agent.Config) {
		switch w.Name() {
		case input:
			setMap(w, c, owner, local, remote)
			setMap(w, c, relay, local, local)
		case owner:
			setMap(w, c, input, remote, local)
		case relay:
			setMap(w, c, owner, local, remote)
		}
	}, func(m cudaMember) {
		model := rref.Remote(m.Context(), m.agent, owner, newConvNet, cudagroup.GPU(remote))
		for i := range iterations() {
			args := netInput{Ref: rref.Own(m.agent, m.images(i, cudagroup.GPU(local)))}
			kept := forwardNet.Remote(m.Context(), model, args)
			actual, err := rref.Remote(m.Context(), m.agent, relay, rrefRelay, kept).ToHere(m.Context())
			require.NoError(m, err)
			got := m.HostLater(actual) // the current stream waits for the next result too
			expected, err := forwardNet.Call(m.Context(), model, args)
			require.NoError(m, err)
			require.Equal(m, cudagroup.GPU(local), actual.Device())
			want := m.read(expected, local)
			requireSame(m, want, got())
			requireForward(m, want, i)
		}
		m.RequireRoutes(owner, cudagroup.Map(map[int]int{local: remote}))
		m.RequireRoutes(relay, cudagroup.Map(map[int]int{local: local}))
	})
}

// runApart runs each case with world processes of its own, because those of a group have one time limit.
func runApart(t *testing.T, world int, cases []cudagroup.Case) {
	for i, c := range cases {
		if !race.Includes(i, len(cases), 3) {
			continue
		}
		t.Run(fmt.Sprint(i+1), func(t *testing.T) { cudagroup.Run(t, world, c) })
	}
}

func TestParityCudaToHere(t *testing.T) {
	runApart(t, parityWorld, devicePairs{{0, 0}, {1, 0}, {1, 1}, {0, 1}}.cases("rref_to_here", toHere))
}

func TestParityCudaAsArgument(t *testing.T) {
	all := devicePairs{{0, 0}, {1, 0}, {1, 1}, {0, 1}}.cases("rref_as_arg", asArgument())
	fifth := devicePairs{{0, 0}}.cases("rref_as_arg", asArgument(cudagroup.GPU(0)))[0]
	fifth.ID = "rpc/TensorPipeAgentCudaRpcTest.test_rref_as_arg_synchronization5"
	runApart(t, parityWorld, append(all, fifth))
}

func TestParityCudaRelayed(t *testing.T) {
	runApart(t, parityWorld, devicePairs{{0, 0}, {0, 1}, {1, 0}, {1, 1}}.cases("rref_forward", relayed))
}

// linear is PyTorch's module of that name.
type linear struct {
	worker *cudagroup.Worker
	layer
}

// linearSize is the sizes of a new linear module.
type linearSize struct{ In, Out int }

var (
	newLinear     = agent.NewFunc[linearSize, *linear]("torch.nn.Linear")
	moveLinear    = rref.NewMethod[*linear, device.Device, *linear]("to")
	forwardLinear = rref.NewMethod[*linear, *tensor.Tensor, *tensor.Tensor]("forward")
	sumOf         = rref.NewOperator[*tensor.Tensor]("aten::sum")
)

func linearFuncs(w *cudagroup.Worker) agent.Funcs {
	return agent.Funcs{newLinear.Serve(func(ctx context.Context, size linearSize) (*linear, error) {
		l, err := newLayer(ctx, w, 5, device.CPU(), size.Out, size.In)
		return &linear{w, l}, err
	})}
}

func linearMethods() rref.Methods {
	return rref.Methods{moveLinear.Serve((*linear).to), forwardLinear.Serve((*linear).forward)}
}

func (l *linear) to(ctx context.Context, d device.Device) (*linear, error) {
	moved, err := l.layer.to(ctx, l.worker, d)
	return &linear{l.worker, moved}, err
}

// forward computes the module for x on the current stream of ctx, after a long kernel, because the product is smaller
// than PyTorch's.
func (l *linear) forward(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
	x, err := cudagroup.Current(ctx, x)
	if err != nil {
		return nil, err
	}
	if err := l.worker.Sleep(ctx, x.Device()); err != nil {
		return nil, err
	}
	y, err := l.worker.Engine.Linear(ctx, x, l.weight, l.bias)
	if err != nil {
		return nil, err
	}
	l.used()
	return cudagroup.WithoutStream(y)
}

// ownModel calls a model of its own, and compares the sum of the result that is computed for a reference with that
// computed at once. PyTorch's test has 2,048 rows and 20,000 outputs, for which the simulated devices need minutes.
func ownModel(w *cudagroup.Worker, local, remote int) {
	const rows = 50
	in, out := drops.Pick(2048, 20), drops.Pick(2000, 500)
	callModels(w, 0, func(c *agent.Config) { setMap(w, c, w.Name(), local, remote) }, func(m cudaMember) {
		to := agent.To(m.Name())
		module := rref.Remote(m.Context(), m.agent, to, newLinear, linearSize{in, out})
		model := moveLinear.Remote(m.Context(), module, cudagroup.GPU(remote))
		for i := range drops.Pick(3*iterations(), 1) {
			x, err := random(m.Context(), w, uint64(i), (*rand.Rand).Float32, cudagroup.GPU(local), rows, in)
			require.NoError(m, err)
			y, err := forwardLinear.Call(m.Context(), model, x)
			require.NoError(m, err)
			require.Equal(m, cudagroup.GPU(local), y.Device())
			require.Equal(m, []int{rows, out}, y.Shape())
			product := m.HostLater(y)
			kept, err := sumOf.Remote(m.Context(), rref.Own(m.agent, y)).ToHere(m.Context())
			require.NoError(m, err)
			require.Equal(m, cudagroup.GPU(local), kept.Device())
			got := m.HostLater(kept)
			y, err = cudagroup.Current(m.Context(), y)
			require.NoError(m, err)
			sum, err := m.Engine.Sum(m.Context(), y, nil, false, tensor.F32)
			require.NoError(m, err)
			requireSame(m, m.read(sum, local), got())
			if i < race.Pick(1, 0) || drops.Running() { // the product takes the host long
				requireProduct(m, product(), uint64(i), in)
			}
		}
		m.RequireRoutes(m.Name(), cudagroup.Map(map[int]int{local: remote}))
	})
}

// requireProduct requires that y, on the host, is the result of the model for the input of that seed with in columns, up to
// rounding.
func requireProduct(m cudaMember, y *tensor.Tensor, seed uint64, in int) {
	x, err := random(m.Context(), m.Worker, seed, (*rand.Rand).Float32, device.CPU(), y.Shape()[0], in)
	require.NoError(m, err)
	l, err := newLayer(m.Context(), m.Worker, 5, device.CPU(), y.Shape()[1], in)
	require.NoError(m, err)
	want, err := m.Engine.Linear(m.Context(), x, l.weight, l.bias)
	require.NoError(m, err)
	requireClose(m, want, y)
}

func TestParityCudaOwnModel(t *testing.T) {
	runApart(t, 1, devicePairs{{0, 0}, {0, 1}, {1, 0}, {1, 1}}.cases("owner_rref_forward", ownModel))
}
