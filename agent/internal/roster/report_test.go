package roster

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// A member that waits for others reports the ranks that are missing after firstReport, and again only
// if they have changed, and not within nextReport of the last report.
func TestReportsOfWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory(store.Limits{})
		defer func() { require.NoError(t, s.Close()) }()
		type report struct {
			after   time.Duration
			missing string
		}
		var reports []report
		begun := time.Now()
		first := worker("a", 0)
		first.Waiting = func(missing string) { reports = append(reports, report{time.Since(begun), missing}) }
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		joins := []<-chan joined{startJoin(ctx, s, first, 4)}
		for i, after := range []time.Duration{3 * time.Second, 40 * time.Second} {
			<-time.NewTimer(time.Until(begun.Add(after))).C
			joins = append(joins, startJoin(ctx, s, worker(string(rune('b'+i)), i+1), 4))
		}
		<-time.NewTimer(time.Until(begun.Add(time.Minute))).C
		joins = append(joins, startJoin(ctx, s, worker("d", 3), 4))
		for _, join := range joins {
			mustJoin(t, join)
		}
		require.Len(t, reports, 3, reports)
		require.Equal(t, "ranks 1, 2, 3 of 4 have not joined", reports[0].missing)
		require.GreaterOrEqual(t, reports[0].after, firstReport)
		require.Less(t, reports[0].after, 2*firstReport)
		require.Equal(t, "ranks 2, 3 of 4 have not joined", reports[1].missing)
		require.GreaterOrEqual(t, reports[1].after, firstReport+nextReport)
		require.Less(t, reports[1].after, 2*nextReport)
		require.Equal(t, "rank 3 of 4 has not joined", reports[2].missing)
		require.Less(t, reports[2].after, time.Minute)
	})
}
