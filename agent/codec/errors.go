package codec

import (
	"errors"
	"fmt"
	"strings"
)

// Errors that the errors of this package match, see errors.Is. All come as an
// [*Error], which says where in the value.
var (
	// ErrCorrupt says that bytes are no message: the peer is broken or speaks
	// another version.
	ErrCorrupt = errors.New("corrupt message")

	// ErrLimit says that a message or a value is larger or deeper than [Limits]
	// allow. If the peer is trusted, raise the limit.
	ErrLimit = errors.New("beyond the limit")

	// ErrType says that a value does not fit the Go type it was to go to, or
	// that a type in an interface is not registered. Where two types are at odds
	// the error holds a [*TypeError].
	ErrType = errors.New("type does not fit")

	// ErrCycle says that a value contains itself. Break the cycle, or give its
	// type an encoding of its own.
	ErrCycle = errors.New("value contains itself")

	// ErrUnsupported says that values of a type cannot travel, as channels and
	// unexported fields. Leave the field out with the tag `tensorpipe:"-"`, or
	// give the type an encoding of its own.
	ErrUnsupported = errors.New("cannot travel")

	// ErrStorage says that the memory given to [Decoder.Supply] is not that of
	// the message, or that none was given.
	ErrStorage = errors.New("memory of tensors does not fit the message")

	// ErrRegistered says that a name or a type has been registered before as
	// something else.
	ErrRegistered = errors.New("registered before")
)

// Error says what is wrong, and in which part of the value.
type Error struct {
	Err error // what is wrong

	segments []string // of the path, the innermost first
}

func (e *Error) Error() string {
	if len(e.segments) == 0 {
		return "codec: " + e.Err.Error()
	}
	return "codec: " + e.Path() + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// shown is how many segments of either end of a long path are shown.
const shown = 16

// Path leads from the value given to Encode or Decode to the part at fault, as
// in "Args.Layers[3].Weight"; "" where the message as a whole is. The middle of
// a long path is left out.
func (e *Error) Path() string {
	var path strings.Builder
	n := len(e.segments)
	for i := n - 1; i >= 0; i-- {
		if from := n - shown; n > 2*shown && i < from && i >= shown {
			if i == shown {
				path.WriteString("(...)")
			}
			continue
		}
		path.WriteString(e.segments[i])
	}
	return strings.TrimPrefix(path.String(), ".")
}

// at adds a segment to the front of the path of an error on its way up.
func at(err error, segment string) error {
	e, ok := err.(*Error)
	if !ok {
		e = &Error{Err: err}
	}
	e.segments = append(e.segments, segment)
	return e
}

// fault is an error that matches a sentinel.
func fault(sentinel error, format string, args ...any) error {
	return &Error{Err: fmt.Errorf("%w: %s", sentinel, fmt.Sprintf(format, args...))}
}

func corrupt(format string, args ...any) error { return fault(ErrCorrupt, format, args...) }

// TypeError says which two types are at odds. It matches ErrType.
type TypeError struct {
	Wire string // the type in the message, in the words of its sender
	Go   string // the type here
}

func (e *TypeError) Error() string {
	return fmt.Sprintf("%v: the message has %s, want %s", ErrType, e.Wire, e.Go)
}

// Unwrap returns ErrType.
func (e *TypeError) Unwrap() error { return ErrType }
