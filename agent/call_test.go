package agent_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

type pair struct{ A, B *tensor.Tensor }

var add = agent.NewFunc[pair, *tensor.Tensor]("test.add")

func addTensors(_ context.Context, p pair) (*tensor.Tensor, error) {
	x, err := tensor.Data[float32](p.A)
	if err != nil {
		return nil, err
	}
	y, err := tensor.Data[float32](p.B)
	if err != nil {
		return nil, err
	}
	sum, err := tensor.Zeros(tensor.F32, p.A.Shape()...)
	if err != nil {
		return nil, err
	}
	z, err := tensor.MutableData[float32](sum)
	if err != nil {
		return nil, err
	}
	for i := range z {
		z[i] = x[i] + y[i]
	}
	return sum, nil
}

func serveAdd(opts ...agent.ServeOption) func(int, *agent.Config) {
	return func(_ int, c *agent.Config) { c.Funcs = agent.Funcs{add.Serve(addTensors, opts...)} }
}

func filled(t testing.TB, value float32, shape ...int) *tensor.Tensor {
	t.Helper()
	x, err := tensor.Zeros(tensor.F32, shape...)
	require.NoError(t, err)
	require.NoError(t, tensor.Fill(x, value))
	return x
}

func TestCall(t *testing.T) {
	group := startGroup(t, 3, serveAdd())
	for _, from := range group {
		for _, to := range group {
			sum, err := add.Call(t.Context(), from, to.Self().To(), pair{filled(t, 1, 2, 2), filled(t, 2, 2, 2)})
			require.NoError(t, err)
			same, err := tensor.Equal(sum, filled(t, 3, 2, 2))
			require.NoError(t, err)
			require.True(t, same)
		}
	}
	sum, err := add.Go(t.Context(), group[0], agent.Rank(1), pair{filled(t, 1, 2, 2), filled(t, 2, 2, 2)}).Wait(t.Context())
	require.NoError(t, err)
	same, err := tensor.Equal(sum, filled(t, 3, 2, 2))
	require.NoError(t, err)
	require.True(t, same)
}

func BenchmarkCall(b *testing.B) {
	group := startGroup(b, 2, serveAdd(agent.WithShort()))
	args := pair{filled(b, 1, 2, 2), filled(b, 2, 2, 2)}
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		_, err := add.Call(ctx, group[0], "worker1", args)
		require.NoError(b, err)
	}
}

// TestSmallCallAllocates bounds the number of allocations that a small call makes at both ends
// together. Four of them are for tensors: the two arguments, the result of the handler, and the
// result at the caller. A call with a future makes seven more, for the future, its timer, and the
// watch of its context.
func TestSmallCallAllocates(t *testing.T) {
	if race.Enabled || invariants.Enabled {
		t.Skip("the race detector and the invariants allocate themselves")
	}
	short := agent.NewFunc[pair, *tensor.Tensor]("test.short")
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Funcs = agent.Funcs{add.Serve(addTensors), short.Serve(addTensors, agent.WithShort())}
	})
	args := pair{filled(t, 1, 2, 2), filled(t, 2, 2, 2)}
	for name, c := range map[string]struct {
		call func(context.Context) error
		most float64
	}{
		"short": {func(ctx context.Context) error { _, err := short.Call(ctx, group[0], "worker1", args); return err }, 8},
		"plain": {func(ctx context.Context) error { _, err := add.Call(ctx, group[0], "worker1", args); return err }, 10},
		"short, with a future": {func(ctx context.Context) error {
			_, err := short.Go(ctx, group[0], "worker1", args).Wait(ctx)
			return err
		}, 15},
		"operator": {func(ctx context.Context) error {
			_, err := group[0].Op(ctx, "worker1", "aten::add", args.A, args.B)
			return err
		}, 14},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			allocations := testing.AllocsPerRun(2000, func() { require.NoError(t, c.call(ctx)) })
			t.Logf("%.0f allocations for a call", allocations)
			require.LessOrEqual(t, allocations, c.most)
		})
	}
}
