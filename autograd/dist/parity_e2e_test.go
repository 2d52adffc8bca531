package dist_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// trainingIterations is the number of passes for each worker that is called.
const trainingIterations = 4

// TestParityEndToEnd has the loop of PyTorch's test in C++: two workers that find each other through a
// store over TCP, and are connected by the default transports. The first one calls the second one, and
// then itself.
func TestParityEndToEnd(t *testing.T) {
	parity.Case(t, "e2e/TestE2ETensorPipe.training_loop", func(t *testing.T) {
		address := freeport.Addr(t)
		g := start(t, 2, func(_ int, c *agent.Config, _ *dist.Options) {
			c.Store, c.Rendezvous = nil, "tcp://"+address
			c.NewContext, c.Listen = nil, nil
		})
		t1, t2 := parameter(1, 3, 3), parameter(1, 3, 3)
		for _, to := range []agent.To{"worker1", "worker0"} {
			for range trainingIterations {
				g.inContext(func(ctx context.Context, c *dist.Context) { trainingLoop(t, ctx, c, g.agents[0], to, t1, t2) })
			}
		}
		g.requireEmpty()
		g.shutdown()
		for i, a := range g.agents {
			require.Zero(t, a.Metrics().PendingCalls)
			require.Equal(t, noRefs, g.refs[i].Metrics())
		}
	})
}

// trainingLoop adds y and six times x on the worker to, and x once more by a reference, and requires the
// gradients of the sum.
func trainingLoop(t *testing.T, ctx context.Context, c *dist.Context, a *agent.Agent, to agent.To, x, y variable) {
	add := func(x, y variable) variable {
		z, err := agent.One[variable](a.Op(ctx, to, "aten::add.Tensor", x, y, agent.Named{"alpha": 1}))
		require.NoError(t, err)
		return z
	}
	result := add(x, y)
	for range 5 {
		result = add(x, result)
	}
	f := rref.RemoteOp[variable](ctx, a, to, "aten::add.Tensor", x, result, agent.Named{"alpha": 1})
	result, err := f.ToHere(ctx)
	require.NoError(t, err)
	requireFilled(t, 8, result.Value())
	require.NoError(t, c.Backward(ctx, sum(t, ctx, result)))
	grads := c.Gradients()
	require.Len(t, grads, 2)
	requireSame(t, constant(7, 3, 3).Value(), grads[x])
	requireSame(t, constant(1, 3, 3).Value(), grads[y])
	require.NoError(t, f.Release(ctx))
}
