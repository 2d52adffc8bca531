package wait

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// If the peer shares the processor, a poller yields at once, and from time to time moves to another
// processor.
func TestPlacement(t *testing.T) {
	var a placement
	require.Equal(t, pollsBeforeYield, a.polls())
	moves := []int(nil)
	for i := range 3 * maxAnswersToMove {
		if a.late(1, 0) {
			moves = append(moves, i)
			require.Equal(t, pollsBeforeYield, a.polls(), "the peer may be on another processor now")
		}
		if a.run >= yieldedAnswers {
			require.Zero(t, a.polls())
		}
	}
	require.Equal(t, minAnswersToMove-1, moves[0])
	require.Equal(t, 2*minAnswersToMove, moves[1]-moves[0])
	require.Equal(t, maxAnswersToMove, moves[len(moves)-1]-moves[len(moves)-2])

	a.late(2, 0)
	require.Equal(t, pollsBeforeYield, a.polls(), "the peer does not share this processor")
	for range yieldedAnswers {
		a.late(1, 0)
	}
	for limit := a.limit; limit > 0; limit-- {
		require.Equal(t, limit, a.limit)
		a.early()
		require.Zero(t, a.run)
	}
	require.Equal(t, placement{}, a)
}

// After long yields the thread moves at once. If that does not help, it moves more and more rarely.
func TestPlacementAfterLongYield(t *testing.T) {
	var a placement
	require.True(t, a.late(3, minAnswersToMove*quickAnswer))
	require.False(t, a.late(1, minAnswersToMove*quickAnswer))
	require.True(t, a.late(1, minAnswersToMove*quickAnswer))
	moves := 0
	for range 1000 {
		if a.late(1, 100*time.Microsecond) {
			moves++
		}
	}
	require.InDelta(t, 1000*26/maxAnswersToMove, moves, 5)
	require.False(t, a.late(2, slowYield-1))
	require.Zero(t, a.run, "another thread has run")
}

// If all processors are busy with other work, so that changes come early or after another thread's
// time slice, the thread rarely moves.
func TestPlacementOnBusyMachine(t *testing.T) {
	var a placement
	moves := 0
	for range 1000 {
		a.early()
		if a.late(1, 3*time.Millisecond) {
			moves++
		}
	}
	require.LessOrEqual(t, moves, 10)
}

// If other threads run in the first yields of spins, a poller polls less before it yields.
func TestPlacementOfMoreSpinnersThanProcessors(t *testing.T) {
	var a placement
	for range crowdedYields - 1 {
		a.yielded(switchedYield)
	}
	a.yielded(switchedYield - 1)
	require.Equal(t, pollsBeforeYield, a.polls(), "too few yields")
	a.yielded(switchedYield)
	require.Equal(t, pollsIfCrowded, a.polls())
	for range 8 - crowdedYields {
		require.Equal(t, pollsIfCrowded, a.polls())
		a.yielded(0)
	}
	a.yielded(0)
	require.Equal(t, pollsBeforeYield, a.polls(), "the others have gone")
	for range yieldedAnswers {
		a.yielded(switchedYield)
		a.late(1, 0)
	}
	require.Zero(t, a.polls(), "the peer shares this processor")
}

// A MemoryPoller finds a change that comes soon without a yield.
func TestMemoryPollerPollsBeforeItYields(t *testing.T) {
	m := NewMemoryPoller(time.Hour)
	yields, polls := 0, 0
	m.spinner.yield = func() { yields++ }
	m.spinner.now = func() time.Duration { return 0 } // no yield takes long
	for range exclusiveAfter + 1 {
		m.Arrived()
	}
	require.True(t, m.Poll(func() bool { polls++; return polls == pollsBeforeYield }))
	require.Zero(t, yields)
	for range yieldedAnswers {
		polls = 0
		require.True(t, m.Poll(func() bool { polls++; return polls == pollsBeforeYield+1 }))
	}
	require.Equal(t, yieldedAnswers, yields)
	require.True(t, m.Poll(func() bool { return yields > yieldedAnswers }), "it yields at once")
}
