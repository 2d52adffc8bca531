package agent_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// Answers are forgotten in the order in which they were given.
func TestOnceIsBounded(t *testing.T) {
	runs := 0
	ran := agent.NewFunc[agent.None, int]("test.ran")
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.MaxHandlers, c.Limits.Remembered = 1, 3
		c.Funcs = agent.Funcs{ran.Serve(func(context.Context, agent.None) (int, error) { runs++; return runs, nil }, agent.Once())}
	})
	for _, c := range []struct{ key, want int }{{1, 1}, {2, 2}, {3, 3}, {1, 1}, {4, 4}, {2, 2}, {3, 3}, {1, 5}, {2, 6}} {
		n, err := ran.Call(t.Context(), group[0], "worker1", agent.None{}, agent.Idempotent(strconv.Itoa(c.key)))
		require.NoError(t, err)
		require.Equal(t, c.want, n)
	}
}
