package agent_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// What a small call may take at both ends together. The two tensors that come, the one that
// the handler makes and the one that comes back take one each. A call that is not waited for
// takes seven more for its future, its timer and the watch on its context.
func TestSmallCallAllocates(t *testing.T) {
	if race.Enabled || invariants.Enabled {
		t.Skip("the race detector and the invariants allocate themselves")
	}
	short := agent.NewFunc[pair, *tensor.Tensor]("test.short")
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Funcs = agent.Funcs{add.Serve(addTensors), short.Serve(addTensors, agent.Short())}
	})
	args := pair{filled(t, 1, 2, 2), filled(t, 2, 2, 2)}
	for name, c := range map[string]struct {
		call func(context.Context) error
		most float64
	}{
		"short": {func(ctx context.Context) error { _, err := short.Call(ctx, group[0], "worker1", args); return err }, 8},
		"plain": {func(ctx context.Context) error { _, err := add.Call(ctx, group[0], "worker1", args); return err }, 10},
		"short, not waited for": {func(ctx context.Context) error {
			_, err := short.Go(ctx, group[0], "worker1", args).Wait(ctx)
			return err
		}, 15},
		"operator": {func(ctx context.Context) error {
			_, err := group[0].Op(ctx, "worker1", "aten::add", args.A, args.B)
			return err
		}, 14},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			allocations := testing.AllocsPerRun(2000, func() { require.NoError(t, c.call(ctx)) })
			t.Logf("%.0f allocations for a call", allocations)
			require.LessOrEqual(t, allocations, c.most)
		})
	}
}
