package channel

// Prober is a power that some Factories have besides: to try whether the channel
// works between this process and an actual peer, where equal descriptors do not
// say for sure. The two ends of a pipe that both know it exchange offers while
// the pipe is being opened. A channel whose probe fails at either end is not
// chosen, for that reason; where the peer makes no offer nothing is probed.
//
// Both methods may be called concurrently.
type Prober interface {
	// Offer is what this process shows to a peer, at most MaxOffer bytes.
	Offer() []byte

	// Probe tries to use what the peer shows, which it must not trust, and says
	// why it cannot. It does not wait for the peer.
	Probe(offer []byte) error
}

// MaxOffer is the size of an Offer in bytes, at most.
const MaxOffer = 256
