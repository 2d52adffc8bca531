package shm

import (
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
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

// After a peer has corrupted the ring the reactor wakes all its connections at each poll. It then makes pauses, also with
// busy polling: otherwise one peer would make all connections run without end.
func TestBrokenReactorPauses(t *testing.T) {
	r, err := newReactor()
	require.NoError(t, err)
	defer r.close()
	r.broken.Store(true)
	r.startPolling(math.MaxInt64, time.Millisecond)
	defer r.stopPolling()
	for begin := time.Now(); !r.sleeping.Load(); runtime.Gosched() {
		require.Less(t, time.Since(begin), testwait.Limit, "it never pauses")
	}
}

// With busy polling the reactor polls without end if the process has other processors for the sockets.
func TestSpinForTriggers(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	require.Equal(t, time.Duration(math.MaxInt64), spinForTriggers(wait.Config{Spin: wait.Spin, Busy: true}))
	require.Equal(t, wait.Spin, spinForTriggers(wait.Config{Spin: wait.Spin}))
	runtime.GOMAXPROCS(1)
	require.Equal(t, wait.Spin, spinForTriggers(wait.Config{Spin: wait.Spin, Busy: true}))
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
