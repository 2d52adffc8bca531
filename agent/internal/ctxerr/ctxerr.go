// Package ctxerr returns the errors of operations whose context has ended. After a deadline these
// match ErrTimeout in addition to context.DeadlineExceeded.
package ctxerr

import (
	"context"
	"errors"
)

// ErrTimeout means that an operation took longer than its limit, or than the deadline of its
// context allowed.
var ErrTimeout = errors.New("timed out")

// deadlineError is the error of an operation whose context has a deadline that has passed. It has
// the text of cause.
type deadlineError struct{ cause error }

func (e *deadlineError) Error() string { return e.cause.Error() }

// Unwrap returns ErrTimeout, context.DeadlineExceeded and the cause.
func (e *deadlineError) Unwrap() []error {
	if e.cause == context.DeadlineExceeded {
		return []error{ErrTimeout, e.cause}
	}
	return []error{ErrTimeout, context.DeadlineExceeded, e.cause}
}

// Cause returns context.Cause(ctx), nil if ctx has not ended. If the deadline of ctx has passed, or
// the cause matches context.DeadlineExceeded, the result has the text of the cause and matches
// ErrTimeout, context.DeadlineExceeded and the cause.
func Cause(ctx context.Context) error {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(cause, ErrTimeout) {
		return cause
	}
	if ctx.Err() == context.DeadlineExceeded {
		return &deadlineError{cause}
	}
	return Wrap(cause)
}

// Wrap adds ErrTimeout to the error of an exceeded deadline: if err matches
// context.DeadlineExceeded and not ErrTimeout, it returns an error with the text of err that
// matches err and ErrTimeout. Otherwise, also for nil, it returns err.
func Wrap(err error) error {
	if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrTimeout) {
		return &deadlineError{err}
	}
	return err
}
