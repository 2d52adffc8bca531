package wait

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Two spins without input, soon after each other, make the next ones yield to threads.
func TestCrowd(t *testing.T) {
	var c crowd
	spin := func(found bool) (yields bool) {
		c.begin()
		yields = c.yields()
		if !found {
			c.failed()
		}
		return yields
	}
	for range 3 {
		require.False(t, spin(false))
		for range nearFailures {
			require.False(t, spin(true), "a single one without input")
		}
	}
	require.False(t, spin(false))
	require.False(t, spin(true))
	require.False(t, spin(false))
	for i := range crowdedSpins - 1 {
		require.True(t, spin(true), i)
	}
	require.False(t, spin(true), "to find out whether it is still necessary")
}
