package wait

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// One goroutine polls for all BusyWaiters, wakes each once it is ready and no other, and ends when
// there are none left.
func TestBusyPolling(t *testing.T) {
	for _, procs := range []int{1, 2} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		p := newBusyPoller()
		var ready [3]atomic.Bool
		var waiters [3]*BusyWaiter
		var woken [3]chan struct{}
		for i := range waiters {
			woken[i] = make(chan struct{}, 2)
			waiters[i] = &BusyWaiter{ready: ready[i].Load, wake: func() { woken[i] <- struct{}{} }, poller: p}
			waiters[i].Begin()
		}
		for _, i := range []int{1, 0} {
			ready[i].Store(true)
			testwait.Finish(t, woken[i])
			waiters[i].End()
		}
		waiters[2].End()
		waiters[2].End()
		for p.isRunning() { // the test has a time limit
			runtime.Gosched()
		}
		for _, c := range woken {
			require.Empty(t, c)
		}
		require.False(t, p.some.Load())
		waiters[1].Begin() // which is ready
		testwait.Finish(t, woken[1])
	}
}

// newIdlePoller returns a busyPoller without a goroutine of its own.
func newIdlePoller() *busyPoller {
	p := newBusyPoller()
	p.running = true
	return p
}

// A goroutine that spins polls for BusyWaiters too.
func TestSpinPollsForBusyWaiters(t *testing.T) {
	s := newTestSpinner(100 * time.Microsecond).makeExclusive()
	s.busy = newIdlePoller()
	woken := 0
	w := &BusyWaiter{ready: func() bool { return s.polls == 3 }, wake: func() { woken++ }, poller: s.busy}
	w.Begin()
	s.wait(7)
	require.Equal(t, 1, woken)
	require.Empty(t, s.busy.waiters)
	w.End()
}

// However many BusyWaiters there are, the polls for them delay a goroutine that spins, or one that begins or
// ends a wait, only by those of a few, and each of them has its turn.
func TestManyBusyWaiters(t *testing.T) {
	const many = 1000
	p := newIdlePoller()
	polls, least := 0, make([]int, many)
	waiters := make([]*BusyWaiter, many)
	for i := range waiters {
		waiters[i] = &BusyWaiter{ready: func() bool { polls++; least[i]++; return false }, poller: p}
		waiters[i].Begin()
	}
	require.False(t, p.pollOne())
	require.Equal(t, 1, polls)
	p.poll(pollBatch)
	require.Equal(t, 1+pollBatch, polls)
	for range many {
		p.pollOne()
	}
	require.Equal(t, 1, slices.Min(least))
	require.Equal(t, 2, slices.Max(least))
	for _, w := range waiters {
		w.End()
	}
	require.False(t, p.pollOne())
	require.Equal(t, 1+pollBatch+many, polls)
}

// End returns only after a call of wake that is in progress.
func TestEndOfBusyWaitFollowsWake(t *testing.T) {
	p := newBusyPoller()
	waking, release := make(chan struct{}), make(chan struct{})
	var returned atomic.Bool
	w := &BusyWaiter{ready: func() bool { return true }, poller: p, wake: func() {
		close(waking)
		<-release
		returned.Store(true)
	}}
	w.Begin()
	testwait.Finish(t, waking)
	go func() {
		for p.callers.Load() == 0 { // until End waits; if it does not, forever
			runtime.Gosched()
		}
		close(release)
	}()
	w.End()
	late := !returned.Load()
	p.callers.Add(1)
	testwait.Finish(t, release)
	p.callers.Add(-1)
	require.False(t, late)
}

// A goroutine that has spun without success blocks: then the poller must not rest, since no other goroutine polls.
func TestPollerRestsOnlyWhileOthersPoll(t *testing.T) {
	s := newTestSpinner(10 * time.Microsecond).makeExclusive()
	succeeded, _ := s.wait(5)
	require.True(t, succeeded)
	require.True(t, s.busy.spun.Load())
	succeeded, _ = s.wait(0)
	require.False(t, succeeded)
	require.False(t, s.busy.spun.Load())
}

// A wait allocates nothing, although it starts the goroutine that polls.
func TestBusyPollingAllocatesNothing(t *testing.T) {
	woken := make(chan struct{}, 1)
	p := newBusyPoller()
	w := &BusyWaiter{ready: func() bool { return true }, wake: func() { woken <- struct{}{} }, poller: p}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		w.Begin()
		<-woken
		w.End()
		for p.isRunning() {
			runtime.Gosched()
		}
	}))
}

func (p *busyPoller) isRunning() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running
}

// Goroutines that wait and stop waiting all the time, more than are polled for at once, each continue when they are ready.
func TestManyGoroutinesWaitBusily(t *testing.T) {
	for _, procs := range []int{1, 2, 4} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		p := newBusyPoller()
		var left atomic.Int64
		const goroutines, waits = 200, 50
		var done [goroutines]<-chan bool
		for i := range done {
			done[i] = testwait.Start(func() bool {
				woken := make(chan struct{}, 1)
				var polls atomic.Int64
				w := &BusyWaiter{poller: p, ready: func() bool { return polls.Add(1)%3 == 0 }, wake: func() {
					select {
					case woken <- struct{}{}:
					default:
					}
				}}
				for n := range waits {
					w.Begin()
					if n%5 > 0 {
						<-woken
					}
					w.End()
					left.Add(1)
				}
				return true
			})
		}
		for i := range done {
			require.True(t, testwait.Finish(t, done[i]))
		}
		require.EqualValues(t, goroutines*waits, left.Load())
		for p.isRunning() {
			runtime.Gosched()
		}
		require.Empty(t, p.waiters)
	}
}
