package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
)

// Who takes over the members of the group asks for them when nobody else can: another one
// could ask later and be through before, and what is older would stay.
func TestMembersAreAskedUnderTheLock(t *testing.T) {
	var table peers
	create := func(m roster.Member) *peer {
		return &peer{member: m, info: WorkerInfo{Name: m.Name, Rank: m.Rank}}
	}
	took := make(chan struct{})
	newer := func() []roster.Member { return []roster.Member{{Name: "new", Rank: 1}} }
	table.set(func() []roster.Member {
		if table.mu.TryLock() { // or somebody else could
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
