package bench

import (
	"errors"
	"fmt"
)

// ErrSpec matches errors about a Spec that cannot be measured: change it.
var ErrSpec = errors.New("bench: bad spec")

// ErrPath matches errors about a path that does not exist on this machine, or
// not between these two ends: see PathError.
var ErrPath = errors.New("bench: no such path here")

// PathError says why a path cannot be measured. It matches ErrPath.
type PathError struct {
	What string // "transport shm", say
	Err  error  // why not
}

func (e *PathError) Error() string { return e.What + ": " + e.Err.Error() }

// Unwrap returns the reason, too.
func (e *PathError) Unwrap() []error { return []error{ErrPath, e.Err} }

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
