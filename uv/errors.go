package uv

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
)

// ErrTLSMismatch matches errors about connections of which only one end uses TLS: give both
// transports [WithTLS], or neither.
var ErrTLSMismatch = errors.New("one end speaks TLS and the other does not")

// ErrTLSConfig matches errors about a transport whose [WithTLS] lacks the configuration that a call
// needs.
var ErrTLSConfig = errors.New("no TLS configuration for this role")

// ErrHandedOver is returned by calls on a connection after Stream or Multiplex. Use the stream or
// the session that was returned instead of the connection.
var ErrHandedOver = errors.New("uv: the connection was made a stream or a session")

// HandshakeError is the error of a TLS handshake on an established connection. Err is the cause: it
// matches [ErrTLSMismatch], is an alert of the peer, describes the fault of the peer's certificate,
// as in errors.AsType[*tls.CertificateVerificationError](err), or is the failure or the end of the
// connection.
type HandshakeError struct {
	Peer string // the address
	Err  error  // the cause
}

func (e *HandshakeError) Error() string {
	return "uv: TLS handshake with " + e.Peer + ": " + e.Err.Error()
}

// Unwrap returns Err, the cause.
func (e *HandshakeError) Unwrap() error { return e.Err }

// AddrError is the error of ParseAddr, Listen and Dial for a text that is not an address.
type AddrError struct {
	Addr   string // the text
	Reason string
}

func (e *AddrError) Error() string { return fmt.Sprintf("uv: bad address %q: %s", e.Addr, e.Reason) }

// DialError is the error of Dial. Err is the cause: the context's error, an error of package net
// that wraps the kernel's, as in errors.Is(err, syscall.ECONNREFUSED), a *HandshakeError, or an
// error that matches ErrTLSConfig.
type DialError struct {
	Addr string
	Err  error
}

func (e *DialError) Error() string {
	text := errtext.OfNetwork(e.Err, e.Addr)
	if h, ok := e.Err.(*HandshakeError); ok {
		text = strings.TrimPrefix(h.Error(), "uv: ")
		if h.Peer == e.Addr {
			text = "TLS handshake: " + h.Err.Error()
		}
	}
	return "uv: dial " + e.Addr + ": " + text
}

// Unwrap returns Err, the cause.
func (e *DialError) Unwrap() error { return e.Err }

// ListenError is the error of Listen. Err is the cause: the context's error, the errors of package
// net for each numeric address that was tried, as in errors.Is(err, syscall.EADDRINUSE), or an
// error that matches ErrTLSConfig.
type ListenError struct {
	Addr string
	Err  error
}

func (e *ListenError) Error() string {
	return "uv: listen on " + e.Addr + ": " + errtext.OfNetwork(e.Err, e.Addr)
}

// Unwrap returns Err, the cause.
func (e *ListenError) Unwrap() error { return e.Err }

// LookupError is the error of LookupHostname, LookupInterface and LookupLikeNCCL if they find no
// address of this machine to listen on.
type LookupError struct {
	Query string   // for example "interface eth0"
	Tried []string // addresses that were found but cannot be bound
	Err   error    // why there is nothing to try, or why the first cannot be bound
}

func (e *LookupError) Error() string {
	msg := "uv: no address for " + e.Query
	if len(e.Tried) > 0 {
		msg += " can be bound (tried " + strings.Join(e.Tried, ", ") + ")"
	}
	return msg + ": " + e.Err.Error()
}

// Unwrap returns Err, the cause.
func (e *LookupError) Unwrap() error { return e.Err }
