package agent_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// Limits of math.MaxInt do not overflow: several calls, and several large calls of a handler, run
// at once.
func TestMaxIntLimits(t *testing.T) {
	const calls = 3
	g := newGate()
	large := filled(t, 1, 1<<20)
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Limits = agent.Limits{
			CallBytes: math.MaxInt, LargeBytes: math.MaxInt,
			MaxRemembered: math.MaxInt, MessageBytes: math.MaxInt,
		}
		c.Funcs = agent.Funcs{blocked.Serve(g.serve), fanOut.Serve(func(ctx context.Context, n int) (int, error) {
			var begun []*agent.Future[agent.None]
			for range n {
				begun = append(begun, blocked.Go(ctx, agent.FromContext(ctx), "worker1", large))
			}
			_, err := future.WaitAll(ctx, begun...)
			return n, err
		})}
	})
	var begun []*agent.Future[agent.None]
	for range calls {
		begun = append(begun, blocked.Go(t.Context(), group[0], "worker1", nil))
	}
	nested := fanOut.Go(t.Context(), group[0], "worker0", calls)
	for _, call := range begun {
		for _, ended := range []<-chan struct{}{call.Done(), nested.Done()} {
			select {
			case <-g.begun:
			case <-ended: // as none does yet
			}
		}
	}
	close(g.proceed)
	_, err := future.WaitAll(t.Context(), begun...)
	require.NoError(t, err)
	_, err = nested.Wait(t.Context())
	require.NoError(t, err)
}
