package ringsession

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
)

// direction serializes the calls that read from a stream, or those that write to it, and blocks
// them.
type direction struct {
	mu       sync.Mutex    // held by the call in progress
	wakeup   chan struct{} // holds a token if the state may have changed
	deadline deadline
	poller   *wait.MemoryPoller
	changed  func() bool // reports whether a blocked call can go on; the caller holds mu
}

func (d *direction) init(poller *wait.MemoryPoller, changed func() bool) {
	d.wakeup = make(chan struct{}, 1)
	d.deadline.wake = d.wake
	d.poller, d.changed = poller, changed
}

// wake wakes the blocked call or, if no call is blocked, keeps the next one from blocking. It may
// be called without mu.
func (d *direction) wake() {
	select {
	case d.wakeup <- struct{}{}:
	default:
	}
}

// wait polls for a while, then blocks until the state may have changed. It may return without a
// change, so the caller checks again. While it blocks, blocked is set, the flag in the ring by
// which the peer knows that it must send a doorbell. The caller holds mu.
func (d *direction) wait(blocked *atomic.Uint32) {
	if !d.poller.Poll(d.changed) {
		d.block(blocked)
	}
}

// block is wait without the polling. It sets blocked, and checks once more before it blocks. The
// caller holds mu.
func (d *direction) block(blocked *atomic.Uint32) {
	failpoint.Here()
	blocked.Store(1)
	failpoint.Here()
	if !d.changed() { // the peer may have made its change before it could see the flag
		<-d.wakeup
	}
	failpoint.Here()
	blocked.Store(0)
}

// deadline is the read or write deadline of a stream. passed reports whether it has passed; wake
// must be set before the first use.
type deadline struct {
	passed atomic.Bool
	wake   func() // wakes the blocked call

	mu    sync.Mutex
	timer *time.Timer
	epoch int // counts calls of set, so that a timer that was stopped too late has no effect
}

// set changes the deadline to t, or to none if t is zero. It wakes the blocked call now, and again
// when t has passed.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.epoch++
	remaining := time.Until(t)
	d.passed.Store(!t.IsZero() && remaining <= 0)
	if !t.IsZero() && remaining > 0 {
		epoch := d.epoch
		d.timer = time.AfterFunc(remaining, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.epoch == epoch {
				d.passed.Store(true)
				d.wake()
			}
		})
	}
	d.wake()
}
