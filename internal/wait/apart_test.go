package wait

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Who shares a processor with its peer yields at once, and now and then tries to
// get away.
func TestApart(t *testing.T) {
	var a apart
	require.Equal(t, eager, a.looks())
	moves := []int(nil)
	for i := range 3 * lastMove {
		if a.late(1, 0) {
			moves = append(moves, i)
			require.Equal(t, eager, a.looks(), "it may have a processor of its own now")
		}
		if a.run >= afterYield {
			require.Zero(t, a.looks())
		}
	}
	require.Equal(t, firstMove-1, moves[0])
	require.Equal(t, 2*firstMove, moves[1]-moves[0])
	require.Equal(t, lastMove, moves[len(moves)-1]-moves[len(moves)-2])

	a.late(2, 0)
	require.Equal(t, eager, a.looks(), "the peer did not wait for this processor")
	for range afterYield {
		a.late(1, 0)
	}
	for limit := a.limit; limit > 0; limit-- {
		require.Equal(t, limit, a.limit)
		a.early()
		require.Zero(t, a.run)
	}
	require.Equal(t, apart{}, a)
}

// Where somebody else ran for long within a yield it is time to move at once, and
// ever more seldom where that does not help.
func TestApartAfterALongYield(t *testing.T) {
	var a apart
	require.True(t, a.late(3, firstMove*answer))
	require.False(t, a.late(1, firstMove*answer))
	require.True(t, a.late(1, firstMove*answer))
	moves := 0
	for range 1000 {
		if a.late(1, 100*time.Microsecond) {
			moves++
		}
	}
	require.InDelta(t, 1000*26/lastMove, moves, 5)
	require.False(t, a.late(2, long-1))
	require.Zero(t, a.run, "that was another thread's moment")
}

// Where all processors are busy with others' work answers come early, or after somebody's
// turn, which no move changes.
func TestApartOnABusyMachine(t *testing.T) {
	var a apart
	moves := 0
	for range 1000 {
		a.early()
		if a.late(1, 3*time.Millisecond) {
			moves++
		}
	}
	require.LessOrEqual(t, moves, 10)
}

// An answer that is there soon takes no yield.
func TestMemoryLooksBeforeItYields(t *testing.T) {
	m := NewMemory(time.Hour)
	yields, looks := 0, 0
	m.spinner.yield = func() { yields++ }
	m.spinner.now = func() time.Duration { return 0 } // no yield takes long
	for range quiet + 1 {
		m.Came()
	}
	require.True(t, m.Find(func() bool { looks++; return looks == eager }))
	require.Zero(t, yields)
	for range afterYield {
		looks = 0
		require.True(t, m.Find(func() bool { looks++; return looks == eager+1 }))
	}
	require.Equal(t, afterYield, yields)
	require.True(t, m.Find(func() bool { return yields > afterYield }), "it yields at once")
}
