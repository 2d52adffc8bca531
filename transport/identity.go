package transport

// Identity is who is at the other end of a connection within one machine, as
// the kernel saw it when the connection was made.
type Identity struct {
	PID int // 0 where the peer's process is in a namespace that this one does not see
	UID int
	GID int
}

// Identified is a power that some Conns have besides: the kernel vouches for
// the process at the other end. It does so for sockets of one machine, not for
// those of a network.
type Identified interface {
	// PeerIdentity tells who the peer is. It stays available after Close. A
	// process that inherited the peer's descriptors goes by the peer's name.
	PeerIdentity() (Identity, error)
}
