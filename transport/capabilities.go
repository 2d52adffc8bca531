package transport

import (
	"fmt"
	"time"
)

// Bounded is implemented by Transports and Conns that limit the size of a frame.
type Bounded interface {
	// LargestFrame returns the largest size of a frame in bytes. A call of WriteFrames with
	// a longer one writes nothing and returns a [*FrameSizeError].
	LargestFrame() int64
}

// FrameSizeError is the error of a frame that is longer than the connection carries. It is no
// violation of the protocol: send smaller frames, or use another transport.
type FrameSizeError struct {
	Size, Largest int64 // in bytes
}

func (e *FrameSizeError) Error() string {
	return fmt.Sprintf("a frame of %d bytes where the largest has %d", e.Size, e.Largest)
}

// CheckFrame returns a [*FrameSizeError] if via, a Transport or a Conn, does not carry frames of
// size bytes, and otherwise nil, also if via is not [Bounded].
func CheckFrame(via any, size int64) error {
	if b, ok := via.(Bounded); ok && size > b.LargestFrame() {
		return &FrameSizeError{Size: size, Largest: b.LargestFrame()}
	}
	return nil
}

// Identity is the process and the user at the other end of a connection within one machine, as the
// kernel recorded them when the connection was made.
type Identity struct {
	PID int // 0 if the peer's process is in a namespace that this process does not see
	UID int
	GID int
}

// Identified is implemented by Conns whose peer the kernel identifies: those within one machine, not
// those over a network.
type Identified interface {
	// PeerIdentity returns the identity of the peer. It stays available after Close. A process
	// that has inherited the peer's descriptors has the peer's identity.
	PeerIdentity() (Identity, error)
}

// Whole is implemented by Conns whose peer reads some frames in one piece. C++ peers do so with
// objects of TensorPipe's protocol, such as the description of a message, and crash if one is too
// large. They read payloads and tensors in pieces of any size.
type Whole interface {
	// LargestWhole returns the largest size in bytes of a frame that the peer reads in one piece,
	// or 0 if there is no limit.
	LargestWhole() int
}

// Local is implemented by Transports with listeners that other machines cannot reach. Without it, all
// listeners of a transport count as reachable from other machines; an agent then requires a token,
// TLS, or the explicit consent of its application.
type Local interface {
	// IsLocal reports whether only processes of this machine can reach a listener at addr, an
	// address for Listen. It does not block and does not resolve names. If the answer depends on
	// the network, or addr is invalid, it returns false.
	IsLocal(addr string) bool
}

// AckTimeouter is implemented by Transports that can limit how long a peer that vanishes without
// notice, as with a network that fails, goes undetected.
type AckTimeouter interface {
	// WithAckTimeout returns a transport that differs from this one in its connections, dialled or
	// accepted: they fail once bytes that they have sent have been unacknowledged for d, which is
	// positive. The receiver does not change.
	WithAckTimeout(d time.Duration) Transport
}
