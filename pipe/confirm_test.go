package pipe

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestIntervalSet checks intervalSet with random numbers: added in any order, they are removed in
// ascending order, and the set has one entry for each interval.
func TestIntervalSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SliceOfNDistinct(rapid.Uint64Range(0, 40), 0, 40, rapid.ID).Draw(t, "numbers")
		var r intervalSet
		in := map[uint64]bool{}
		for _, n := range numbers {
			r.add(n)
			in[n] = true
		}
		intervals := 0
		for n := range uint64(42) {
			if in[n] && (n == 0 || !in[n-1]) {
				intervals++
			}
		}
		require.Len(t, r.ends, intervals)
		require.Len(t, r.starts, intervals)
		for n := uint64(0); n < 42; n++ {
			for end := r.removeRun(n); n < end; n++ {
				require.True(t, in[n], "%d", n)
			}
			require.False(t, in[n], "%d", n)
		}
		require.Empty(t, r.ends)
		require.Empty(t, r.starts)
	})
}
