package pipe

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tensorpipe-go/tensorpipe/internal/budget"
)

// TestBudgetSharesAreReleased checks that no matter how shares of messages are split and added,
// releasing all of the resulting shares returns all bytes to both budgets.
func TestBudgetSharesAreReleased(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := writeBudget{own: budget.New(1000), shared: budget.New(rapid.IntRange(1, 300).Draw(t, "shared"))}
		var block budgetShare
		var remaining []budgetShare
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 100), 1, 10).Draw(t, "messages") {
			if !r.own.TryAcquire(n) || !r.shared.TryAcquire(r.sharedCost(n)) {
				t.Skip("it would wait")
			}
			taken, left := r.shareOf(n).split(rapid.IntRange(0, 120).Draw(t, "head"))
			block.add(taken)
			remaining = append(remaining, left)
		}
		r.releaseShare(block)
		for _, s := range remaining {
			r.releaseShare(s)
		}
		require.Zero(t, r.own.InUse())
		require.Zero(t, r.shared.InUse())
	})
}
