package autograd_test

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// hostOnly are the operators of gradientCases that GPUs do not have.
var hostOnly = []string{"cos", "embedding", "embedding_bag", "pow", "sin"}

// Operators on a GPU give the gradients of the host, or an error that names the operator and the device.
func TestOperatorsOnGPU(t *testing.T) {
	g := newGPUs(t)
	s := g.stream(gpu(0))
	ctx := device.WithStream(g.ctx, s)
	missing := map[string]bool{}
	for _, c := range gradientCases() {
		host := leaves(t, c.plain.shapes)
		var xs []*autograd.Variable
		for _, x := range host {
			xs = append(xs, g.leaf(x, s))
		}
		err := gradientsOnGPU(g, ctx, c.plain, host, xs)
		if err == nil {
			continue
		}
		var op *autograd.OpError
		var on *tensor.DeviceError
		require.ErrorAs(t, err, &op, c.name)
		require.ErrorAs(t, err, &on, c.name)
		require.Equal(t, gpu(0), on.Device)
		missing[op.Op] = true
	}
	require.Equal(t, hostOnly, slices.Sorted(maps.Keys(missing)))
}

// gradientsOnGPU compares the gradients of c for xs, on a GPU, with those for the leaves host. It returns an
// error of the operator.
func gradientsOnGPU(g *gpus, ctx context.Context, c operands, host, xs []*autograd.Variable) error {
	results, err := c.apply(ctx, xs)
	if err != nil {
		return err
	}
	want, err := c.apply(ctx, host)
	require.NoError(g.t, err)
	grads, onHost := make([]autograd.Value, len(results)), make([]autograd.Value, len(results))
	for i, y := range results {
		g.requireOn(gpu(0), want[i].Value(), y.Value())
		x := g.random(i+10, y.Shape()...)
		onHost[i] = x.Value()
		grads[i] = g.leaf(x, g.stream(gpu(0))).Value()
	}
	if err := autograd.Backward(ctx, results, autograd.WithGradients(grads...)); err != nil {
		return err
	}
	require.NoError(g.t, autograd.Backward(ctx, want, autograd.WithGradients(onHost...)))
	for i, x := range host {
		g.requireOn(gpu(0), x.Grad(), xs[i].Grad())
	}
	return nil
}

// network returns the sum of (x·weightᵀ + bias)*scale + x2, in which bias, scale and x2 are broadcast.
func network(ctx context.Context, xs []*autograd.Variable) (*autograd.Variable, error) {
	y, err := autograd.Linear(ctx, xs[0], xs[1], xs[2])
	if err != nil {
		return nil, err
	}
	if y, err = autograd.Mul(ctx, y, xs[3]); err != nil {
		return nil, err
	}
	if y, err = autograd.AddScaled(ctx, y, xs[4], 3); err != nil {
		return nil, err
	}
	return autograd.Sum(ctx, y)
}

var networkShapes = [][]int{{6, 3}, {5, 3}, {5}, {1, 5}, {6, 1}}

// A pass waits for the work that computes the tensors of the graph, whatever the streams of the leaves, of
// the forward computation, and of the pass are, and enqueues all work without waiting itself. A second pass
// adds to the gradients, on the stream on which the first has left them.
func TestPassInStreamOrder(t *testing.T) {
	g := newGPUs(t)
	host := leaves(t, networkShapes)
	var xs []*autograd.Variable
	var release []func()
	for _, x := range host {
		s := g.stream(gpu(0))
		release = append(release, g.hold(s))
		xs = append(xs, g.leaf(x, s))
	}
	blocking := g.control.Blocking()
	for range 2 {
		y, err := network(device.WithStream(g.ctx, g.stream(gpu(0))), xs)
		require.NoError(t, err)
		require.NoError(t, autograd.Backward(device.WithStream(g.ctx, g.stream(gpu(0))), []*autograd.Variable{y}))
		want, err := network(t.Context(), host)
		require.NoError(t, err)
		require.NoError(t, autograd.Backward(t.Context(), []*autograd.Variable{want}))
	}
	require.Equal(t, blocking, g.control.Blocking())
	for _, f := range release {
		f()
	}
	for i, x := range host {
		g.requireOn(gpu(0), x.Grad(), xs[i].Grad())
	}
}

// Leaves may be changed in place after a pass was enqueued, as by an optimizer, also without their gradients:
// that waits for the pass.
func TestStepAfterPass(t *testing.T) {
	g := newGPUs(t)
	s := g.stream(gpu(0))
	host := leaves(t, networkShapes)
	release := g.hold(s)
	var xs []*autograd.Variable
	for _, x := range host {
		xs = append(xs, g.leaf(x, s))
	}
	for range 2 {
		for _, all := range [][]*autograd.Variable{host, xs} {
			ctx := device.WithStream(g.ctx, g.stream(gpu(0)))
			y, err := network(ctx, all)
			require.NoError(t, err)
			require.NoError(t, autograd.Backward(ctx, []*autograd.Variable{y}))
			for _, x := range all { // before any other work waits for the pass
				require.NoError(t, autograd.AddInPlace(autograd.NoGrad(g.ctx), x, x, -0.5))
			}
			for _, x := range all {
				require.NoError(t, autograd.AddInPlace(autograd.NoGrad(ctx), x, autograd.New(x.Grad()), -0.25))
				x.ZeroGrad()
			}
		}
	}
	release()
	for i, x := range host {
		g.requireOn(gpu(0), x.Value(), xs[i].Value())
	}
}

