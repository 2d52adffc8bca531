package wait

import "time"

// crowd estimates whether more threads spin on the machine than it has processors. A thread that does not
// yield then keeps a processor from the process for whose reply it waits, and neither gets on until
// the spin ends: of three processes on two processors, of which one calls the two others in turn, each
// call took 90 µs instead of 50. So two spins without input, one soon after the other, make the next
// ones yield to other threads.
//
// With enough processors these yields would do harm: they run threads of the Go runtime that have
// nothing to do, each of which must be woken again. A round trip of 16 µs takes 27 then.
//
// Its methods may be called on a nil *crowd, which never yields.
type crowd struct {
	left     int           // spins that will yield to threads
	yielding bool          // the current one does
	polls    int           // of the current spin
	failedAt time.Duration // when a spin ended without input; 0: never
}

const (
	// crowdedSpins is the number of spins that yield to threads before some do not, to find out
	// whether the machine is still crowded.
	crowdedSpins = 64

	// nearFailures is the time within which two spins without input show that it is. A single one ends
	// each burst of messages.
	nearFailures = 2 * time.Millisecond
)

// begin begins a spin.
func (c *crowd) begin() {
	if c == nil {
		return
	}
	c.polls, c.yielding = 0, c.left > 0
	if c.yielding {
		c.left--
	}
}

// failed records that the spin has ended without input at the time now.
func (c *crowd) failed(now time.Duration) {
	if c == nil {
		return
	}
	if c.failedAt > 0 && now-c.failedAt < nearFailures {
		c.left = crowdedSpins
	}
	c.failedAt = now
}
