// Package probe asks the machine what it can do. Each capability is probed
// once and the answer kept: nil, or an error that says why not.
package probe

import (
	"errors"
	"fmt"
	"sync"
)

// NotSupportedError says that a capability is missing on this machine and why.
type NotSupportedError struct {
	Capability string // what was asked for, as in "xth"
	Reason     string // why this machine does not offer it
}

func (e *NotSupportedError) Error() string {
	return e.Capability + " is not supported: " + e.Reason
}

// Is makes the error match [errors.ErrUnsupported].
func (e *NotSupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// NotSupported builds a NotSupportedError.
func NotSupported(capability, format string, args ...any) error {
	return &NotSupportedError{Capability: capability, Reason: fmt.Sprintf(format, args...)}
}

// Once returns a function that runs test at its first call and returns that
// result from then on. An error of another type becomes a NotSupportedError.
func Once(capability string, test func() error) func() error {
	return sync.OnceValue(func() error {
		err := test()
		var typed *NotSupportedError
		if err == nil || errors.As(err, &typed) {
			return err
		}
		return NotSupported(capability, "%v", err)
	})
}
