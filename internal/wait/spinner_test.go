package wait

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// testSpinner is a spinner with an arbiter of its own, and a clock that advances by one microsecond for
// each poll.
type testSpinner struct {
	*spinner
	time   time.Duration
	yields int
	polls  int
}

func newTestSpinner(bound time.Duration) *testSpinner {
	s := &testSpinner{}
	s.spinner = &spinner{
		bound:        bound,
		registration: &registration{arbiter: new(arbiter)},
		busy:         newBusyPoller(),
		now:          func() time.Duration { return s.time },
		yield:        func() { s.yields++ },
	}
	return s
}

// makeExclusive records arrivals for s until the arbiter permits s to spin, and returns s.
func (s *testSpinner) makeExclusive() *testSpinner {
	for range exclusiveAfter + 1 {
		s.registration.arrived()
	}
	return s
}

// onlyAlone makes s spin only while no other reader has arrivals, as sockets do, and returns s.
func (s *testSpinner) onlyAlone() *testSpinner {
	s.stop = func() bool { _, found := s.registration.companion(); return found }
	return s
}

// wait performs one wait, in which the n-th poll succeeds, or none if n is 0. It returns whether
// the wait has succeeded and how often it has polled.
func (s *testSpinner) wait(n int) (succeeded bool, polls int) {
	s.polls, s.yields = 0, 0
	succeeded = s.poll(func() bool {
		s.polls++
		s.time += time.Microsecond
		return s.polls == n
	})
	if succeeded {
		s.registration.arrived()
	}
	return succeeded, s.polls
}

func TestSpinEndsWhenReady(t *testing.T) {
	s := newTestSpinner(100 * time.Microsecond).makeExclusive()
	for range 1000 {
		succeeded, polls := s.wait(7)
		require.True(t, succeeded)
		require.Equal(t, 7, polls)
		require.Equal(t, 7, s.yields, "others run before each poll")
	}
}

func TestSpinIsBounded(t *testing.T) {
	for _, bound := range []int{1, 10, 100} {
		s := newTestSpinner(time.Duration(bound) * time.Microsecond).makeExclusive()
		succeeded, polls := s.wait(0)
		require.False(t, succeeded)
		require.Equal(t, bound, polls)
	}
}

func TestSpinningOff(t *testing.T) {
	for _, bound := range []time.Duration{0, -1} {
		s := newTestSpinner(bound).makeExclusive()
		succeeded, polls := s.wait(1)
		require.False(t, succeeded)
		require.Zero(t, polls)
		require.Zero(t, s.yields)
	}
}

// If spins find nothing they become rare: 10,000 waits spin only a few times.
func TestFailedSpinsBecomeRare(t *testing.T) {
	s := newTestSpinner(100 * time.Microsecond).makeExclusive()
	spins := 0
	for range 10_000 {
		_, polls := s.wait(0)
		if polls > 0 {
			spins++
		}
	}
	require.LessOrEqual(t, spins, 10+10_000/maxSkip)
	require.Greater(t, spins, 10, "it goes on trying")
}

func TestBackoff(t *testing.T) {
	s := newTestSpinner(10 * time.Microsecond).makeExclusive()
	for _, skip := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 256} {
		_, polls := s.wait(0)
		require.Equal(t, 10, polls)
		for range skip {
			succeeded, polls := s.wait(0)
			require.False(t, succeeded)
			require.Zero(t, polls)
			require.Zero(t, s.yields)
		}
	}
	succeeded, polls := s.wait(5)
	require.True(t, succeeded)
	require.Equal(t, 5, polls)

	s.wait(0)
	_, polls = s.wait(0)
	require.Zero(t, polls, "one wait without a spin")
	_, polls = s.wait(0)
	require.Equal(t, 10, polls, "the success was not forgotten")
}

func TestOnlyExclusiveReaderSpins(t *testing.T) {
	one := newTestSpinner(10 * time.Microsecond).onlyAlone()
	two := newTestSpinner(10 * time.Microsecond).onlyAlone()
	two.registration = &registration{arbiter: one.registration.arbiter}
	spins := func(s *testSpinner) bool { _, polls := s.wait(0); s.backoff = backoff{}; return polls > 0 }

	require.False(t, spins(one), "nothing came yet")
	one.makeExclusive()
	require.True(t, spins(one))
	require.False(t, spins(two))

	two.registration.arrived()
	require.False(t, spins(one))
	require.False(t, spins(two))
	one.registration.arrived()
	require.False(t, spins(one), "two are busy")

	two.makeExclusive()
	require.True(t, spins(two))
	require.False(t, spins(one))
}

