package dist

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// TestEndedContexts adds numbers in random order and compares with a map.
func TestEndedContexts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var e endedContexts
		want := map[cleanedContext]bool{}
		for range rapid.IntRange(0, 60).Draw(t, "additions") {
			c := cleanedContext{ID: ID(rapid.IntRange(0, 20).Draw(t, "id")), Creator: agent.Incarnation{rapid.Byte().Draw(t, "creator") & 1}}
			e.add(c.ID, c.Creator)
			want[c] = true
		}
		for id := range ID(23) {
			for creator := range byte(2) {
				c := cleanedContext{ID: id, Creator: agent.Incarnation{creator}}
				require.Equal(t, want[c], e.has(c.ID, c.Creator), "%v", c)
			}
		}
		for _, all := range e.ranges {
			for i, r := range all {
				require.True(t, r.first <= r.last && (i == 0 || all[i-1].last+1 < r.first), "%v", all)
			}
		}
	})
}

// TestEndedContextsAreBounded adds many Contexts: consecutive ones take one range, and others are forgotten,
// the oldest first.
func TestEndedContextsAreBounded(t *testing.T) {
	var e endedContexts
	mine := agent.Incarnation{1}
	for id := range ID(100_000) {
		e.add(id, mine)
	}
	require.Equal(t, []idRange{{0, 99_999}}, e.ranges[mine])
	for id := range ID(maxEndedRanges) {
		e.add(200_000+2*id, mine)
	}
	require.Len(t, e.ranges[mine], maxEndedRanges)
	require.False(t, e.has(1, mine))
	require.True(t, e.has(200_000, mine))
	for i := range maxEndedCreators {
		e.add(7, agent.Incarnation{2, byte(i), byte(i >> 8)})
	}
	require.Len(t, e.ranges, maxEndedCreators)
	require.False(t, e.has(200_000, mine))
}
