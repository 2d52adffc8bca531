package agent_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// depth is how often a call calls on, from one worker to the next.
type depth struct{ Left, Workers int }

var descend = agent.NewFunc[depth, int]("test.descend")

// goDown calls the next worker until the depth is reached, and counts the way back.
func goDown(ctx context.Context, d depth) (int, error) {
	if d.Left == 0 {
		return 0, nil
	}
	a := agent.FromContext(ctx)
	next := agent.Rank((a.Self().Rank + 1) % d.Workers)
	n, err := descend.Call(ctx, a, next, depth{d.Left - 1, d.Workers})
	return n + 1, err
}

func oneHandler(funcs ...agent.Served) func(int, *agent.Config) {
	return func(_ int, c *agent.Config) { c.MaxHandlers, c.Funcs = 1, funcs }
}

// A place for a handler is free again when the handler has returned.
func TestSlotsComeBack(t *testing.T) {
	group := startGroup(t, 2, oneHandler(descend.Serve(goDown)))
	for range 20 {
		_, err := descend.Call(t.Context(), group[0], "worker1", depth{})
		require.NoError(t, err)
	}
}

// Calls within calls, around a ring of workers that run one handler each.
func TestNestedWithOneSlot(t *testing.T) {
	group := startGroup(t, 3, oneHandler(descend.Serve(goDown)))
	n, err := descend.Call(t.Context(), group[0], "worker1", depth{100, 3})
	require.NoError(t, err)
	require.Equal(t, 100, n)
}

// Handlers that all wait for each other at once.
func TestAllHandlersWait(t *testing.T) {
	group := startGroup(t, 3, oneHandler(descend.Serve(goDown)))
	var futures []*agent.Future[int]
	for i := range 60 {
		for _, a := range group {
			futures = append(futures, descend.Go(t.Context(), a, agent.Rank(i%3), depth{i % 7, 3}))
		}
	}
	for i, f := range futures {
		n, err := f.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, i/3%7, n)
	}
}
