package cma

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Where the pace lets two work they copy at the same time: none waits for the other's
// chunk.
func TestTwoWorkersCopyAtOnce(t *testing.T) {
	c := team(t, 2)
	c.alarm.init(func() {}) // which has another one begin where a chunk takes long
	c.pace.turns = tryFor   // nothing is known yet, so all may work
	w := Withhold(t, 2*chunk)
	j, _, done := copying(w.Memory)
	c.start(j)
	chunks := map[int]bool{}
	for range 2 {
		chunks[w.Touched(t)/chunk] = true
	}
	require.Len(t, chunks, 2)
	require.Empty(t, done)
	w.Release()
	require.NoError(t, <-done)
}
