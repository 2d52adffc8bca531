package bench

import (
	"errors"
	"fmt"
)

// ErrSpec matches errors about an invalid Spec.
var ErrSpec = errors.New("bench: bad spec")

// ErrPath matches errors about a path that does not work on this machine or between these two
// ends, see PathError.
var ErrPath = errors.New("bench: no such path here")

// PathError reports that a path cannot be measured, and why. It matches ErrPath.
type PathError struct {
	What string // for example "transport shm"
	Err  error  // the reason
}

func (e *PathError) Error() string { return e.What + ": " + e.Err.Error() }

// Unwrap returns ErrPath and the reason, so that the error matches both.
func (e *PathError) Unwrap() []error { return []error{ErrPath, e.Err} }

// ErrCorrupt matches errors about bytes that did not arrive as they were sent. The measurement has
// no result then, because the library is faulty.
var ErrCorrupt = errors.New("bench: corrupted bytes")

// ErrProtocol matches errors about unexpected output of the other process, which is another version
// or another program.
var ErrProtocol = errors.New("bench: unexpected answer of the second process")

// ProcessError reports that a process ended unexpectedly.
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

// Unwrap returns the error with which the process ended.
func (e *ProcessError) Unwrap() error { return e.Err }

// specErrorf returns an error that matches ErrSpec and has the formatted text.
func specErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrSpec, fmt.Sprintf(format, args...))
}
