package train

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
)

// startNetwork returns a group, the default network on it, and the first batch.
func startNetwork(t testing.TB) (*group, *network, Digits) {
	t.Helper()
	g := start(t, Files{})
	n, err := newNetwork(t.Context(), g.agents[0], Config{Hidden: 128, Batch: 32, LR: 0.1})
	require.NoError(t, err)
	training, _, err := Load()
	require.NoError(t, err)
	batches, err := training.batches(32)
	require.NoError(t, err)
	return g, n, batches[0]
}

// TestStepCalls checks that a step takes seven calls: one on each stage for the forward pass, one for
// each message with gradients, and one of the optimizer on each stage.
func TestStepCalls(t *testing.T) {
	g, n, d := startNetwork(t)
	_, err := n.step(t.Context(), d) // waits until the optimizer has been made
	require.NoError(t, err)
	before := g.requests.Load()
	for range 10 {
		_, err := n.step(t.Context(), d)
		require.NoError(t, err)
	}
	require.EqualValues(t, 10*7, g.requests.Load()-before)
	require.NoError(t, n.release(t.Context()))
	g.shutdown(t)
}

// maxStepAllocations bounds the allocations of one step on all workers together. There are 390 to 411, which depends on
// how many messages are under way at a time.
const maxStepAllocations = 440

// TestStepAllocates bounds the allocations of one step on all three workers together.
func TestStepAllocates(t *testing.T) {
	if race.Enabled || invariants.Enabled {
		t.Skip("the race detector and the invariants allocate themselves")
	}
	g, n, d := startNetwork(t)
	allocations := testing.AllocsPerRun(500, func() {
		_, err := n.step(t.Context(), d)
		require.NoError(t, err)
	})
	t.Logf("%.0f allocations for a step", allocations)
	require.LessOrEqual(t, allocations, float64(maxStepAllocations))
	require.NoError(t, n.release(t.Context()))
	g.shutdown(t)
}

// BenchmarkStep measures a step of the default network, with all workers in this process.
func BenchmarkStep(b *testing.B) {
	g, n, d := startNetwork(b)
	b.ReportAllocs()
	for b.Loop() {
		_, err := n.step(b.Context(), d)
		require.NoError(b, err)
	}
	require.NoError(b, n.release(b.Context()))
	g.shutdown(b)
}
