package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// Workers meet although all the handlers of the one who leads them are at work.
func TestMeetingsNeedNoHandler(t *testing.T) {
	h := &hanging{}
	configure := func(rank int, c *agent.Config) { h.serve(rank, c); c.MaxHandlers = 1 }
	simulate(t, 3, configure, func(t *testing.T, group []*agent.Agent) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		hung := hang.Go(ctx, group[1], "worker0", agent.None{}, agent.Timeout(0))
		synctest.Wait()
		require.Equal(t, 1, group[0].Metrics().RunningHandlers)
		begun := time.Now()
		allWell(t, group, func(a *agent.Agent) error { return a.Barrier(t.Context()) })
		allWell(t, group, func(a *agent.Agent) error {
			all, err := agent.AllGather(t.Context(), a, a.Self().Rank)
			if err != nil {
				return err
			}
			return want(2, all["worker2"])
		})
		require.Zero(t, time.Since(begun))
		require.False(t, hung.IsDone())
	})
}
