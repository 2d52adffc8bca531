package pipe

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tensorpipe-go/tensorpipe/internal/budget"
)

// However the shares of messages are put together and taken apart, all of them
// come back.
func TestSharesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := room{own: budget.New(1000), shared: budget.New(rapid.IntRange(1, 300).Draw(t, "shared"))}
		var block share
		var rest []share
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 100), 1, 10).Draw(t, "messages") {
			if !r.own.TryAcquire(n) || !r.shared.TryAcquire(r.sharedCost(n)) {
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
		require.Zero(t, r.own.InUse())
		require.Zero(t, r.shared.InUse())
	})
}
