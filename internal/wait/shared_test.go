package wait

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// testWaiter is a SharedWaiter that records the calls of its functions.
type testWaiter struct {
	*SharedWaiter
	readyAt  int // the poll from which on it is ready; 0: never
	polls    int
	woken    int
	requests []bool
}

func newTestWaiter(shared *sharedWaiters, readyAt int) *testWaiter {
	w := &testWaiter{readyAt: readyAt}
	ready := func() bool {
		w.polls++
		return w.readyAt > 0 && w.polls >= w.readyAt
	}
	w.SharedWaiter = NewSharedWaiter(ready, func() { w.woken++ }, func(on bool) { w.requests = append(w.requests, on) })
	w.shared = shared
	w.Begin()
	return w
}

// newSharedSpinner returns a spinner that may not spin alone, and its SharedWaiters.
func newSharedSpinner() (*testSpinner, *sharedWaiters) {
	s := newTestSpinner(100 * time.Microsecond)
	s.shared = &sharedWaiters{}
	return s, s.shared
}

// A goroutine that may not spin alone polls for all waiters, until one is ready, and wakes that. No peer is asked
// for a doorbell meanwhile, and those of the others are afterwards.
func TestSharedSpin(t *testing.T) {
	s, shared := newSharedSpinner()
	never, third := newTestWaiter(shared, 0), newTestWaiter(shared, 3)
	succeeded, polls := s.wait(0)
	require.False(t, succeeded, "the other one has input")
	require.Equal(t, []int{3, 3, 3}, []int{polls, never.polls, third.polls})
	require.Equal(t, 1, third.woken)
	require.Equal(t, []bool{false}, third.requests, "its goroutine asks again")
	require.Zero(t, never.woken)
	require.Equal(t, []bool{false, true}, never.requests)

	third.End()
	succeeded, polls = s.wait(4)
	require.True(t, succeeded)
	require.Equal(t, 4, polls)
	require.Equal(t, 3, third.polls, "it has ended")
	require.Equal(t, 6, never.polls, "not after the own input was found")
	require.Equal(t, []bool{false, true, false, true}, never.requests)
}

// A spin for all ends after its bound, and such spins become rare while they find nothing.
func TestSharedSpinIsBounded(t *testing.T) {
	s, shared := newSharedSpinner()
	w := newTestWaiter(shared, 0)
	for _, want := range []int{100, 0, 100, 0, 0, 100} {
		succeeded, polls := s.wait(0)
		require.False(t, succeeded)
		require.Equal(t, want, polls)
		require.True(t, w.requests[len(w.requests)-1])
	}
	stopped := false
	s.stop = func() bool { return stopped }
	s.backoff = backoff{}
	w.ready = func() bool { stopped = true; return false }
	_, polls := s.wait(0)
	require.Equal(t, 1, polls, "the reader was interrupted")
	_, polls = s.wait(0)
	require.Zero(t, polls)
}

// Without waiters there is no spin for all, and only one at a time.
func TestSharedSpinsAreExclusive(t *testing.T) {
	s, shared := newSharedSpinner()
	_, polls := s.wait(1)
	require.Zero(t, polls)
	w := newTestWaiter(shared, 0)
	n, ok := shared.begin()
	require.True(t, ok)
	require.Equal(t, 1, n)
	_, polls = s.wait(1)
	require.Zero(t, polls)
	late := newTestWaiter(shared, 0)
	require.Equal(t, []bool{false}, late.requests, "it is polled for")
	shared.end()
	require.Equal(t, []bool{false, true}, late.requests)
	require.Equal(t, []bool{false, true}, w.requests)
	w.End()
	late.End()
	_, polls = s.wait(1)
	require.Zero(t, polls)
}

// The waiter that has waited longest is polled for no more once there are too many; its doorbell is requested.
func TestSharedWaitersAreBounded(t *testing.T) {
	shared := &sharedWaiters{}
	var waiters []*testWaiter
	for range maxShared {
		waiters = append(waiters, newTestWaiter(shared, 0))
	}
	_, ok := shared.begin()
	require.True(t, ok)
	newTestWaiter(shared, 0)
	require.Len(t, shared.waiters, maxShared)
	require.False(t, shared.poll())
	require.Zero(t, waiters[0].polls)
	require.Equal(t, []bool{false, true}, waiters[0].requests)
	require.Equal(t, 1, waiters[1].polls)
	shared.end()
	require.Len(t, waiters[0].requests, 2)
	newTestWaiter(shared, 0)
	require.Equal(t, []bool{false, true}, waiters[1].requests, "nothing to request")
	waiters[0].End()
}
