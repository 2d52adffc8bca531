package pipe

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// However the shares of messages are put together and taken apart, all of them
// come back.
func TestSharesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := room{own: newBudget(1000), shared: newBudget(rapid.IntRange(1, 300).Draw(t, "shared"))}
		var block share
		var rest []share
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 100), 1, 10).Draw(t, "messages") {
			if !r.own.tryAcquire(n) || !r.shared.tryAcquire(r.sharedCost(n)) {
				t.Skip("it would wait")
			}
			part, left := r.shareOf(n).split(rapid.IntRange(0, 120).Draw(t, "head"))
			block.add(part)
			rest = append(rest, left)
		}
		r.giveBack(block)
		for _, s := range rest {
			r.giveBack(s)
		}
		require.Zero(t, r.own.inUse())
		require.Zero(t, r.shared.inUse())
	})
}
