package shm

import (
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// ErrOtherUser matches errors about peers that run as another user. Run both
// ends as one user, or see [WithOtherUsers].
var ErrOtherUser = errors.New("the peer runs as another user")

// ErrProtocol matches errors about peers that break the rules of the transport:
// of its handshake, or of the memory that the two ends share. It matches
// [transport.ErrFrame], by which a pipe knows that.
var ErrProtocol error = breach{}

type breach struct{}

func (breach) Error() string { return "the peer breaks the rules of shared memory" }
func (breach) Unwrap() error { return transport.ErrFrame }

// ErrHandedOver is returned by calls on a connection whose bytes now belong to
// the result of its Stream or Multiplex: use that.
var ErrHandedOver = errors.New("shm: the connection was made a stream or a session")

// AddrError says why a text is not an address. Correct the address.
type AddrError struct {
	Addr   string // the text
	Reason string
}

func (e *AddrError) Error() string { return fmt.Sprintf("shm: bad address %q: %s", e.Addr, e.Reason) }

// DialError says that nobody was reached at an address. Err is the cause: the
// context's error, one of package net that holds the kernel's, as in
// errors.Is(err, syscall.ECONNREFUSED), or a *HandshakeError.
type DialError struct {
	Addr string
	Err  error
}

func (e *DialError) Error() string { return "shm: dial " + e.Addr + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *DialError) Unwrap() error { return e.Err }

// ListenError says that no listener could be opened on an address. Err is the
// cause, as in errors.Is(err, syscall.EADDRINUSE).
type ListenError struct {
	Addr string
	Err  error
}

func (e *ListenError) Error() string { return "shm: listen on " + e.Addr + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *ListenError) Unwrap() error { return e.Err }

// HandshakeError says that a peer was there but shared no memory. Err is the
// cause: one that matches [ErrOtherUser] or [ErrProtocol], the end of the
// connection, a limit of this process, or the context's error.
type HandshakeError struct {
	Peer string
	Err  error
}

func (e *HandshakeError) Error() string {
	return "shm: handshake with " + e.Peer + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *HandshakeError) Unwrap() error { return e.Err }

// Error is the failure of a connection. Err is the cause: syscall.EPIPE where
// the peer is gone, one that matches [ErrProtocol] where it is to blame.
type Error struct {
	Op   string // "read" or "write"
	Peer string
	Err  error
}

func (e *Error) Error() string { return "shm: " + e.Op + " with " + e.Peer + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
