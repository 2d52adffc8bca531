package dist_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
)

// TestCreatorGone ends the worker of a Context that others take part in, in order: the Context ends on all
// others. TestKilled has the other ends.
func TestCreatorGone(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, g *group){
		"leaves": func(t *testing.T, g *group) { require.NoError(t, g.agents[1].Shutdown(t.Context())) },
		"closes": func(t *testing.T, g *group) { require.NoError(t, g.agents[1].Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := start(t, 4, dynamic)
				for range 2 { // one of them is closed in order
					ctx, c, err := dist.WithContext(t.Context(), g.agents[1])
					require.NoError(t, err)
					z, err := relay.Call(ctx, g.agents[1], "worker2", viaArgs{[]string{"worker3", "worker0"}, pair{parameter(1, 2), parameter(2, 2)}})
					require.NoError(t, err)
					require.NoError(t, c.Backward(ctx, sum(t, ctx, z)))
				}
				end(t, g)
				sleep(time.Second)
				for _, rank := range []int{0, 2, 3} {
					require.Equal(t, empty, g.graphs[rank].Metrics(), "worker%d", rank)
				}
				g.inContext(func(ctx context.Context, c *dist.Context) {
					x := parameter(3, 2)
					z, err := relay.Call(ctx, g.agents[0], "worker2", viaArgs{[]string{"worker3"}, pair{x, x}})
					require.NoError(t, err)
					require.NoError(t, c.Backward(ctx, sum(t, ctx, z)))
					requireGradient(t, 6, c, x)
				})
			})
		})
	}
}

// dynamic makes a group dynamic.
func dynamic(_ int, c *agent.Config, _ *dist.Options) { c.Rank, c.WorldSize = -1, 0 }

// TestOriginGone ends a worker that has begun a pass in the Context of another one: the pass ends, and the
// Context can be used again.
func TestOriginGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newCustom() // its channels must belong to the bubble, where time would not pass otherwise
		g := start(t, 3, b.configure)
		g.inContext(func(ctx context.Context, c *dist.Context) {
			root, err := total.Call(ctx, g.agents[0], "worker1", parameter(3, 2))
			require.NoError(t, err)
			there, err := c.ID().Context(g.agents[1])
			require.NoError(t, err)
			z, err := b.f.Call(there.In(t.Context()), g.agents[1], "worker0", parameter(2, 2))
			require.NoError(t, err)
			theirs := sum(t, t.Context(), z)
			go func() { _ = there.Backward(t.Context(), theirs) }()
			<-b.entered // on worker0, in the pass of worker1
			require.ErrorIs(t, c.Backward(ctx, root), dist.ErrRunning)
			require.NoError(t, g.agents[1].Close())
			g.graphs = []*dist.Autograd{g.graphs[0], g.graphs[2]}
			g.requireNoPass()
			err = c.Backward(ctx, root)
			require.ErrorContains(t, err, "worker1")
			require.NotErrorIs(t, err, dist.ErrRunning)
		})
	})
}
