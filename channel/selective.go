package channel

import "github.com/tensorpipe-go/tensorpipe/transport"

// Selective is a power that some Factories have besides: to know of which pipes
// they make nothing better. The end that listens asks, when it has chosen the
// transport, and passes over such a channel where another serves the same devices
// and neither the policy of its own application nor the preference of the other end
// names this one. It does not ask for a peer that insists on the order of priorities,
// as those in C++ do.
type Selective interface {
	// Suits says why the channel is not worth having in a pipe over t, or nil.
	Suits(t transport.Transport) error
}
