package agent_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
)

// mostAllocations is what a small call may take at both ends together, of which the
// three tensors that are made at the other end of where they were take two each, and
// the result that the handler makes two.
const mostAllocations = 15

func TestSmallCallAllocates(t *testing.T) {
	if race.Enabled || invariants.Enabled {
		t.Skip("the race detector and the invariants allocate themselves")
	}
	group := startGroup(t, 2, serveAdd(agent.Short()))
	args := pair{filled(t, 1, 2, 2), filled(t, 2, 2, 2)}
	ctx := t.Context()
	allocations := testing.AllocsPerRun(2000, func() {
		_, err := add.Call(ctx, group[0], "worker1", args)
		require.NoError(t, err)
	})
	t.Logf("%.0f allocations for a call", allocations)
	require.LessOrEqual(t, allocations, float64(mostAllocations))
}
