package channel

// Ender is a power that some Channels have besides, in the compatible dialect: to be told
// that the peer has announced all that it ever will. A peer that died in between may have
// sent what it did not announce; a channel that learns of the end behind that, on the same
// connection, would wait for a Recv that never comes. It must have the power.
type Ender interface {
	// EndRecv says that Recv and Discard will not be called any more. Those called
	// before go on. Behind them the channel takes whatever comes for the peer's end,
	// and tells Link.Broken io.EOF. It may be called again, and after Close.
	EndRecv()
}
