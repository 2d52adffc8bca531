package dist_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
)

// TestCleanupGathers checks that the clean-up of Contexts that are closed shortly after each other is one
// message for each worker.
func TestCleanupGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var messages atomic.Int64
		count := func(_ int, c *agent.Config, _ *dist.Options) {
			c.Interceptors = append(c.Interceptors, agent.Interceptor{
				Received: func(ctx context.Context, m *agent.Message) (context.Context, error) {
					if m.Type == "dist.cleanup" && m.Kind == agent.KindRequest {
						messages.Add(1)
					}
					return ctx, nil
				},
			})
		}
		run(t, 2, count, func(t *testing.T, g *group) {
			for range 4 {
				for range 10 {
					g.inContext(func(ctx context.Context, _ *dist.Context) {
						_, err := mul.Call(ctx, g.agents[0], "worker1", pair{parameter(2, 1), parameter(5, 1)})
						require.NoError(t, err)
					})
				}
				<-time.NewTimer(time.Millisecond).C
			}
			g.requireEmpty()
			require.EqualValues(t, 1, messages.Load())
		})
	})
}
