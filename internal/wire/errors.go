package wire

import "errors"

// ErrLimit matches errors about messages that are well-formed but larger than
// [Limits] allow. If the peer is trusted, raise the limit.
var ErrLimit = errors.New("larger than the limit")

// Error says which part of which message could not be decoded. If it does not
// match [ErrLimit] the peer broke the protocol, and the connection cannot be
// used any more.
type Error struct {
	Message string // the message that was expected, as in "Brochure"
	Field   string // the member being read, empty for the message as a whole
	Err     error  // a *nop.Error, or an error that matches ErrLimit
}

func (e *Error) Error() string {
	if e.Field == "" {
		return "wire: " + e.Message + ": " + e.Err.Error()
	}
	return "wire: " + e.Message + "." + e.Field + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }
