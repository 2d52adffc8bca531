package pipe

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/quota"
)

// TestEventsOfWriterBlockedByQuota checks that a writer that waits for the quota of unadmitted
// peers is reported to WriterBlocked with the duration of the wait, and one that need not wait is
// not.
func TestEventsOfWriterBlockedByQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const wait = time.Second
		pool := quota.New(100)
		evicted := func() {}
		holder := pool.Open(evicted)
		holder.Add(101) // more than there is

		var blocked []BlockedInfo
		p := &Pipe{account: pool.Open(evicted), id: PipeID{Number: 7}}
		p.events = &Events{WriterBlocked: func(i BlockedInfo) { blocked = append(blocked, i) }}
		time.AfterFunc(wait, holder.Close)
		require.True(t, p.awaitQuota())
		require.Len(t, blocked, 1)
		require.Equal(t, PipeID{Number: 7}, blocked[0].Pipe)
		require.Equal(t, BudgetUnadmitted, blocked[0].Budget)
		require.Equal(t, wait, blocked[0].Duration)
		require.True(t, blocked[0].Acquired)
		require.True(t, p.awaitQuota())
		require.Len(t, blocked, 1)
	})
}
