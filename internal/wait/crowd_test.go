package wait

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Two spins without input, soon after each other, make the next ones yield to threads.
func TestCrowd(t *testing.T) {
	c, now := &crowd{}, time.Hour
	spin := func(found bool, after time.Duration) (yields bool) {
		c.begin()
		if now += after; !found {
			c.failed(now)
		}
		return c.yielding
	}
	for range 3 {
		require.False(t, spin(false, nearFailures))
		require.False(t, spin(true, time.Microsecond))
	}
	require.False(t, spin(false, nearFailures/2))
	for i := range crowdedSpins {
		require.True(t, spin(true, time.Microsecond), i)
	}
	require.False(t, spin(true, time.Microsecond), "to find out whether it is still necessary")
}

// Spins that lack input, as on a crowded machine, make later ones yield to threads.
func TestSpinsOnCrowdedMachine(t *testing.T) {
	s := newTestSpinner(100 * time.Microsecond).makeExclusive()
	s.crowd = &crowd{}
	for s.crowd.left == 0 {
		s.wait(0)
	}
	require.False(t, s.crowd.yielding)
	s.backoff = backoff{}
	succeeded, _ := s.wait(1)
	require.True(t, succeeded)
	require.True(t, s.crowd.yielding)
}
