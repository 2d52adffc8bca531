package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
)

// peers.set reads the members with the lock held: a call that read an older list cannot store it
// after a call that read a newer one.
func TestMembersReadUnderLock(t *testing.T) {
	var table peers
	create := func(m roster.Member) *peer {
		return &peer{member: m, info: WorkerInfo{Name: m.Name, Rank: m.Rank}}
	}
	took := make(chan struct{})
	newer := func() []roster.Member { return []roster.Member{{Name: "new", Rank: 1}} }
	table.set(func() []roster.Member {
		if table.mu.TryLock() { // another call could read the members now
			table.mu.Unlock()
			table.set(newer, create)
			close(took)
		} else {
			go func() {
				table.set(newer, create)
				close(took)
			}()
		}
		return []roster.Member{{Name: "old", Rank: 0}}
	}, create)
	<-took
	require.NotNil(t, table.find("new"))
	require.NotNil(t, table.find(Rank(1)))
	require.Nil(t, table.find("old"))
	require.Nil(t, table.find(Rank(0)))
}
