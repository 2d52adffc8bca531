package agent

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// What can go wrong with a call. Errors of this package are of type *Error and
// match one of these.
var (
	// ErrNoWorker says that the group has no such worker.
	ErrNoWorker = errors.New("no such worker")

	// ErrNoFunction says that the worker that was called does not serve the function,
	// or no messages of that type.
	ErrNoFunction = errors.New("not served")

	// ErrArguments says that the values of a call are not those that the function
	// takes, or cannot travel.
	ErrArguments = errors.New("wrong arguments")

	// ErrResult says that the result of a function cannot travel, or is not what
	// the caller expects.
	ErrResult = errors.New("wrong result")

	// ErrTimeout says that a call took longer than it may. It matches
	// context.DeadlineExceeded too.
	ErrTimeout = errors.New("timed out")

	// ErrCallerGone is the cause with which the context of a handler ends when
	// nobody waits for it any more.
	ErrCallerGone = errors.New("caller gave up")

	// ErrUnreachable says that there is no pipe to a worker: it could not be
	// opened, or it broke, as it does when the worker dies.
	ErrUnreachable = errors.New("unreachable")

	// ErrRestarted says that a worker answers by the name and rank of one that was
	// there before. It is another incarnation, which knows nothing of what was
	// agreed on with the first.
	ErrRestarted = errors.New("restarted")

	// ErrRefused says that a worker does not let another one talk to it.
	ErrRefused = errors.New("refused")

	// ErrConfig says that a Config, or what it lists, makes no sense.
	ErrConfig = errors.New("wrong configuration")

	// ErrPanic says that a handler panicked, or what makes the memory for a call.
	ErrPanic = errors.New("panic in handler")

	// ErrClosed says that the agent here, or the one that was called, has shut down.
	ErrClosed = errors.New("agent closed")

	// ErrOverloaded says that a worker had more calls of one caller than it agreed to.
	// Calls that were given up count there until their handlers return, and those that
	// handlers make are let in beyond what was agreed on, to a limit; a caller that keeps
	// to the protocol brings it about by one of these only, or by more keys than
	// Limits.KeyBytes allows. The function has not run.
	ErrOverloaded = errors.New("overloaded")

	// ErrEvicted fails a call with a key for which a function that is served with Once has
	// run before, or may have, and whose answer is not kept. The function does not run
	// again. The text names the limit to raise at the worker that was called.
	ErrEvicted = errors.New("answer evicted")

	// ErrFuture says that a value holds a future, which means nothing elsewhere. Wait
	// for it, or serve the function so that the future is its answer: Func.ServeAsync,
	// AsyncFunction.
	ErrFuture = errors.New("a future cannot travel: wait for it, or serve the function with ServeAsync")

	// ErrProtocol says that a peer sent what no agent sends.
	ErrProtocol = errors.New("protocol broken")
)

// Error is the error of a call: what was tried, with whom, and why it failed.
type Error struct {
	Op     string // "call", "serve", "join", ...
	Func   string // the function or type of message, if there is one
	Worker string // the worker at the other end, if it is known
	Err    error
}

func (e *Error) Error() string {
	text := "agent: " + e.Op
	if e.Func != "" {
		text += " " + e.Func
	}
	if e.Worker != "" {
		text += " on " + e.Worker
	}
	return text + ": " + textOf(e.Err)
}

// textOf is the text of an error that a peer may have left out.
func textOf(err error) string {
	if err == nil {
		return "unknown error"
	}
	return err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// TimeoutError is a call that ran out of time. It matches ErrTimeout and
// context.DeadlineExceeded.
type TimeoutError struct {
	Limit time.Duration
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("RPC ran for more than set timeout (%d ms) and will now be marked with an error", e.Limit.Milliseconds())
}

// Timeout makes TimeoutError a net.Error in spirit.
func (e *TimeoutError) Timeout() bool { return true }

// Is reports whether target is one of the errors that a timeout is.
func (e *TimeoutError) Is(target error) bool {
	return target == ErrTimeout || target == context.DeadlineExceeded
}

// marked is err as one that matches kind.
func marked(kind, err error) error {
	if err == nil || errors.Is(err, kind) {
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// PanicError is a handler that panicked. It matches ErrPanic.
type PanicError struct {
	Value string // what it panicked with
	Stack string `tensorpipe:"-"` // of the goroutine, at the worker that was called; a caller gets it if asked for by RemoteStack
}

func (e *PanicError) Error() string { return "panic in handler: " + e.Value }

// Unwrap makes e match ErrPanic.
func (e *PanicError) Unwrap() error { return ErrPanic }

// RemoteError is what a handler at another worker returned, or what that worker has
// to say against the call. errors.Is and errors.As find the error itself where its
// type or identity is registered at both ends; otherwise its text is what it was.
type RemoteError struct {
	Err   error
	Stack string `tensorpipe:"-"` // of a handler that panicked, if asked for by RemoteStack
}

func (e *RemoteError) Error() string { return textOf(e.Err) }

// Unwrap returns the error as far as it could travel.
func (e *RemoteError) Unwrap() error { return e.Err }