// Two readers of memory may spin if all arrivals are for these two, and not once a third has one.
func TestTwoReadersOfMemorySpin(t *testing.T) {
	one, two, third := newTestSpinner(10*time.Microsecond), newTestSpinner(10*time.Microsecond), newTestSpinner(10*time.Microsecond)
	a := one.registration.arbiter
	for _, s := range []*testSpinner{one, two, third} {
		s.registration = &registration{arbiter: a}
	}
	socket := newTestSpinner(10 * time.Microsecond).onlyAlone()
	socket.registration = &registration{arbiter: a}
	spins := func(s *testSpinner) bool { _, polls := s.wait(0); s.backoff = backoff{}; return polls > 0 }
	inTurn := func(all ...*registration) {
		for range exclusiveAfter + len(all) {
			for _, r := range all {
				r.arrived()
			}
		}
	}

	inTurn(one.registration, two.registration)
	require.True(t, spins(one))
	require.True(t, spins(two))
	require.False(t, spins(third))
	third.registration.arrived()
	require.False(t, spins(one))
	require.False(t, spins(two))
	inTurn(one.registration, two.registration, third.registration)
	require.False(t, spins(one) || spins(two) || spins(third), "three are busy")

	inTurn(one.registration, socket.registration)
	require.True(t, spins(one))
	require.False(t, spins(socket), "it is alone or does not spin")
	inTurn(socket.registration)
	require.True(t, spins(socket))
}

// A reader of memory that spins lets other goroutines run first if GoroutineStarted was called.
func TestStartedGoroutineRunsBeforeSpin(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s := newTestSpinner(time.Millisecond).makeExclusive()
	s.placement = new(placement)
	var ran atomic.Bool
	polls := 0
	ready := func() bool { // never at once, also if the kernel interrupts the test and the goroutine runs early
		polls++
		s.time += time.Microsecond
		return polls > pollsBeforeYield && ran.Load()
	}
	first := 0
	for range 20 { // the runtime may continue with this goroutine instead, but not each time
		ran.Store(false)
		s.registration.arbiter.started.Store(true)
		polls = 0
		go ran.Store(true)
		require.True(t, s.poll(ready))
		require.False(t, s.registration.arbiter.started.Load())
		if polls == pollsBeforeYield+1 {
			first++
		}
	}
	require.Greater(t, first, 10, "it did not run before the first poll after a yield")
}

// If the process has one processor, a reader of memory lets other goroutines run during the spin.
func TestGoroutinesRunDuringSpinOnOneProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s := newTestSpinner(time.Millisecond).makeExclusive()
	s.placement = new(placement)
	var ran atomic.Bool
	polls := 0
	require.True(t, s.poll(func() bool {
		s.time += time.Microsecond
		if polls++; polls == pollsBeforeYield+1 {
			go ran.Store(true)
		}
		return ran.Load()
	}))
	require.Less(t, polls, pollsBeforeYield+100)

	// The time in which they run is not that of a yield, which would show that the peer shares the processor.
	var clock atomic.Int64
	s.now = func() time.Duration { return time.Duration(clock.Load()) }
	s.bound = time.Hour
	wrong := 0
	for range 20 { // the runtime may preempt this goroutine in a yield, but not each time
		ran.Store(false)
		s.placement = new(placement)
		go func() {
			clock.Add(int64(time.Millisecond))
			ran.Store(true)
		}()
		require.True(t, s.poll(func() bool { return ran.Load() }))
		if s.placement.limit != 0 {
			wrong++
		}
	}
	require.Less(t, wrong, 10)
}

// An arrival for another reader ends a spin.
func TestArrivalForAnotherEndsSpin(t *testing.T) {
	s := newTestSpinner(100 * time.Microsecond).makeExclusive().onlyAlone()
	other := &registration{arbiter: s.registration.arbiter}
	polls := 0
	require.False(t, s.poll(func() bool {
		polls++
		if polls == 3 {
			other.arrived()
		}
		return false
	}))
	require.Equal(t, 3, polls)
	require.Zero(t, s.backoff.skip, "a spin that another arrival ended has not failed")
}

// pollDue goes on when other readers have arrivals. It is bounded in time, and only one goroutine
// at a time is in it.
func TestPollDue(t *testing.T) {
	one, two := newTestSpinner(10*time.Microsecond), newTestSpinner(10*time.Microsecond)
	two.registration = &registration{arbiter: one.registration.arbiter}
	for _, s := range []*testSpinner{one, two} {
		s.registration.arrived()
	}
	polls := 0
	due := func(s *testSpinner, n int) bool {
		polls = 0
		return s.pollDue(func() bool {
			polls++
			s.time += time.Microsecond
			if polls == 1 && s == one {
				require.False(t, two.pollDue(func() bool { panic("it must not poll") }))
			}
			two.registration.arrived() // does not end the spin
			return polls == n
		})
	}
	require.True(t, due(one, 5))
	require.Equal(t, 5, polls)
	require.True(t, due(two, 7))
	require.Equal(t, 7, polls)
	require.False(t, due(two, 100), "it ends")
	require.Equal(t, 10, polls)
	require.False(t, due(two, 1), "and becomes rare")
	require.Zero(t, polls)
}
