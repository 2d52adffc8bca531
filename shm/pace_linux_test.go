package shm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A pause is a part of the time for which nothing came, between two bounds.
func TestPace(t *testing.T) {
	const spin, longest = 100 * time.Microsecond, 10 * time.Millisecond
	p := newPace(spin, longest)
	for _, c := range []struct {
		quiet time.Duration
		hasty bool
		pause time.Duration
	}{
		{0, true, firstPause},
		{spin - 1, true, firstPause},
		{spin, false, firstPause},
		{640 * time.Microsecond, false, firstPause},
		{64 * time.Millisecond, false, time.Millisecond},
		{640 * time.Millisecond, false, longest},
		{time.Hour, false, longest},
	} {
		p.now = p.last.Add(c.quiet)
		require.Equal(t, c.hasty, p.hasty(), c.quiet)
		require.Equal(t, c.pause, p.pause(), c.quiet)
	}
	p.look(false)
	before := p.last
	p.look(true)
	require.True(t, p.last.After(before) && p.hasty())
}

// An alarm that rang before the rest ends it too, and only one.
func TestAlarm(t *testing.T) {
	a, err := newAlarm()
	require.NoError(t, err)
	defer a.close()
	a.ring()
	a.ring()
	require.True(t, a.rest(time.Hour))
	require.False(t, a.rest(time.Microsecond))
	go a.ring()
	require.True(t, a.rest(time.Hour))
}

// An idle transport takes less than a hundredth of a core, at the most that a look
// costs.
func TestIdleTransportLooksSeldom(t *testing.T) {
	const look = 170 * time.Microsecond
	require.Less(t, 100*look, New().pause)
}

func TestPauseIsBounded(t *testing.T) {
	require.Equal(t, firstPause, New(WithPause(0)).pause)
	require.Equal(t, time.Second, New(WithPause(time.Second)).pause)
}
