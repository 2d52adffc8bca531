package wait

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// One goroutine polls for all BusyWaiters, wakes each once it is ready and no other, and ends when
// there are none left.
func TestBusyPolling(t *testing.T) {
	for _, procs := range []int{1, 2} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		p := &busyPoller{}
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
		for running := true; running; runtime.Gosched() { // the test has a time limit
			p.mu.Lock()
			running = p.running
			p.mu.Unlock()
		}
		for _, c := range woken {
			require.Empty(t, c)
		}
		require.False(t, p.some.Load())
		waiters[1].Begin() // which is ready
		testwait.Finish(t, woken[1])
	}
}

// A goroutine that spins polls for BusyWaiters too.
func TestSpinPollsForBusyWaiters(t *testing.T) {
	p := &busyPoller{running: true} // no goroutine of its own
	woken := make(chan struct{}, 1)
	w := &BusyWaiter{ready: func() bool { return true }, wake: func() { woken <- struct{}{} }, poller: p}
	w.Begin()
	p.pollOnce()
	require.Len(t, woken, 1)
	p.pollOnce()
	require.Len(t, woken, 1)
	w.End()
}
