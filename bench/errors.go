package bench

import (
	"errors"
	"fmt"
)

// ErrSpec matches errors about a Spec that cannot be measured: change it.
var ErrSpec = errors.New("bench: bad spec")

// ErrCorrupt matches errors about bytes that did not arrive as they were sent.
// A figure with such an error does not exist: the library is wrong.
var ErrCorrupt = errors.New("bench: corrupted bytes")

// ErrProtocol matches errors about what the other process said: it is of another
// version, or something else than a child of this package.
var ErrProtocol = errors.New("bench: unexpected answer of the second process")

// ProcessError says how a process ended that should have gone on, with its own
// words.
type ProcessError struct {
	Name   string // of the program
	Stderr string
	Err    error
}

func (e *ProcessError) Error() string {
	text := fmt.Sprintf("process %s: %v", e.Name, e.Err)
	if e.Stderr != "" {
		text += ": " + e.Stderr
	}
	return text
}

// Unwrap returns how the process ended.
func (e *ProcessError) Unwrap() error { return e.Err }

func specErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrSpec, fmt.Sprintf(format, args...))
}