// Gradients go back through copies between devices, each to the device of its tensor.
func TestGradientsAcrossDevices(t *testing.T) {
	g := newGPUs(t)
	zero, one := g.stream(gpu(0)), g.stream(gpu(1))
	ctx := device.WithStreams(g.ctx, zero, one)
	pass := func(on func(x *autograd.Variable, d device.Device) *autograd.Variable) []*autograd.Variable {
		all := leaves(t, [][]int{{2, 3}, {2, 3}, {3}})
		x, y, z := all[0], on(all[1], gpu(0)).Detach(), on(all[2], gpu(1)).Detach()
		require.NoError(t, y.RequireGrad())
		require.NoError(t, z.RequireGrad())
		a, err := autograd.Mul(ctx, on(x, gpu(0)), y)
		require.NoError(t, err)
		b, err := autograd.Mul(ctx, on(a, gpu(1)), z)
		require.NoError(t, err)
		c, err := autograd.Mul(ctx, on(b, device.CPU()), x)
		require.NoError(t, err)
		d, err := autograd.Mul(ctx, on(c, gpu(1)), b)
		require.NoError(t, err)
		root, err := autograd.Sum(ctx, d)
		require.NoError(t, err)
		require.NoError(t, autograd.Backward(ctx, []*autograd.Variable{root}))
		return []*autograd.Variable{x, y, z}
	}
	want := pass(func(x *autograd.Variable, _ device.Device) *autograd.Variable { return x })
	got := pass(func(x *autograd.Variable, d device.Device) *autograd.Variable {
		x, err := autograd.To(ctx, x, d)
		require.NoError(t, err)
		require.Equal(t, d, x.Value().Device())
		return x
	})
	for i, d := range []device.Device{device.CPU(), gpu(0), gpu(1)} {
		g.requireOn(d, want[i].Grad(), got[i].Grad())
	}
}

// A gradient on another device is an error, unless it has no dimensions: it is then moved. One that
// comes from another process can be moved.
func TestGradientOnAnotherDevice(t *testing.T) {
	g := newGPUs(t)
	s := g.stream(gpu(0))
	ctx := device.WithStream(g.ctx, s)
	for _, shape := range [][]int{{}, {2}} {
		x := g.leaf(g.random(0, shape...), s)
		y, err := autograd.MulNumber(ctx, x, 3)
		require.NoError(t, err)
		grad := g.random(1, shape...).Value()
		triple, err := g.engine.MulNumber(ctx, grad.Tensor(), ops.Int(3))
		require.NoError(t, err)
		err = autograd.Backward(ctx, []*autograd.Variable{y}, autograd.WithGradients(grad))
		if len(shape) > 0 {
			var mismatch *ops.DeviceMismatchError
			require.ErrorAs(t, err, &mismatch)
			require.Equal(t, ops.DeviceMismatchError{First: gpu(0), Second: device.CPU()}, *mismatch)
			grad, err = y.Node().OnDevice(ctx, 0, grad)
			require.NoError(t, err)
			err = autograd.Backward(ctx, []*autograd.Variable{y}, autograd.WithGradients(grad))
		}
		require.NoError(t, err)
		g.requireOn(gpu(0), autograd.Dense(triple), x.Grad())
		same, err := y.Node().OnDevice(ctx, 0, x.Grad())
		require.NoError(t, err)
		require.Same(t, x.Grad().Tensor(), same.Tensor())
	}
}

// The gradient of a root with one element, which may have dimensions, is made on its device.
func TestRootsOnGPU(t *testing.T) {
	g := newGPUs(t)
	for _, shape := range [][]int{{}, {1, 1}} {
		x := g.leaf(g.random(0, shape...), g.stream(gpu(1)))
		y, err := autograd.MulNumber(g.ctx, x, 3)
		require.NoError(t, err)
		require.NoError(t, autograd.Backward(g.ctx, []*autograd.Variable{y}))
		want, err := g.engine.Full(g.ctx, tensor.F64, ops.Int(3), shape...)
		require.NoError(t, err)
		g.requireOn(gpu(1), autograd.Dense(want), x.Grad())
	}
}

// The gradient of a result on which the roots do not depend is zero, on the device of the result, for
// functions that need it.
func TestMissingGradientsOnGPU(t *testing.T) {
	g := newGPUs(t)
	s := g.stream(gpu(1))
	ctx := device.WithStream(g.ctx, s)
	x := g.leaf(g.random(0, 2, 3), s)
	n := autograd.NewSource("source", []*autograd.Variable{x}, func(context.Context, []autograd.Value) error { return nil })
	zeros, err := n.Zeros(ctx, 0)
	require.NoError(t, err)
	want, err := tensor.Zeros(tensor.F64, 2, 3)
	require.NoError(t, err)
	g.requireOn(gpu(1), autograd.Dense(want), zeros)

	y := g.leaf(g.random(0, 4, 3), s)
	parts, err := autograd.Split(ctx, y, 3, 0)
	require.NoError(t, err)
	root, err := autograd.Sum(ctx, parts[1])
	require.NoError(t, err)
	require.NoError(t, autograd.Backward(ctx, []*autograd.Variable{root}))
	grad, err := tensor.FromSlice([]float64{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1}, 4, 3)
	require.NoError(t, err)
	g.requireOn(gpu(1), autograd.Dense(grad), y.Grad())
	_, err = n.Zeros(t.Context(), 0)
	var on *tensor.DeviceError
	require.ErrorAs(t, err, &on, "the engine has no kernels")
}
