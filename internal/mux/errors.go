package mux

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// ErrConfig matches the error of a session that was asked for with limits that
// make no sense.
var ErrConfig = errors.New("mux: bad configuration")

// errGaveUp is the end of a session of which yamux thinks otherwise than we do.
var errGaveUp = errors.New("mux: yamux gave the session up")

// errReset is why nothing can be sent on a stream; see ResetError.
var errReset = errors.New("mux: the peer has reset the stream")

// EndError is what calls on a stream return whose session has ended. It matches
// the session's Err, also where that is io.EOF, but never equals io.EOF: a
// stream that was not finished by its writer must not look like one that was.
type EndError struct {
	Err error // the session's Err
}

func (e *EndError) Error() string { return "the session has ended: " + e.Err.Error() }

// Unwrap returns the session's Err.
func (e *EndError) Unwrap() error { return e.Err }

// ResetError is what calls on a stream return that the peer gave up, or had no
// room for. It matches syscall.ECONNRESET, as on TCP. The session goes on.
type ResetError struct {
	Stream uint32 // its number in the session
}

func (e *ResetError) Error() string { return fmt.Sprintf("stream %d was reset by the peer", e.Stream) }

// Unwrap returns syscall.ECONNRESET.
func (e *ResetError) Unwrap() error { return syscall.ECONNRESET }

// ProtocolError is the end of a session whose peer broke the rules. It matches
// [transport.ErrFrame]. Nothing but another peer helps.
type ProtocolError struct {
	Reason string
}

func (e *ProtocolError) Error() string { return "mux: the peer broke the protocol: " + e.Reason }

// Unwrap returns [transport.ErrFrame].
func (e *ProtocolError) Unwrap() error { return transport.ErrFrame }

func violation(format string, args ...any) error {
	return &ProtocolError{Reason: fmt.Sprintf(format, args...)}
}
