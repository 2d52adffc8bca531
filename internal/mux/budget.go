package mux

// budget follows what yamux grants the writer of a stream. Yamux grants the
// bytes that were read once they are half of the window; where a deadline comes
// in between, it counts them as granted and never says so to the peer.
type budget struct {
	window uint32
	read   uint32 // since the last grant
}

func newBudget(window uint32) budget { return budget{window: window} }

// spend accounts for bytes that were read and returns what yamux granted on
// that occasion, or tried to.
func (b *budget) spend(n uint32) (granted uint32) {
	b.read += n
	if b.read < b.window/2 {
		return 0
	}
	granted, b.read = b.read, 0
	return granted
}

// grant tells the peer what yamux failed to. It waits on the side: the reader
// has its bytes.
func (s *session) grant(stream, bytes uint32) {
	message := creditMessage(stream, bytes)
	s.background(func() { s.link.Write(message[:]) })
}
