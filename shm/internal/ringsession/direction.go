package ringsession

import (
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/internal/deadline"
	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
)

// direction serializes the calls that read from a stream, or those that write to it, and blocks
// them.
type direction struct {
	mu       sync.Mutex    // held by the call in progress
	wakeup   chan struct{} // holds a token if the state may have changed
	deadline deadline.Deadline
	poller   *wait.MemoryPoller
	changed  func() bool      // reports whether a blocked call can go on; the caller holds mu
	busy     *wait.BusyWaiter // the blocked call; nil without busy polling
}

func (d *direction) init(poller *wait.MemoryPoller, changed func() bool) {
	d.wakeup = make(chan struct{}, 1)
	d.deadline.Wake = d.wake
	d.poller, d.changed = poller, changed
}

// waitBusy makes blocked calls of d wait with busy polling. It is called before there are any.
func (d *direction) waitBusy() { d.busy = wait.NewBusyWaiter(d.changed, d.wake) }

// wake wakes the call that is blocked in wait or block or, if there is none, keeps the next one
// from blocking. The caller need not hold mu.
func (d *direction) wake() {
	select {
	case d.wakeup <- struct{}{}:
	default:
	}
}

// wait polls d.changed for a while, and then blocks until wake is called. While it blocks, blocked
// is set, the flag in the ring by which the peer knows that it must send a doorbell. It may return
// before anything has changed, so the caller checks again. The caller holds mu, and wait keeps it.
func (d *direction) wait(blocked *atomic.Uint32) {
	if !d.poller.Poll(d.changed) {
		d.block(blocked)
	}
}

// block blocks until wake is called, without polling first. Without busy polling it sets blocked, the
// flag in the ring that requests a doorbell, then calls d.changed once more, returns at once if that
// reports true, and clears blocked when it returns. The caller holds mu, and block keeps it.
func (d *direction) block(blocked *atomic.Uint32) {
	if d.busy != nil {
		d.busy.Begin()
		<-d.wakeup
		d.busy.End()
		return
	}
	failpoint.Here()
	blocked.Store(1)
	failpoint.Here()
	if !d.changed() { // the peer may have made its change before it could see the flag
		<-d.wakeup
	}
	failpoint.Here()
	blocked.Store(0)
}
