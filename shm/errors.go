package shm

import (
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// ErrOtherUser matches errors about peers that run as another user. Run both
// ends as one user, or see [WithOtherUsers].
var ErrOtherUser = errors.New("the peer runs as another user")

// ErrProtocol matches errors about peers that violate the protocol of the transport: of its
// handshake, or of the memory that the two ends share. It matches [transport.ErrFrame], by which a
// pipe recognizes such errors.
var ErrProtocol error = protocolViolation{}

type protocolViolation struct{}

func (protocolViolation) Error() string { return "the peer violates the protocol of shared memory" }
func (protocolViolation) Unwrap() error { return transport.ErrFrame }

// ErrHandedOver is returned by calls on a connection after Stream or Multiplex. Use the stream or
// the session that was returned instead of the connection.
var ErrHandedOver = errors.New("shm: the connection was made a stream or a session")

// AddrError is the error of Listen and Dial for a text that is not an address.
type AddrError struct {
	Addr   string // the text
	Reason string
}

func (e *AddrError) Error() string { return fmt.Sprintf("shm: bad address %q: %s", e.Addr, e.Reason) }

// DialError is the error of Dial. Err is the cause: the error of Viable, the context's error, an
// error of package net that wraps the kernel's, as in errors.Is(err, syscall.ECONNREFUSED), or a
// *HandshakeError.
type DialError struct {
	Addr string
	Err  error
}

func (e *DialError) Error() string {
	return "shm: dial " + e.Addr + ": " + errtext.OfNetwork(e.Err, e.Addr)
}

// Unwrap returns Err, the cause.
func (e *DialError) Unwrap() error { return e.Err }

// ListenError is the error of Listen. Err is the cause: the error of Viable, or an error of package
// net that wraps the kernel's, as in errors.Is(err, syscall.EADDRINUSE).
type ListenError struct {
	Addr string
	Err  error
}

func (e *ListenError) Error() string {
	return "shm: listen on " + e.Addr + ": " + errtext.OfNetwork(e.Err, e.Addr)
}

// Unwrap returns Err, the cause.
func (e *ListenError) Unwrap() error { return e.Err }

// HandshakeError is the error of a handshake with a peer that was reached. Err is the cause: it
// matches [ErrOtherUser] or [ErrProtocol], or is the end of the connection, a limit of this
// process, or the context's error.
type HandshakeError struct {
	Peer string
	Err  error
}

func (e *HandshakeError) Error() string {
	return "shm: handshake with " + e.Peer + ": " + e.Err.Error()
}

// Unwrap returns Err, the cause.
func (e *HandshakeError) Unwrap() error { return e.Err }

// Error is the error of a read or a write on a connection. Err is the cause: syscall.EPIPE if the
// peer is gone, or an error that matches [ErrProtocol] if the peer broke the protocol.
type Error struct {
	Op   string // "read" or "write"
	Peer string
	Err  error
}

func (e *Error) Error() string { return "shm: " + e.Op + " with " + e.Peer + ": " + e.Err.Error() }

// Unwrap returns Err, the cause.
func (e *Error) Unwrap() error { return e.Err }
