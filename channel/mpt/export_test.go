package mpt

import "time"

// NewWithStripe returns a factory whose tensors are cut in slices of stripe bytes
// or more, so that tests need no large ones. Both ends must agree on it.
func NewWithStripe(stripe int, groups ...Lanes) *Factory {
	f := New(groups...)
	f.stripe, f.late = stripe, 100*time.Millisecond
	return f
}

// NewHasty returns a factory whose ends hardly wait for lanes behind the end of the
// control connection.
func NewHasty(groups ...Lanes) *Factory {
	f := New(groups...)
	f.late = 100 * time.Millisecond
	return f
}

// Bound is the offset at which a lane begins.
var Bound = bound

// Ports is the number of ports that are open.
func (f *Factory) Ports() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ports)
}
