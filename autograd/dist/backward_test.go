package dist_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
)

// TestBackward checks gradients through calls of one and of several workers, and through a chain that
// comes back to the first one.
func TestBackward(t *testing.T) {
	run(t, 3, nil, func(t *testing.T, g *group) {
		x, y := parameter(2, 3, 3), parameter(5, 3, 3)
		g.inContext(func(ctx context.Context, c *dist.Context) {
			z, err := mul.Call(ctx, g.agents[0], "worker1", pair{x, y})
			require.NoError(t, err)
			require.True(t, z.RequiresGrad())
			require.NoError(t, c.Backward(ctx, sum(t, ctx, z)))
			requireGradient(t, 5, c, x)
			requireGradient(t, 2, c, y)
			require.True(t, x.Grad().IsZero(), "the gradient belongs to the Context")
		})
		g.inContext(func(ctx context.Context, c *dist.Context) {
			a, err := mul.Call(ctx, g.agents[0], "worker1", pair{x, y})
			require.NoError(t, err)
			b, err := mul.Call(ctx, g.agents[0], "worker2", pair{a, y})
			require.NoError(t, err)
			d, err := add.Call(ctx, g.agents[0], "worker0", pair{b, a})
			require.NoError(t, err)
			require.NoError(t, c.Backward(ctx, sum(t, ctx, d)))
			requireGradient(t, 30, c, x) // xyy + xy
			requireGradient(t, 22, c, y)
		})
		g.inContext(func(ctx context.Context, c *dist.Context) {
			z, err := relay.Call(ctx, g.agents[0], "worker1", viaArgs{[]string{"worker2", "worker0", "worker1"}, pair{x, y}})
			require.NoError(t, err)
			require.NoError(t, c.Backward(ctx, sum(t, ctx, z)))
			requireGradient(t, 5, c, x)
			requireGradient(t, 2, c, y)
		})
	})
}

// TestUnused checks that a pass fails at once with an error that names the call whose result it does not
// need, and that UnusedZero makes it go on.
func TestUnused(t *testing.T) {
	run(t, 3, nil, func(t *testing.T, g *group) {
		x, y := parameter(2, 2), parameter(5, 2)
		forward := func(ctx context.Context) *autograd.Variable {
			_, err := add.Call(ctx, g.agents[0], "worker1", pair{x, y}) // not used
			require.NoError(t, err)
			a, err := mul.Call(ctx, g.agents[0], "worker2", pair{x, y})
			require.NoError(t, err)
			return sum(t, ctx, a)
		}
		g.inContext(func(ctx context.Context, c *dist.Context) {
			begun := time.Now()
			err := c.Backward(ctx, forward(ctx))
			require.ErrorIs(t, err, dist.ErrUnused)
			require.ErrorContains(t, err, "the result of test.add for worker0, sent by worker1")
			t.Log("the error came after", time.Since(begun))
			require.ErrorIs(t, c.Backward(ctx, forward(ctx)), dist.ErrUnused, "another pass may be tried")
		})
		g.inContext(func(ctx context.Context, c *dist.Context) {
			require.NoError(t, c.BackwardWith(ctx, dist.PassOptions{UnusedZero: true}, forward(ctx)))
			requireGradient(t, 5, c, x)
			requireGradient(t, 2, c, y)
		})
		g.inContext(func(ctx context.Context, c *dist.Context) { // a function that does not use an argument
			z := parameter(7, 2)
			a, err := first.Call(ctx, g.agents[0], "worker1", pair{x, z})
			require.NoError(t, err)
			require.NoError(t, c.Backward(ctx, sum(t, ctx, a)))
			requireGradient(t, 1, c, x)
			requireGradient(t, 0, c, z)
		})
		g.inContext(func(ctx context.Context, c *dist.Context) { // or any
			_, err := ignoring.Call(ctx, g.agents[0], "worker1", pair{x, y})
			require.NoError(t, err)
			err = c.Backward(ctx, forward(ctx))
			require.ErrorIs(t, err, dist.ErrUnused)
			require.ErrorContains(t, err, "the arguments of test.ignoring on worker1, sent by worker0")
		})
	})
}

// TestPassErrors checks the errors of backward functions on other workers, of failed calls, and of a
// second pass.
func TestPassErrors(t *testing.T) {
	run(t, 3, nil, func(t *testing.T, g *group) {
		x, y := parameter(2, 2), parameter(5, 2)
		g.inContext(func(ctx context.Context, c *dist.Context) {
			a, err := broken.Call(ctx, g.agents[0], "worker1", x)
			require.NoError(t, err)
			b, err := mul.Call(ctx, g.agents[0], "worker2", pair{a, y})
			require.NoError(t, err)
			err = c.Backward(ctx, sum(t, ctx, b))
			var failed *dist.NodeError
			require.ErrorAs(t, err, &failed)
			require.Regexp(t, "Error on Node 1: .*simulate error on backward pass.*worker1", err.Error())
		})
		g.inContext(func(ctx context.Context, c *dist.Context) {
			_, err := failing.Call(ctx, g.agents[0], "worker1", pair{x, y})
			require.Error(t, err)
			a, err := mul.Call(ctx, g.agents[0], "worker1", pair{x, y})
			require.NoError(t, err)
			root := sum(t, ctx, a)
			require.NoError(t, c.Backward(ctx, root), "the failed call has no send node")
			requireGradient(t, 5, c, x)
			require.ErrorIs(t, c.Backward(ctx, root), autograd.ErrReleased)
		})
		g.inContext(func(ctx context.Context, c *dist.Context) {
			a, err := mul.Call(ctx, g.agents[0], "worker1", pair{x, y})
			require.NoError(t, err)
			root := sum(t, ctx, a)
			for i := range 3 {
				require.NoError(t, c.BackwardWith(ctx, dist.PassOptions{RetainGraph: true}, root))
				requireGradient(t, 5*float32(i+1), c, x)
			}
		})
	})
}

// TestConcurrentContexts runs passes through different Contexts at the same time.
func TestConcurrentContexts(t *testing.T) {
	run(t, 3, nil, func(t *testing.T, g *group) {
		y := parameter(3, 4)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				x := parameter(float32(i), 4)
				for range 10 {
					ctx, c, err := dist.WithContext(t.Context(), g.agents[i%3])
					if err != nil {
						t.Error(err)
						return
					}
					z, err := relay.Call(ctx, g.agents[i%3], agent.To([]string{"worker1", "worker2", "worker0"}[i%3]), viaArgs{[]string{"worker0", "worker2"}, pair{x, y}})
					if err == nil {
						z, err = autograd.Sum(ctx, z)
					}
					if err == nil {
						err = c.Backward(ctx, z)
					}
					if err != nil {
						t.Error(err)
					} else {
						requireGradient(t, 3, c, x)
						requireGradient(t, float32(i), c, y)
					}
					_ = c.Close()
				}
			})
		}
		wg.Wait()
	})
}
