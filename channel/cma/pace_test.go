package cma

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// learn lets a crew of two copy for a while: a chunk takes one worker alone time
// alone, and each of two together time together. It returns how many chunks began
// beside another.
func learn(p *pace, alone, together time.Duration, chunks int) (beside int) {
	for range chunks {
		k, took := 1, alone
		if p.another(1) {
			k, took = 2, together
			beside++
		}
		p.turn()
		p.note(k, chunk, took)
	}
	return beside
}

func TestPaceOfMemoryThatOneUsesUp(t *testing.T) {
	var p pace
	few := learn(&p, time.Millisecond, 1800*time.Microsecond, 10*tryEvery)
	require.LessOrEqual(t, few, 10*tryFor)
	require.Greater(t, few, 5*tryFor, "it keeps looking whether two would do better")
}

func TestPaceOfMemoryThatTwoCopyFaster(t *testing.T) {
	var p pace
	many := learn(&p, time.Millisecond, 1100*time.Microsecond, 10*tryEvery)
	require.Greater(t, many, 9*tryEvery)
	require.Less(t, many, 10*tryEvery, "it keeps looking whether one would do")
}

func TestPaceChangesItsMind(t *testing.T) {
	var p pace
	learn(&p, time.Millisecond, 1800*time.Microsecond, 5*tryEvery)
	learn(&p, time.Millisecond, 1100*time.Microsecond, 20*tryEvery)
	require.Greater(t, learn(&p, time.Millisecond, 1100*time.Microsecond, tryEvery), tryEvery-tryFor-1)
	learn(&p, time.Millisecond, 1900*time.Microsecond, 20*tryEvery)
	require.Less(t, learn(&p, time.Millisecond, 1900*time.Microsecond, tryEvery), tryFor+1)
}

// The first one never waits, whatever has been learned.
func TestPaceLetsOneWork(t *testing.T) {
	var p pace
	for range 3 * tryEvery {
		require.True(t, p.another(0))
		p.turn()
		p.note(1, chunk, time.Millisecond)
		p.note(2, chunk, time.Second)
	}
}
