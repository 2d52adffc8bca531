package wait

// crowd estimates whether more threads spin on the machine than it has processors. A thread that does not
// yield then keeps a processor from the process for whose reply it waits, and neither gets on until
// the spin ends: of three processes on two processors, of which one calls the two others in turn, each
// call took 90 µs instead of 50. So two spins without input, one soon after the other, make the next
// ones yield to other threads.
//
// With enough processors these yields would do harm: they run threads of the Go runtime that have
// nothing to do, each of which must be woken again. A round trip of 16 µs takes 27 then.
type crowd struct {
	left  int // spins that will yield to threads
	near  int // spins in which a lack of input will show that the machine is crowded
	polls int // of the current spin
}

const (
	// crowdedSpins is the number of spins that yield to threads before one does not, to find out
	// whether the machine is still crowded.
	crowdedSpins = 64

	// nearFailures is the number of spins within which two without input show that it is.
	nearFailures = 16
)

// begin begins a spin.
func (c *crowd) begin() {
	c.left, c.near, c.polls = max(c.left-1, 0), max(c.near-1, 0), 0
}

// yields reports whether the spin should yield to threads. It is called for each poll.
func (c *crowd) yields() bool {
	c.polls++
	return c.left > 0
}

// failed records that the spin has ended without input.
func (c *crowd) failed() {
	if c.near > 0 {
		c.left = crowdedSpins
	}
	c.near = nearFailures
}
