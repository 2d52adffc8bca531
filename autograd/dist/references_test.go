package dist_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// TestBackwardWaitsForCreations checks that a pass begins after the answer to the call that has created
// a value, also if the value was fetched before, and that the wait ends with the context.Context.
func TestBackwardWaitsForCreations(t *testing.T) {
	late := []faulty.Rule{{Types: []string{"rref.create.*"}, Kinds: []agent.Kind{agent.KindReply}, Do: faulty.Delay(time.Second)}}
	synctest.Test(t, func(t *testing.T) {
		run(t, 2, func(_ int, c *agent.Config, _ *dist.Options) {
			f, err := faulty.New(faulty.Options{Rules: late})
			require.NoError(t, err)
			c.FaultHook = f.Inject
		}, func(t *testing.T, g *group) {
			x, y := parameter(2, 3), parameter(5, 3)
			g.inContext(func(ctx context.Context, c *dist.Context) {
				begun := time.Now()
				f := rref.RemoteOp[variable](ctx, g.agents[0], "worker1", "aten::mul", x, y)
				z, err := f.ToHere(ctx)
				require.NoError(t, err)
				require.Zero(t, time.Since(begun))
				root, why := sum(t, ctx, z), errors.New("stop")
				impatient, cancel := context.WithCancelCause(ctx)
				cancel(why)
				require.ErrorIs(t, c.Backward(impatient, root), why)
				require.NoError(t, c.Backward(ctx, root))
				require.Equal(t, time.Second, time.Since(begun))
				requireGradient(t, 5, c, x)
				requireGradient(t, 2, c, y)
				require.NoError(t, f.Release(ctx))
			})
			g.inContext(func(ctx context.Context, c *dist.Context) {
				f := rref.RemoteOp[variable](ctx, g.agents[0], "worker1", "aten::mul", x, y)
				z, err := f.ToHere(ctx)
				require.NoError(t, err)
				time.AfterFunc(time.Second/2, func() { _ = c.Close() })
				require.ErrorIs(t, c.Backward(ctx, sum(t, ctx, z)), dist.ErrNoContext, "Close ends the wait")
				require.NoError(t, f.Release(ctx))
				require.ErrorIs(t, dist.BackwardRef(ctx, nil, dist.PassOptions{}), dist.ErrRoots)
				_, err = dist.FromContext(t.Context()).Gradient(x)
				require.ErrorIs(t, err, dist.ErrNoContext)
			})
		})
	})
}
