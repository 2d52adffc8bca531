// Package transport is the seam between a pipe and the way its bytes leave the
// process. An implementation (uv for TCP, mem within one process, others by
// third parties) supplies a [Transport]; the pipe does the rest. The package
// transporttest holds the conformance suite that every implementation passes.
package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/internal/probe"
)

// Transport connects processes. All methods may be called concurrently.
type Transport interface {
	// Viable is nil where the transport works, or an error that says why not
	// and satisfies errors.Is(err, ErrNotSupported). It probes at most once.
	Viable() error

	// DomainDescriptor describes the set of processes that can be reached, as
	// in "uv:*". It is sent to the peer and never empty.
	DomainDescriptor() string

	// CanCommunicate reports whether a peer with that domain descriptor can be
	// reached. It must not trust the text: the peer wrote it.
	CanCommunicate(remote string) bool

	// Listen opens a listener on addr, without the scheme of a URL. ctx bounds
	// the call only, not the life of the listener.
	Listen(ctx context.Context, addr string) (Listener, error)

	// Dial connects to addr. ctx bounds the call only, not the life of the
	// connection.
	Dial(ctx context.Context, addr string) (Conn, error)
}

// Listener accepts connections.
type Listener interface {
	// Accept waits for the next connection, in the order in which they came.
	// It returns ctx's error when ctx ends and ErrClosed after Close. Several
	// calls may wait at once; they are served in order.
	Accept(ctx context.Context) (Conn, error)

	// Addr is the address a peer can dial, materialised: a port 0 has become a
	// real one. It stays available after Close.
	Addr() string

	// Close stops listening. Calls blocked in Accept return ErrClosed;
	// connections that nobody accepted are closed, accepted ones live on.
	// Closing again does nothing and returns nil.
	Close() error
}

// Advertiser is a power that some Listeners have besides: to know that Addr is
// no use to a peer, as with a listener bound to every address of the machine.
type Advertiser interface {
	// AdvertiseTo is the address at which the peer of c reaches the listener:
	// the one through which it came, where that differs from Addr. c may be
	// any connection to that peer.
	AdvertiseTo(c Conn) string
}

// Reacher is a power that some Transports have besides: to make sense of an
// address that means something at the peer only, such as the wildcard that a
// C++ listener advertises when it is bound to one.
type Reacher interface {
	// Reach is the address to dial for a listener of the peer of c that
	// advertises addr: addr itself, or the peer's own address with addr's
	// port.
	Reach(addr string, c Conn) string
}

// Frame is one delimited write in parts that need not be adjacent in memory.
// It may be empty: a frame of no bytes is still a frame.
type Frame [][]byte

// Conn carries delimited frames in order: one frame written is one frame read.
//
// One goroutine may write while another reads; two writers or two readers at
// once are the caller's mistake. Close, CloseWrite and the address methods may
// be called from anywhere at any time. Memory passed in belongs to the Conn
// until the call returns, and not a moment longer, also when it fails.
type Conn interface {
	// WriteFrames writes the frames in order, as few system calls as the
	// transport can. It returns when the memory may be reused; that does not
	// mean that the peer has read anything. It blocks while the peer does not
	// read. After an error the connection can only be closed.
	WriteFrames(frames ...Frame) error

	// NextFrame waits for the next frame and returns the number of bytes its
	// body has, as the peer claims; nothing is allocated for it. It returns
	// io.EOF when the peer closed between two frames and io.ErrUnexpectedEOF
	// within a header. Calling it again before the body was read in full is an
	// error.
	NextFrame() (int64, error)

	// ReadBody fills dst in order with the next bytes of the frame that
	// NextFrame announced, and fails without reading if fewer are left. The
	// body may be read in several calls. An end of the connection within the
	// body is io.ErrUnexpectedEOF.
	ReadBody(dst ...[]byte) error

	// CloseWrite tells the peer that no more frames will come: it reads what
	// was written, then io.EOF. Reading goes on; WriteFrames returns ErrClosed
	// from then on.
	CloseWrite() error

	// Close ends both directions at once. Blocked calls return ErrClosed and
	// have let go of their memory when they return. Bytes on their way may be
	// lost; who needs them delivered calls CloseWrite and reads until io.EOF.
	// Closing again does nothing and returns nil.
	Close() error

	// LocalAddr and RemoteAddr are the two ends, for messages to people; they
	// stay available after Close.
	LocalAddr() string
	RemoteAddr() string
}

// Secured is a power that some Conns have besides: they are TLS, and know who
// the peer is.
type Secured interface {
	// ConnectionState tells what the two ends agreed on and the certificates
	// by which the peer proved its name. It is false where they did not agree,
	// so that all calls on the Conn fail. It stays available after Close.
	ConnectionState() (tls.ConnectionState, bool)
}

// ErrClosed is returned by calls on a Conn or Listener that this process
// closed. It is the same value as net.ErrClosed.
var ErrClosed = net.ErrClosed

// ErrNotSupported matches errors of transports and channels that do not work
// on this machine. It is the same value as errors.ErrUnsupported.
var ErrNotSupported = errors.ErrUnsupported

// ErrFrame matches errors about frames that break the framing: a length that
// no frame can have, or calls of NextFrame and ReadBody out of order.
var ErrFrame = frame.ErrBad

// NotSupportedError is the error of Viable: what is missing and why.
type NotSupportedError = probe.NotSupportedError
