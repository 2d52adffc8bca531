package roster

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRemoved tests that a member that was removed can be distinguished from one that has left and
// from one that was replaced, and that only the latest 64 removed ones are remembered.
func TestRemoved(t *testing.T) {
	forEachStore(t, func(t *testing.T, open openFunc) {
		r := mustJoinDynamic(t, open(), worker("a", 0))
		leaving, removed, replaced := worker("b", -1), worker("c", -1), worker("d", -1)
		left := mustJoinDynamic(t, open(), leaving)
		other := mustJoinDynamic(t, open(), removed)
		mustJoinDynamic(t, open(), replaced)
		require.NoError(t, r.Refresh(t.Context()))
		require.NoError(t, left.Leave(t.Context()))
		require.NoError(t, r.Remove(t.Context(), "c", removed.Incarnation))
		next := restartedMember(replaced)
		next.Replace = true
		mustJoinDynamic(t, open(), next)
		require.NoError(t, r.Refresh(t.Context()))
		require.False(t, r.Removed(leaving.Incarnation))
		require.True(t, r.Removed(removed.Incarnation))
		require.False(t, r.Removed(replaced.Incarnation))
		require.ErrorIs(t, other.Refresh(t.Context()), ErrRemoved)
		require.True(t, other.Removed(removed.Incarnation), "the removed member itself")

		var all []Incarnation
		for i := range maxRemoved {
			m := worker(fmt.Sprint("x", i), -1)
			mustJoinDynamic(t, open(), m)
			all = append(all, m.Incarnation)
		}
		require.NoError(t, r.Refresh(t.Context()))
		for i, id := range all {
			require.NoError(t, r.Remove(t.Context(), fmt.Sprint("x", i), id))
			require.NoError(t, r.Remove(t.Context(), fmt.Sprint("x", i), id), "again")
		}
		require.NoError(t, r.Refresh(t.Context()))
		for _, id := range all {
			require.True(t, r.Removed(id))
		}
		require.False(t, r.Removed(removed.Incarnation), "the oldest")
	})
}

// TestInvalidRemovedList tests that Remove fails with ErrCorrupt, and removes no member, if the
// store has an invalid list of removed members.
func TestInvalidRemovedList(t *testing.T) {
	open := memoryStore(t)
	a, b := worker("a", 0), worker("b", 1)
	r := mustJoinDynamic(t, open(), a)
	mustJoinDynamic(t, open(), b)
	for _, value := range [][]byte{{formatVersion}, {formatVersion, kindState}, append(begin(kindRemoved), 1, 2), append(begin(kindRemoved), maxRemoved+1)} {
		require.NoError(t, open().Set(t.Context(), r.groupAccess.removedKey(), value))
		require.ErrorIs(t, r.Remove(t.Context(), "b", b.Incarnation), ErrCorrupt)
	}
	require.NoError(t, r.Refresh(t.Context()))
	require.True(t, isCurrent(r, "b", b.Incarnation))
}
