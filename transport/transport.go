// Package transport defines the interface between a pipe and the means by which its bytes leave the
// process. An implementation (uv for TCP, shm for shared memory, mem within one process, others by
// third parties) provides a [Transport]. Package transporttest contains the conformance suite that
// every implementation must pass.
//
// Optional capabilities, such as [Multiplexer] or [FrameLimiter], are interfaces of their own: a
// pipe checks whether a Transport, Conn or Stream implements them.
package transport

import (
	"context"
	"errors"
	"net"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/internal/probe"
)

// Transport connects processes. All methods may be called concurrently.
type Transport interface {
	// Viable returns nil if the transport works on this machine, and otherwise an error with the
	// reason that satisfies errors.Is(err, ErrNotSupported). It probes at most once.
	Viable() error

	// DomainDescriptor describes the set of processes that can be reached, for example "uv:*". It
	// is sent to the peer and never empty.
	DomainDescriptor() string

	// CanCommunicate reports whether a peer with that domain descriptor can be reached. The text
	// comes from the peer and must not be trusted. It returns false for a text that no transport
	// of this kind sends.
	CanCommunicate(remote string) bool

	// Listen opens a listener on addr, which has no URL scheme. ctx bounds the call only, not the
	// lifetime of the listener.
	Listen(ctx context.Context, addr string) (Listener, error)

	// Dial connects to addr. ctx bounds the call only, not the lifetime of the connection. After
	// ctx has ended, Dial returns an error that matches that of ctx. It returns an error if no
	// listener is open at addr.
	Dial(ctx context.Context, addr string) (Conn, error)
}

// Listener accepts connections at one address. Its methods may be called concurrently.
type Listener interface {
	// Accept returns the next connection, in the order of arrival, and blocks until there is one.
	// It returns an error that matches ctx's error when ctx ends, or ErrClosed after Close. A call
	// that fails takes no connection. Concurrent calls are served in order.
	Accept(ctx context.Context) (Conn, error)

	// Addr returns the address that a peer can dial, in which a port 0 is replaced by the actual
	// port. It stays available after Close.
	Addr() string

	// Close stops listening. Blocked calls of Accept return ErrClosed. Connections that were not
	// accepted are closed; accepted ones stay open. Closing again does nothing and returns nil.
	Close() error
}

// Frame is the contents of one frame, in parts that need not be adjacent in memory. A frame may be
// empty.
type Frame [][]byte

// Conn carries delimited frames in order: one frame written is one frame read.
//
// One goroutine may write while another one reads; two concurrent writers or readers are not
// allowed. Close, CloseWrite and the address methods may be called concurrently at any time. The Conn
// uses memory that is passed to a call only until the call returns, also if it fails.
//
// Callers compare errors with errors.Is: io.EOF, ErrClosed and others may be wrapped. An error that
// ends the reading half is sticky: later calls of NextFrame and ReadBody return an error that matches
// the same one, and no call returns io.EOF after an end within a frame. Whatever the peer does, no
// error matches ErrClosed, which reports that this process has closed the Conn.
type Conn interface {
	// WriteFrames writes the frames in order with as few system calls as the transport can. It
	// does not change the frames. It blocks while the peer does not read, but not before the Conn
	// holds 4 KiB that the peer has not read, so that two ends that write before they read do not
	// block each other. A Conn holds at most 64 MiB. When it returns the memory may be reused,
	// even if the peer has not read anything yet. After an error the connection can only be closed.
	WriteFrames(frames ...Frame) error

	// NextFrame blocks until the next frame arrives and returns the size of its body as the peer
	// has stated it; no memory is allocated for the body. It returns io.EOF if the peer closed
	// between two frames and io.ErrUnexpectedEOF if it closed within a header. Calling it again
	// before the whole body was read is an error that matches ErrFrame and changes nothing.
	NextFrame() (int64, error)

	// ReadBody fills dst in order with the next bytes of the current frame's body. If fewer
	// remain, or there is no current frame, it reads nothing and the error matches ErrFrame. The
	// body may be read in several calls. An orderly end of the connection within the body is
	// io.ErrUnexpectedEOF.
	ReadBody(dst ...[]byte) error

	// CloseWrite closes the writing half: the peer reads the frames written before, then io.EOF.
	// Reading goes on; WriteFrames returns ErrClosed from then on, also a call that is blocked.
	CloseWrite() error

	// Close ends both directions at once. Blocked calls return ErrClosed, and no longer use their
	// memory when they return. Bytes in transit may be lost; a caller that needs them delivered
	// calls CloseWrite and reads until io.EOF. Closing again does nothing and returns nil.
	Close() error

	// LocalAddr and RemoteAddr return the addresses of the two ends, for error messages and logs.
	// They stay available after Close. Unless the network translates addresses, LocalAddr of the
	// end that dialled equals RemoteAddr of the end that accepted, and the reverse.
	LocalAddr() string
	RemoteAddr() string
}

// ErrClosed is returned by calls on a Conn or Listener that this process has closed. It is the same
// value as net.ErrClosed.
var ErrClosed = net.ErrClosed

// ErrNotSupported matches errors of transports and channels that do not work
// on this machine. It is the same value as errors.ErrUnsupported.
var ErrNotSupported = errors.ErrUnsupported

// ErrResource matches errors about resources that the system denies this process, such as
// descriptors or shared memory. The connection has not broken and the peer may be alive, so a pipe
// does not report such an error as the loss of the peer, as it does for other errors with an error
// number of a system call or with a net.Error. An error of a Transport, Conn, Session or Stream
// declares this by wrapping ErrResource, or by a method Is, which leaves the text unchanged.
var ErrResource = probe.ErrResource

// ErrFrame matches errors about frames that violate the framing: an invalid length, or calls of
// NextFrame and ReadBody out of order.
var ErrFrame = frame.ErrBad

// NotSupportedError is the error of Viable, with the capability that is missing and the reason.
type NotSupportedError = probe.NotSupportedError
