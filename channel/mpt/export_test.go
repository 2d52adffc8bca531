package mpt

import "time"

// NewWithStripe returns a factory like New, but whose smallest slices have stripe bytes, so that
// tests can use small tensors, and whose ends wait only briefly for lanes after the end of the
// control connection. Both ends of a channel must have the same stripe.
func NewWithStripe(stripe int, groups ...Lanes) *Factory {
	f := New(groups...)
	f.stripe, f.lateTimeout = stripe, 100*time.Millisecond
	return f
}

// NewWithShortTimeout returns a factory like New, but whose ends wait only briefly for lanes after
// the end of the control connection.
func NewWithShortTimeout(groups ...Lanes) *Factory {
	f := New(groups...)
	f.lateTimeout = 100 * time.Millisecond
	return f
}

// Bound returns the offset at which a lane begins.
var Bound = laneOffset

// Ports returns the number of ports at which the factory listens for lanes.
func (f *Factory) Ports() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ports)
}
