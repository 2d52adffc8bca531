package autograd_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// gpus is the simulated GPUs of a test, on which all copies and kernels are late.
type gpus struct {
	t       *testing.T
	kind    *cudaipc.Kind
	control *cusim.Control
	engine  *ops.Engine
	ctx     context.Context // with the engine, and without streams
}

// lateness is how long each operation takes, in microseconds.
const lateness = "200"

func newGPUs(t *testing.T) *gpus {
	t.Helper()
	lib := cusim.Library(t)
	control, err := cusim.Open(lib)
	require.NoError(t, err)
	require.NoError(t, control.Set("CUSIM_DELAY_US", lateness))
	d, err := driver.Open(lib)
	require.NoError(t, err)
	kind, err := cudaipc.New(d, cudaipc.Options{})
	require.NoError(t, err)
	misuses := control.Misuse()
	t.Cleanup(func() {
		control.ReleaseAll()
		require.NoError(t, kind.Close())
		require.Equal(t, misuses, control.Misuse(), control.LastMisuse())
	})
	engine := &ops.Engine{ByKind: map[string]ops.Kernels{cudaipc.Name: kind.Kernels()}}
	return &gpus{t, kind, control, engine, autograd.WithEngine(t.Context(), engine)}
}

// gpu returns the GPU with that index.
func gpu(index int) device.Device { return device.Device{Kind: cudaipc.Name, Index: index} }

// stream returns a new stream of d.
func (g *gpus) stream(d device.Device) *cudaipc.Stream {
	g.t.Helper()
	s, err := g.kind.NewStream(d)
	require.NoError(g.t, err)
	return s.(*cudaipc.Stream)
}

// hold holds back the work of s until release is called.
func (g *gpus) hold(s *cudaipc.Stream) (release func()) {
	g.t.Helper()
	require.NoError(g.t, g.control.Hold(uintptr(s.Handle())))
	return func() {
		g.t.Helper()
		require.NoError(g.t, g.control.Release(uintptr(s.Handle())))
	}
}

// leaf returns a leaf with the data of x, which is on the host, on the device of s and valid on s.
func (g *gpus) leaf(x *autograd.Variable, s *cudaipc.Stream) *autograd.Variable {
	g.t.Helper()
	data, err := g.engine.To(device.WithStream(g.ctx, s), x.Tensor(), s.Device())
	require.NoError(g.t, err)
	require.Equal(g.t, s.Device(), data.Device())
	y := autograd.Constant(data)
	if x.RequiresGrad() {
		require.NoError(g.t, y.RequireGrad())
	}
	return y
}

// requireOn requires that v is on d, with the elements of want, which is on the host.
func (g *gpus) requireOn(d device.Device, want, v autograd.Value) {
	g.t.Helper()
	require.NotNil(g.t, v.Tensor())
	require.Equal(g.t, d, v.Device())
	require.Equal(g.t, want.Shape(), v.Shape())
	x, err := g.engine.To(g.ctx, v.Tensor(), device.CPU())
	require.NoError(g.t, err)
	if x.Len() > 0 {
		require.InDeltaSlice(g.t, floats(g.t, want.Tensor()), floats(g.t, x), 1e-9)
	}
}

// random returns a leaf on the host that requires a gradient, with the elements of argument i of that shape.
func (g *gpus) random(i int, shape ...int) *autograd.Variable {
	g.t.Helper()
	x, err := tensor.FromSlice(elements(i, shape), shape...)
	require.NoError(g.t, err)
	y, err := autograd.Parameter(x)
	require.NoError(g.t, err)
	return y
}
