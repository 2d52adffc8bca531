package channel

// Prober is a power that some Factories have besides: to try whether the channel
// works between this process and an actual peer, where equal descriptors do not
// say for sure. The two ends of a pipe that both know it exchange offers while
// the pipe is being opened. A channel whose probe fails at either end is not
// chosen, for that reason; where the peer makes no offer nothing is probed.
//
// Both methods may be called concurrently.
type Prober interface {
	// Offer is what this process shows to one peer, at most MaxOffer bytes; no two
	// peers are shown the same. theirs is what that peer has shown already, nil if
	// nothing yet. The caller leaves the bytes as they are, and reachable until the
	// peer has tried the channel: they may be the very memory that it looks for.
	Offer(theirs []byte) []byte

	// Probe tries to use what the peer shows, which it must not trust, and says
	// why it cannot. It does not wait for the peer. shown is what this end has
	// shown to it, nil if nothing yet: a peer that has seen something shows that it
	// has, and one that only gives it back proves nothing.
	Probe(offer, shown []byte) error
}

// MaxOffer is the size of an Offer in bytes, at most.
const MaxOffer = 256
