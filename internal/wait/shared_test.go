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

// sharedSpinner is a spinner that polls for waiters of its own.
type sharedSpinner struct {
	*testSpinner
	shared *sharedWaiters
}

func newSharedSpinner() sharedSpinner {
	return sharedSpinner{newTestSpinner(100 * time.Microsecond), &sharedWaiters{}}
}

// wait performs one wait, in which the n-th poll succeeds, or none if n is 0. It returns whether
// the wait has succeeded and how often it has polled.
func (s sharedSpinner) wait(n int) (succeeded bool, polls int) {
	s.polls = 0
	return s.shared.spin(s.spinner, func() bool {
		s.polls++
		s.time += time.Microsecond
		return s.polls == n
	}), s.polls
}

// A spin for all polls for each waiter, until one is ready, and wakes that. No peer is asked
// for a doorbell meanwhile, and those of the others are afterwards.
func TestSharedSpin(t *testing.T) {
	s := newSharedSpinner()
	never, third := newTestWaiter(s.shared, 0), newTestWaiter(s.shared, 3)
	succeeded, polls := s.wait(0)
	require.False(t, succeeded, "the other one has input")
	require.Equal(t, []int{3, 3, 3}, []int{polls, never.polls, third.polls})
	require.Equal(t, 1, third.woken)
	require.Equal(t, []bool{false}, third.requests, "its goroutine asks again")
	require.Zero(t, never.woken)
	require.Equal(t, []bool{false, true}, never.requests)

	third.End()
	newTestWaiter(s.shared, 0)
	succeeded, polls = s.wait(4)
	require.True(t, succeeded)
	require.Equal(t, 4, polls)
	require.Equal(t, 3, third.polls, "it has ended")
	require.Equal(t, 6, never.polls, "not after the own input was found")
	require.Equal(t, []bool{false, true, false, true}, never.requests)
}

// A spin for all ends after its bound, and such spins become rare while they find nothing. The waits without a spin
// leave the doorbells alone. A spin that is interrupted does not count.
func TestSharedSpinIsBounded(t *testing.T) {
	s := newSharedSpinner()
	w := newTestWaiter(s.shared, 0)
	newTestWaiter(s.shared, 0)
	const first = pollsBeforeYield / 3 // polls that take no yield; the last one comes after the bound
	for i, want := range []int{first + 101, 0, first + 101, 0, 0, first + 101} {
		succeeded, polls := s.wait(0)
		require.False(t, succeeded)
		require.Equal(t, want, polls)
		require.Len(t, w.requests, []int{2, 2, 4, 4, 4, 6}[i])
		require.True(t, w.requests[len(w.requests)-1])
	}
	stopped := false
	s.stop = func() bool { return stopped }
	for range 4 {
		_, polls := s.wait(0)
		require.Zero(t, polls)
	}
	for range 2 {
		stopped = false
		s.yield = func() { stopped = true }
		_, polls := s.wait(0)
		require.Equal(t, first+1, polls, "the reader was interrupted")
	}
	_, polls := s.wait(0)
	require.Zero(t, polls)
}

// After a yield in which another thread has had its time slice, the next waits do not spin for all.
func TestSharedSpinOnBusyMachine(t *testing.T) {
	s := newSharedSpinner()
	w := newTestWaiter(s.shared, 0)
	newTestWaiter(s.shared, 0)
	s.yield = func() { s.time += sliceYield }
	const first = pollsBeforeYield / 3
	succeeded, polls := s.wait(first + 1)
	require.True(t, succeeded)
	require.Equal(t, first+1, polls)
	for range skipDescheduled {
		_, polls := s.wait(1)
		require.Zero(t, polls)
	}
	require.Len(t, w.requests, 2)
	succeeded, _ = s.wait(1)
	require.True(t, succeeded)

	s.yield = func() { s.time += 100 * time.Microsecond } // to the end of the spin
	for range 3 {
		succeeded, _ = s.wait(first + 1)
		require.True(t, succeeded, "the spins that found input are not rare")
	}
}

// There is no spin for all without two waiters, and only one at a time.
func TestSharedSpinsAreExclusive(t *testing.T) {
	s := newSharedSpinner()
	own := newTestWaiter(s.shared, 0)
	_, polls := s.wait(1)
	require.Zero(t, polls)
	w := newTestWaiter(s.shared, 0)
	n, ok := s.shared.begin(s.spinner)
	require.True(t, ok)
	require.Equal(t, 2, n)
	_, polls = s.wait(1)
	require.Zero(t, polls)
	late := newTestWaiter(s.shared, 0)
	require.Equal(t, []bool{false}, late.requests, "it is polled for")
	s.shared.end(spinInterrupted)
	require.Equal(t, []bool{false, true}, late.requests)
	require.Equal(t, []bool{false, true}, w.requests)
	own.End()
	late.End()
	_, polls = s.wait(1)
	require.Zero(t, polls)
}

// The waiter that has waited longest is polled for no more once there are too many; its doorbell is requested.
func TestSharedWaitersAreBounded(t *testing.T) {
	s := newSharedSpinner()
	var waiters []*testWaiter
	for range maxShared {
		waiters = append(waiters, newTestWaiter(s.shared, 0))
	}
	_, ok := s.shared.begin(s.spinner)
	require.True(t, ok)
	newTestWaiter(s.shared, 0)
	require.Len(t, s.shared.waiters, maxShared)
	_, found := s.shared.poll(func() bool { return false })
	require.False(t, found)
	require.Zero(t, waiters[0].polls)
	require.Equal(t, []bool{false, true}, waiters[0].requests)
	require.Equal(t, 1, waiters[1].polls)
	s.shared.end(spinInterrupted)
	require.Len(t, waiters[0].requests, 2)
	newTestWaiter(s.shared, 0)
	require.Equal(t, []bool{false, true}, waiters[1].requests, "nothing to request")
	waiters[0].End()
	require.Len(t, s.shared.waiters, maxShared, "it was not among them any more")
}
