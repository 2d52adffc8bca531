package uv

import (
	"errors"
	"fmt"
	"strings"
)

// ErrTLSMismatch matches errors about connections of which one end speaks TLS
// and the other does not: give both transports [WithTLS], or neither.
var ErrTLSMismatch = errors.New("one end speaks TLS and the other does not")

// ErrTLSConfig matches errors about a transport whose [WithTLS] lacks what a
// call needs.
var ErrTLSConfig = errors.New("no TLS configuration for this role")

// ErrHandedOver is returned by calls on a connection whose bytes now belong to
// the result of its Stream or Multiplex: use that.
var ErrHandedOver = errors.New("uv: the connection was made a stream or a session")

// HandshakeError says that a connection came about but TLS on it did not. Err
// is the cause: one that matches [ErrTLSMismatch], an alert of the peer, or
// what is wrong with its certificate, as in
// errors.AsType[*tls.CertificateVerificationError](err).
type HandshakeError struct {
	Peer string // the address
	Err  error
}

func (e *HandshakeError) Error() string {
	return "uv: TLS handshake with " + e.Peer + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *HandshakeError) Unwrap() error { return e.Err }

// AddrError says why a text is not an address. Correct the address.
type AddrError struct {
	Addr   string // the text
	Reason string
}

func (e *AddrError) Error() string { return fmt.Sprintf("uv: bad address %q: %s", e.Addr, e.Reason) }

// DialError says that nobody was reached at an address. Err is the cause: the
// context's error, or one of package net that holds the kernel's, as in
// errors.Is(err, syscall.ECONNREFUSED).
type DialError struct {
	Addr string
	Err  error
}

func (e *DialError) Error() string { return "uv: dial " + e.Addr + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *DialError) Unwrap() error { return e.Err }

// ListenError says that no listener could be opened on an address. Err is the
// cause: the context's error, or those of package net for each numeric address
// that was tried, as in errors.Is(err, syscall.EADDRINUSE).
type ListenError struct {
	Addr string
	Err  error
}

func (e *ListenError) Error() string { return "uv: listen on " + e.Addr + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *ListenError) Unwrap() error { return e.Err }

// LookupError says that no address of this machine was found to listen on.
type LookupError struct {
	Query string   // what was looked for, as in "interface eth0"
	Tried []string // the addresses that were found but cannot be bound
	Err   error    // why there is nothing to try, or why the first cannot be bound
}

func (e *LookupError) Error() string {
	msg := "uv: no address for " + e.Query
	if len(e.Tried) > 0 {
		msg += " can be bound (tried " + strings.Join(e.Tried, ", ") + ")"
	}
	return msg + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *LookupError) Unwrap() error { return e.Err }
