package future

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/device"
)

var (
	// ErrTimeout: the deadline of the context of a wait has passed, and the future is pending. The
	// error matches context.DeadlineExceeded, too. It is the same value as agent.ErrTimeout.
	ErrTimeout = ctxerr.ErrTimeout

	// ErrDone: the future has been completed before. Its outcome does not change.
	ErrDone = errors.New("future: already done")

	// ErrPending: the future is not done yet.
	ErrPending = errors.New("future: not done yet")

	// ErrCancelled: the future was cancelled, see Cancel.
	ErrCancelled = errors.New("future: cancelled")

	// ErrNilCallback: the function to run is nil.
	ErrNilCallback = errors.New("future: callback is nil")

	// ErrNilFuture: the future to wait for is nil.
	ErrNilFuture = errors.New("future: future is nil")

	// ErrNilError: Fail was called with a nil error.
	ErrNilError = errors.New("future: failed without an error")

	// ErrCycle: a function that returns a future returned the one that waits for it.
	ErrCycle = errors.New("future: waits for itself")

	// ErrGoexit: a function ended its goroutine instead of returning, as FailNow of a test
	// does.
	ErrGoexit = errors.New("future: callback ended its goroutine")
)

// CancelError is the error of a future that was cancelled with a cause. It matches
// [ErrCancelled] and the cause.
type CancelError struct {
	Cause error // as given to Cancel
}

func (e *CancelError) Error() string { return ErrCancelled.Error() + ": " + e.Cause.Error() }

// Unwrap returns the cause that was given to Cancel.
func (e *CancelError) Unwrap() error { return e.Cause }

// Is reports whether target is [ErrCancelled].
func (e *CancelError) Is(target error) bool { return target == ErrCancelled }

// PanicError reports a panic of a function given to this package.
type PanicError struct {
	Value any    // the argument of panic
	Stack []byte // of the goroutine that panicked, as from debug.Stack
}

// newPanicError returns a PanicError with value, the argument of panic, and the stack of the
// calling goroutine. It must be called by the deferred function that recovered, while that stack
// still shows where the panic occurred.
func newPanicError(value any) *PanicError { return &PanicError{Value: value, Stack: debug.Stack()} }

func (e *PanicError) Error() string { return fmt.Sprintf("future: callback panicked: %v", e.Value) }

// Unwrap returns the argument of panic if that is an error, and nil otherwise.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// StreamError reports that a stream could not record or wait for an event, so that work
// cannot be ordered after the work that computes a value.
type StreamError struct {
	Op     string        // "record" or "wait"
	Device device.Device // of the stream
	Err    error         // the error of the stream
}

func (e *StreamError) Error() string {
	return fmt.Sprintf("future: %s an event on %v: %v", e.Op, e.Device, e.Err)
}

// Unwrap returns e.Err, the error that the stream returned.
func (e *StreamError) Unwrap() error { return e.Err }
