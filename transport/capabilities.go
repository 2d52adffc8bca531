package transport

import (
	"crypto/tls"
	"fmt"
	"time"
)

// FrameLimiter is implemented by Transports and Conns that limit the size of a frame.
type FrameLimiter interface {
	// FrameLimits returns the limits of a Conn, or those that all Conns of a Transport have.
	FrameLimits() FrameLimits
}

// FrameLimits are the largest sizes of frames in bytes; 0 stands for no limit.
type FrameLimits struct {
	// Max is the largest size of a frame. A call of WriteFrames with a longer one writes nothing
	// and returns a [*FrameSizeError].
	Max int64

	// MaxWhole is the largest size of a frame that the peer reads in one piece. C++ peers do so with
	// objects of TensorPipe's protocol, such as the description of a message, and crash if one is
	// too large. They read payloads and tensors in pieces of any size.
	MaxWhole int
}

// FrameSizeError is the error of a frame that is longer than the connection can carry. The frame
// does not violate the protocol: send smaller frames, or use another transport.
type FrameSizeError struct {
	Size, Largest int64 // in bytes
}

func (e *FrameSizeError) Error() string {
	return fmt.Sprintf("a frame of %d bytes where the largest has %d", e.Size, e.Largest)
}

// CheckFrame returns a [*FrameSizeError] if a frame of size bytes is longer than the largest one
// that via carries. via is a Transport or a Conn. CheckFrame returns nil if the frame is not too
// long, if via has no limit, or if via does not implement [FrameLimiter].
func CheckFrame(via any, size int64) error {
	l, ok := via.(FrameLimiter)
	if !ok {
		return nil
	}
	if largest := l.FrameLimits().Max; largest > 0 && size > largest {
		return &FrameSizeError{Size: size, Largest: largest}
	}
	return nil
}

// Identified is implemented by Conns whose peer the kernel or TLS identifies.
type Identified interface {
	// PeerIdentity returns the identity of the peer. It stays available after Close. If the
	// peer has not proved its identity, because the handshake of TLS failed, it returns the
	// error of that handshake, as all calls on the Conn do.
	PeerIdentity() (Identity, error)
}

// Identity is what this process knows for certain about the peer of a connection.
type Identity struct {
	// Process is nil unless both ends are on one machine.
	Process *Credentials

	// TLS has the negotiated parameters and the certificates with which the peer has proved its
	// name. It is nil without TLS.
	TLS *tls.ConnectionState
}

// Credentials are the process and the user at the other end of a connection within one machine, as
// the kernel recorded them when the connection was made. A process that has inherited the peer's
// descriptors has the peer's credentials.
type Credentials struct {
	PID int // 0 if the peer's process is in a namespace that this process does not see
	UID int
	GID int
}

// IdentityOf returns the identity of the peer of c. It returns the zero Identity if c does not
// implement [Identified], or if PeerIdentity of c returns an error.
func IdentityOf(c Conn) Identity {
	if i, ok := c.(Identified); ok {
		if id, err := i.PeerIdentity(); err == nil {
			return id
		}
	}
	return Identity{}
}

// AddressTranslator is implemented by Transports with addresses that are not valid at every machine,
// such as the wildcard of a listener that is bound to all addresses of its machine. Advertise and Reach
// take any connection to the peer, also one of another transport.
type AddressTranslator interface {
	// Advertise returns the address at which the peer of c reaches a listener of this end on addr.
	// That is addr itself or, if addr is not valid at the peer, the address through which the peer
	// has connected, with addr's port.
	Advertise(addr string, c Conn) string

	// AdvertiseAt returns the address at which a process that reaches this machine at local, an
	// address of this machine with or without a port, reaches a listener of this end on addr, and
	// true. It returns "" and false if addr is not valid at other machines and local cannot replace
	// its host.
	AdvertiseAt(addr, local string) (string, bool)

	// Reach returns the address to dial for a listener of the peer of c that advertises addr. That
	// is addr itself or, if addr is not valid at this machine, the peer's address with addr's port.
	Reach(addr string, c Conn) string
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

// AckTimeouter is implemented by Transports that can limit how long they take to detect that a peer
// has vanished without notice, for example because the network failed.
type AckTimeouter interface {
	// WithAckTimeout returns a copy of this Transport whose connections, dialled or accepted, fail
	// once bytes that they have sent have been unacknowledged for d. d must be positive. This
	// Transport does not change.
	WithAckTimeout(d time.Duration) Transport
}
