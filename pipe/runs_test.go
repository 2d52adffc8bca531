package pipe

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Numbers come in any order, and out in theirs; neighbours count as one.
func TestRuns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SliceOfNDistinct(rapid.Uint64Range(0, 40), 0, 40, rapid.ID).Draw(t, "numbers")
		var r runs
		in := map[uint64]bool{}
		for _, n := range numbers {
			r.add(n)
			in[n] = true
		}
		count := 0
		for n := range uint64(42) {
			if in[n] && (n == 0 || !in[n-1]) {
				count++
			}
		}
		require.Len(t, r.ends, count)
		require.Len(t, r.starts, count)
		for n := uint64(0); n < 42; n++ {
			for end := r.take(n); n < end; n++ {
				require.True(t, in[n], "%d", n)
			}
			require.False(t, in[n], "%d", n)
		}
		require.Empty(t, r.ends)
		require.Empty(t, r.starts)
	})
}
