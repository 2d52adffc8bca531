package channel

// Discarder is a power that some Channels have besides, in the compatible dialect: to
// take in a tensor that nobody wants. For one without it the pipe receives into memory
// that is no use to anyone, of which each piece may stand for many. A channel must have
// the power if it writes to the memory of one transfer, or of several, at more than one
// place at a time: there it would write to the same bytes.
type Discarder interface {
	// Discard is Recv of the n bytes of the tensor with that id, which are thrown
	// away. It takes a bounded amount of memory, whatever n is.
	Discard(id uint64, n int, done func(error))
}
