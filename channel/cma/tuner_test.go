package cma

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// learn simulates a pool that copies the given number of chunks with one worker or, if p allows it,
// with two. A chunk takes the time alone with one worker and the time together with two. It returns
// the number of chunks for which p allowed two.
func learn(p *tuner, alone, together time.Duration, chunks int) (concurrent int) {
	for range chunks {
		k, took := 1, alone
		if p.allow(1) {
			k, took = 2, together
			concurrent++
		}
		p.countChunk()
		p.record(k, chunkSize, took)
	}
	return concurrent
}

func TestTunerWithSaturatedMemory(t *testing.T) {
	var p tuner
	few := learn(&p, time.Millisecond, 1800*time.Microsecond, 10*explorePeriod)
	require.LessOrEqual(t, few, 10*exploreChunks)
	require.Greater(t, few, 5*exploreChunks, "it keeps looking whether two would do better")
}

func TestTunerWithScalingMemory(t *testing.T) {
	var p tuner
	many := learn(&p, time.Millisecond, 1100*time.Microsecond, 10*explorePeriod)
	require.Greater(t, many, 9*explorePeriod)
	require.Less(t, many, 10*explorePeriod, "it keeps looking whether one would do")
}

func TestTunerAdapts(t *testing.T) {
	var p tuner
	learn(&p, time.Millisecond, 1800*time.Microsecond, 5*explorePeriod)
	learn(&p, time.Millisecond, 1100*time.Microsecond, 20*explorePeriod)
	require.Greater(t, learn(&p, time.Millisecond, 1100*time.Microsecond, explorePeriod), explorePeriod-exploreChunks-1)
	learn(&p, time.Millisecond, 1900*time.Microsecond, 20*explorePeriod)
	require.Less(t, learn(&p, time.Millisecond, 1900*time.Microsecond, explorePeriod), exploreChunks+1)
}

// The tuner always allows a first worker, whatever rates were recorded.
func TestTunerAlwaysAllowsOne(t *testing.T) {
	var p tuner
	for range 3 * explorePeriod {
		require.True(t, p.allow(0))
		p.countChunk()
		p.record(1, chunkSize, time.Millisecond)
		p.record(2, chunkSize, time.Second)
	}
}
