package future

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/tensorpipe-go/tensorpipe/device"
)

var (
	// ErrDone: the future has been completed before. Its outcome stays.
	ErrDone = errors.New("future: already done")

	// ErrPending: the future is not done yet.
	ErrPending = errors.New("future: not done yet")

	// ErrCancelled: somebody gave the future up, see Cancel.
	ErrCancelled = errors.New("future: cancelled")

	// ErrNilCallback: there is no function to run.
	ErrNilCallback = errors.New("future: callback is nil")

	// ErrNilFuture: there is no future to wait for.
	ErrNilFuture = errors.New("future: future is nil")

	// ErrNilError: Fail was called without an error.
	ErrNilError = errors.New("future: failed without an error")

	// ErrCycle: a function that was to return another future returned the one
	// that waits for it.
	ErrCycle = errors.New("future: waits for itself")

	// ErrGoexit: a function neither returned nor panicked but ended its
	// goroutine, as FailNow of a test does.
	ErrGoexit = errors.New("future: callback ended its goroutine")
)

// CancelError is the error of a cancelled future. It matches [ErrCancelled] and
// what Cause matches.
type CancelError struct {
	Cause error // as given to Cancel
}

func (e *CancelError) Error() string { return ErrCancelled.Error() + ": " + e.Cause.Error() }

// Unwrap returns the cause.
func (e *CancelError) Unwrap() error { return e.Cause }

// Is reports whether target is [ErrCancelled].
func (e *CancelError) Is(target error) bool { return target == ErrCancelled }

// PanicError is a panic of a function given to this package.
type PanicError struct {
	Value any    // given to panic
	Stack []byte // of the goroutine that panicked, as debug.Stack prints it
}

// caught must be called by the function that recovered, for the stack.
func caught(value any) *PanicError { return &PanicError{Value: value, Stack: debug.Stack()} }

func (e *PanicError) Error() string { return fmt.Sprintf("future: callback panicked: %v", e.Value) }

// Unwrap returns the value given to panic if that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// StreamError says that a stream refused an event, so that nothing can be
// ordered behind the work that makes a value.
type StreamError struct {
	Op     string        // "record" or "wait"
	Device device.Device // of the stream
	Err    error         // of the stream
}

func (e *StreamError) Error() string {
	return fmt.Sprintf("future: %s an event on %v: %v", e.Op, e.Device, e.Err)
}

// Unwrap returns what the stream said.
func (e *StreamError) Unwrap() error { return e.Err }
