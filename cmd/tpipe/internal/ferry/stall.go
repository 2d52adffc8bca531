package ferry

import (
	"fmt"
	"sync/atomic"
	"time"
)

// StallError ends a transfer in which the receiver has waited too long for its sender.
type StallError struct {
	Sender string        // the address of the sender
	Waited time.Duration // StoreOptions.StallTimeout, or less for an offer
}

func (e *StallError) Error() string {
	return fmt.Sprintf("the sender %s stalled: nothing arrived from it for %s", e.Sender, e.Waited)
}

// stallChecks is how often in a StallTimeout the receiver looks for progress. A stalled
// sender is noticed after one more check at the latest.
const stallChecks = 8

// stallClock measures how long a reception waits for its sender. It stands still while
// the receiver is busy itself, as with its disk.
type stallClock struct {
	busy  atomic.Int64  // calls between pause and resume
	steps atomic.Uint64 // resets so far
}

// pause stops the clock until resume is called as often.
func (c *stallClock) pause() { c.busy.Add(1) }

func (c *stallClock) resume() {
	c.reset() // first, so that watchStall sees one of the two
	c.busy.Add(-1)
}

// reset notes that the transfer has moved on.
func (c *stallClock) reset() { c.steps.Add(1) }

// watchStall ends the transfer once it has seen no progress in stallChecks checks
// one after the other. It counts checks, not time: where the receiver is stopped itself
// that is not the sender's fault.
func (r *reception) watchStall() {
	limit := r.store.options.StallTimeout
	check := time.NewTicker(max(limit/stallChecks, 1))
	defer check.Stop()
	var steps, bytes uint64
	for idle := 0; idle < stallChecks; idle++ {
		select {
		case <-check.C:
		case <-r.ctx.Done():
			return
		}
		busy := r.clock.busy.Load() > 0
		nowSteps, nowBytes := r.clock.steps.Load(), r.pipe.Stats().Progress
		if busy || nowSteps != steps || nowBytes != bytes {
			steps, bytes, idle = nowSteps, nowBytes, -1
		}
	}
	r.end(r.stalled(limit))
}

func (r *reception) stalled(waited time.Duration) error {
	return &StallError{Sender: r.pipe.RemoteAddr(), Waited: waited}
}
