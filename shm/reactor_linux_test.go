package shm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A pause is a fraction of the time since the last trigger, between two bounds.
func TestPauses(t *testing.T) {
	const spin, longest = 100 * time.Microsecond, 10 * time.Millisecond
	p := newPace(spin, longest)
	for _, c := range []struct {
		quiet    time.Duration
		spinning bool
		pause    time.Duration
	}{
		{0, true, minPause},
		{spin - 1, true, minPause},
		{spin, false, minPause},
		{640 * time.Microsecond, false, minPause},
		{64 * time.Millisecond, false, time.Millisecond},
		{640 * time.Millisecond, false, longest},
		{time.Hour, false, longest},
	} {
		p.now = p.lastFound.Add(c.quiet)
		require.Equal(t, c.spinning, p.spinning(), c.quiet)
		require.Equal(t, c.pause, p.pause(), c.quiet)
	}
	p.polled(false)
	before := p.lastFound
	p.polled(true)
	require.True(t, p.lastFound.After(before) && p.spinning())
}

// A wake ends the sleep in progress, or the next one if there is none, but only one.
func TestSleeper(t *testing.T) {
	a, err := newSleeper()
	require.NoError(t, err)
	defer a.close()
	a.wake()
	a.wake()
	require.True(t, a.sleep(time.Hour))
	require.False(t, a.sleep(time.Microsecond))
	go a.wake()
	require.True(t, a.sleep(time.Hour))
}

// An idle transport takes less than a hundredth of a core, even if a poll is expensive.
func TestIdleTransportPollsRarely(t *testing.T) {
	const done = 170 * time.Microsecond
	require.Less(t, 100*done, New().pause)
}

func TestPauseIsBounded(t *testing.T) {
	require.Equal(t, minPause, New(WithPause(0)).pause)
	require.Equal(t, time.Second, New(WithPause(time.Second)).pause)
}
