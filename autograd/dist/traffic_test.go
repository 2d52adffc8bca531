package dist_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
)

// TestTraffic checks that each worker counts the gradients that it receives, by the shapes of the
// Variables in the messages to which they belong.
func TestTraffic(t *testing.T) {
	run(t, 2, nil, func(t *testing.T, g *group) {
		x, y := parameter(2, 3, 5), parameter(5, 3, 5)
		g.inContext(func(ctx context.Context, c *dist.Context) {
			z, err := mul.Call(ctx, g.agents[0], "worker1", pair{x, y})
			require.NoError(t, err)
			require.NoError(t, c.Backward(ctx, sum(t, ctx, z)))
		})
		require.Equal(t, dist.Traffic{Messages: 1, Bytes: 3 * 5 * 4}, g.graphs[1].Traffic(), "of the result")
		require.Equal(t, dist.Traffic{Messages: 1, Bytes: 2 * 3 * 5 * 4}, g.graphs[0].Traffic(), "of both arguments")
	})
}
