package native

import (
	"errors"
	"fmt"
)

// ErrChecksum matches errors about frames and chunks whose bytes changed on
// their way. The connection cannot be used any more: where the next frame
// starts is as doubtful as the bytes are.
var ErrChecksum = errors.New("checksum does not match")

// ErrLimit matches errors about frames that are well-formed but larger than
// [Limits] allow, and about messages too large to be sent. If the peer is
// trusted, raise the limit.
var ErrLimit = errors.New("larger than the limit")

// Error says which part of which frame could not be decoded, or encoded. If it
// matches neither [ErrLimit] nor [ErrChecksum] the peer broke the protocol. In
// all cases the connection cannot be used any more.
type Error struct {
	Frame string // the kind of frame, as in "MESSAGE"
	Field string // the field, as in docs/wire.md
	Err   error  // what is wrong with it
}

func (e *Error) Error() string {
	return "native: " + e.Frame + ", " + e.Field + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

func fault(frame, field, format string, args ...any) error {
	return &Error{Frame: frame, Field: field, Err: fmt.Errorf(format, args...)}
}

// exceeded is the error about a number that is above its limit.
func exceeded(frame, field string, got, limit uint64) error {
	return fault(frame, field, "%w: %d, at most %d", ErrLimit, got, limit)
}
