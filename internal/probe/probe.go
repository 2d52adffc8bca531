// Package probe tests once whether the machine has a capability and keeps the result: nil, or an
// error with the reason. It also has the errors about what the machine lacks that package transport
// re-exports.
package probe

import (
	"errors"
	"fmt"
	"sync"
)

// ErrResource matches errors about resources that the system denies this process. Package transport
// re-exports it.
var ErrResource = errors.New("the system denies a resource")

// NotSupportedError means that the machine lacks a capability. It matches [errors.ErrUnsupported].
type NotSupportedError struct {
	Capability string // for example "xth"
	Reason     string // why the machine lacks it
}

func (e *NotSupportedError) Error() string {
	return e.Capability + " is not supported: " + e.Reason
}

// Is reports whether target is [errors.ErrUnsupported].
func (e *NotSupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// NotSupported returns a *NotSupportedError for capability. Its Reason is made of format and args
// as by fmt.Sprintf.
func NotSupported(capability, format string, args ...any) error {
	return &NotSupportedError{Capability: capability, Reason: fmt.Sprintf(format, args...)}
}

// Once returns a function that tests whether the machine has capability. The function runs test
// when it is first called, and returns the result of that call from then on: nil, or an error that
// matches [errors.ErrUnsupported]. If test returns an error that does not contain a
// *NotSupportedError, its text becomes the Reason of one. The function may be called concurrently.
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
