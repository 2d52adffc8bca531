package shm

import (
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
)

// wakeup wakes one goroutine that is blocked. A wake-up that comes before the goroutine blocks is
// kept for its next wait; further ones are merged with it.
type wakeup chan struct{}

func newWakeup() wakeup { return make(wakeup, 1) }

func (b wakeup) wake() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// await blocks until b is woken, for at most limit. It returns true if b was woken, possibly before
// the call, and consumes that wake-up. It returns false if limit has passed.
func (b wakeup) await(limit time.Duration) bool {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-b:
		return true
	case <-t.C:
		return false
	}
}

// waiter blocks the calls of one direction of a connection. A wait ends when the peer has made
// progress, or when this end changes its own state and calls wakeup.wake. One goroutine at a time
// waits.
type waiter struct {
	wakeup wakeup
	spin   *wait.MemoryPoller
	ready  func() bool // reports whether the peer has made progress
	done   func() bool // reports whether a wait can end

	// marker and bit show a peer that sends doorbells that this direction is blocked. marker is nil
	// for other peers.
	marker *atomic.Uint32
	bit    uint32
}

func newWaiter(wakeup wakeup, spin *wait.MemoryPoller, bit uint32, ready func() bool) waiter {
	w := waiter{wakeup: wakeup, spin: spin, bit: bit, ready: ready}
	w.done = func() bool { return len(wakeup) > 0 || ready() }
	return w
}

// wait blocks until the peer has made progress, which w.ready reports, or w.wakeup is woken. It
// polls first if the peer sends doorbells. It may return without a cause, so the caller checks
// again.
func (w *waiter) wait() {
	if w.marker == nil { // the reactor polls for all such connections
		if !w.ready() {
			<-w.wakeup
		}
		return
	}
	if !w.spin.Poll(w.done) {
		failpoint.Here()
		w.marker.Or(w.bit) // requests a doorbell
		failpoint.Here()
		if !w.done() { // the peer may have made its change before it could see the bit
			<-w.wakeup
		}
		failpoint.Here()
		w.marker.And(^w.bit)
	}
	select {
	case <-w.wakeup: // the cause was noticed
	default:
	}
	if w.ready() {
		w.spin.Arrived()
	}
}
