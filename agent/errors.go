package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// Errors of calls. The functions of this package return an *Error, which matches one of
// these, an error about joining, an error of package store, or that of a context.
var (
	// ErrNoWorker means that the group has no such worker.
	ErrNoWorker = errors.New("no such worker")

	// ErrNoFunction means that the worker that was called does not serve the function, or no
	// messages of that type.
	ErrNoFunction = errors.New("not served")

	// ErrArguments means that the values of a call are not those that the function takes, or
	// cannot be encoded.
	ErrArguments = errors.New("wrong arguments")

	// ErrResult means that the result of a function cannot be encoded, or does not have the
	// type that the caller expects.
	ErrResult = errors.New("wrong result")

	// ErrTimeout means that a call or another operation took longer than its limit, or than the
	// deadline of its context allowed. The error matches context.DeadlineExceeded, too. An error
	// that a handler returns for a deadline of its own matches only the latter. ErrTimeout is the
	// same value as future.ErrTimeout and store.ErrTimeout.
	ErrTimeout = ctxerr.ErrTimeout

	// ErrCallerGone is the cause with which the context of a handler ends when its caller
	// does not wait for the reply any more.
	ErrCallerGone = errors.New("caller gave up")

	// ErrUnreachable means that there is no pipe to a worker: it could not be opened, or it
	// broke, as it does when the worker dies.
	ErrUnreachable = errors.New("unreachable")

	// ErrRestarted means that another incarnation of the worker has its name and rank now. It
	// has no state of the earlier one.
	ErrRestarted = errors.New("restarted")

	// ErrRefused means that a worker rejected the pipe of another one.
	ErrRefused = errors.New("refused")

	// ErrConfig means that a Config, an option or an argument is invalid.
	ErrConfig = errors.New("wrong configuration")

	// ErrPanic means that a handler, an allocator or an interceptor panicked.
	ErrPanic = errors.New("panic in handler")

	// ErrClosed means that this agent, or the one that was called, has shut down.
	ErrClosed = errors.New("agent closed")

	// ErrOverloaded means that a worker rejected a call, because the caller had more calls in
	// progress there than agreed on, or more keys than Limits.KeyBytes allows. The function
	// has not run. A caller waits before it exceeds Limits.CallBytes. So this happens only
	// with calls that were cancelled, which count until their handlers return, with calls
	// that handlers make, which do not wait, and with keys.
	ErrOverloaded = errors.New("overloaded")

	// ErrEvicted means that a function that is served WithOnce has run for the key of the
	// call before, or may have, and that the reply is not kept. The function does not run
	// again. The text names the limit to raise at the worker that was called.
	ErrEvicted = errors.New("reply evicted")

	// ErrFuture means that a value holds a future, which cannot be encoded. Wait for it, or
	// serve the function such that the outcome of the future is its result: with
	// Func.ServeAsync or ReflectAsyncFunc.
	ErrFuture = errors.New("a future cannot be encoded: wait for it, or serve the function with ServeAsync")

	// ErrProtocol means that a peer sent what no agent sends.
	ErrProtocol = wire.ErrProtocol
)

// Error is the error of an operation of an agent.
type Error struct {
	Op     string // the operation: "call", "serve", "join", ...
	Func   string // the function or the type of message, if there is one
	Worker string // the worker at the other end, if it is known
	Err    error
}

// Error returns the operation, the function, the worker and the text of e.Err as one line, provided
// that the text of e.Err is one line. The prefix "agent: " occurs once, at the beginning, even if
// e.Err has it too.
func (e *Error) Error() string {
	text := errorPrefix + e.Op
	if e.Func != "" {
		text += " " + e.Func
	}
	if e.Worker != "" {
		text += e.preposition() + e.Worker
		if rank, ok := To(e.Worker).rank(); ok {
			text = strings.TrimSuffix(text, e.Worker) + fmt.Sprint("rank ", rank)
		}
	}
	return text + ": " + strings.TrimPrefix(errorText(e.Err), errorPrefix)
}

// errorPrefix begins the text of each Error.
const errorPrefix = "agent: "

// preposition returns the text between the operation of e, with the function, and the worker.
func (e *Error) preposition() string {
	switch e.Op {
	case "join":
		return " as "
	case "worker", "remove":
		return " "
	case "serve":
		return " for "
	}
	return " on "
}

// errorText returns the text of err, or "unknown error" for nil: an error decoded from a peer may
// lack its cause.
func errorText(err error) string {
	if err == nil {
		return "unknown error"
	}
	return err.Error()
}

// Unwrap returns the cause e.Err, which is nil if a peer sent the error without one.
func (e *Error) Unwrap() error { return e.Err }

// TimeoutError is the error of a call that took longer than its limit, or of a stream that was idle
// for longer. It matches ErrTimeout and context.DeadlineExceeded.
type TimeoutError struct {
	Limit time.Duration
	Idle  bool // of a stream
}

func (e *TimeoutError) Error() string {
	if e.Idle {
		return fmt.Sprintf("the stream was idle for its limit of %v, see WithTimeout", e.Limit)
	}
	return fmt.Sprintf("no reply within the call's limit of %v", e.Limit)
}

// Timeout returns true, as net.Error requires of a timeout.
func (e *TimeoutError) Timeout() bool { return true }

// Is reports whether target is ErrTimeout or context.DeadlineExceeded.
func (e *TimeoutError) Is(target error) bool {
	return target == ErrTimeout || target == context.DeadlineExceeded
}

// ConfigError is the error of a number that is out of range. It matches ErrConfig.
type ConfigError struct {
	Field string // "Timeout", "Retry.Max", "Retry.Delay" or "Retry.Backoff"
	Value any
	Min   int
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("%v: %s is %v, and must be at least %d", ErrConfig, e.Field, e.Value, e.Min)
}

// Unwrap returns ErrConfig.
func (e *ConfigError) Unwrap() error { return ErrConfig }

// UnknownWorkerError is the error of a destination that no worker of the group has. It matches
// ErrNoWorker. The text does not name the destination: the Error that wraps it does.
type UnknownWorkerError struct {
	Self   WorkerInfo // the worker that looked for it
	Name   string     // the name that was looked for, if ByRank is false
	Rank   int        // the rank that was looked for, if ByRank is true
	ByRank bool
}

func (e *UnknownWorkerError) Error() string {
	return fmt.Sprintf("%v in the group of %s", ErrNoWorker, e.Self)
}

// destination returns the destination that was looked for.
func (e *UnknownWorkerError) destination() To {
	if e.ByRank {
		return Rank(e.Rank)
	}
	return To(e.Name)
}

// Unwrap returns ErrNoWorker.
func (e *UnknownWorkerError) Unwrap() error { return ErrNoWorker }

// withKind returns an error that matches both kind and err. It returns err unchanged if err is nil
// or matches kind already.
func withKind(kind, err error) error {
	if err == nil || errors.Is(err, kind) {
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// prefixed returns text, which another worker sent, after the text of kind and a colon. If text
// begins with that of kind already, it returns text.
func prefixed(kind error, text string) string {
	if strings.HasPrefix(text, kind.Error()) {
		return text
	}
	return kind.Error() + ": " + text
}

// PanicError is the error of a handler that panicked. It matches ErrPanic.
type PanicError struct {
	Value string // of the panic, as text
	Stack string `tensorpipe:"-"` // of the goroutine; sent to callers that use WithRemoteStack
}

func (e *PanicError) Error() string { return "panic in handler: " + e.Value }

// Unwrap returns ErrPanic.
func (e *PanicError) Unwrap() error { return ErrPanic }

// RemoteError is the error with which a worker replied: that of the handler, or the reason for
// which the worker rejected the call. errors.Is and errors.As find the original error if its
// value or its type is registered at both ends; otherwise its text is the same.
type RemoteError struct {
	Err   error
	Stack string `tensorpipe:"-"` // of a handler that panicked, for a caller that uses WithRemoteStack
}

func (e *RemoteError) Error() string { return errorText(e.Err) }

// Unwrap returns e.Err, the error with which the worker replied.
func (e *RemoteError) Unwrap() error { return e.Err }

// sentinels are the errors that have the same identity at both ends of every call.
var sentinels = map[string]error{
	"agent.ErrNoWorker":    ErrNoWorker,
	"agent.ErrNoFunction":  ErrNoFunction,
	"agent.ErrArguments":   ErrArguments,
	"agent.ErrResult":      ErrResult,
	"agent.ErrTimeout":     ErrTimeout,
	"agent.ErrCallerGone":  ErrCallerGone,
	"agent.ErrUnreachable": ErrUnreachable,
	"agent.ErrRestarted":   ErrRestarted,
	"agent.ErrRefused":     ErrRefused,
	"agent.ErrConfig":      ErrConfig,
	"agent.ErrPanic":       ErrPanic,
	"agent.ErrClosed":      ErrClosed,
	"agent.ErrOverloaded":  ErrOverloaded,
	"agent.ErrEvicted":     ErrEvicted,
	"agent.ErrProtocol":    ErrProtocol,
	"agent.ErrFuture":      ErrFuture,
	"agent.ErrSendClosed":  ErrSendClosed,

	"future.ErrDone":        future.ErrDone,
	"future.ErrPending":     future.ErrPending,
	"future.ErrCancelled":   future.ErrCancelled,
	"future.ErrNilCallback": future.ErrNilCallback,
	"future.ErrNilFuture":   future.ErrNilFuture,
	"future.ErrNilError":    future.ErrNilError,
	"future.ErrCycle":       future.ErrCycle,
	"future.ErrGoexit":      future.ErrGoexit,

	"codec.ErrCorrupt":     codec.ErrCorrupt,
	"codec.ErrLimit":       codec.ErrLimit,
	"codec.ErrType":        codec.ErrType,
	"codec.ErrCycle":       codec.ErrCycle,
	"codec.ErrUnsupported": codec.ErrUnsupported,
	"codec.ErrStorage":     codec.ErrStorage,
	"codec.ErrRegistered":  codec.ErrRegistered,
}

// errorTypes are the types of errors that are sent with their fields.
var errorTypes = map[string]error{
	"agent.Error":        (*Error)(nil),
	"agent.TimeoutError": (*TimeoutError)(nil),
	"agent.PanicError":   (*PanicError)(nil),
	"agent.RemoteError":  (*RemoteError)(nil),
	"agent.FitError":     (*FitError)(nil),
	"agent.DeviceError":  (*DeviceError)(nil),

	"aten.UnknownError":    (*aten.UnknownError)(nil),
	"aten.RegisteredError": (*aten.RegisteredError)(nil),
	"aten.KernelError":     (*aten.KernelError)(nil),
	"ops.SizeError":        (*ops.SizeError)(nil),
	"ops.ValueError":       (*ops.ValueError)(nil),
	"ops.LimitError":       (*ops.LimitError)(nil),
}

// registerErrors registers in r the errors and error types that every agent uses, and makes the
// encoding of futures fail with ErrFuture. Registering them again is no error, so several agents
// may share r. If r has other errors or types under these names, the error matches ErrConfig.
func registerErrors(r *codec.Registry) error {
	var errs []error
	for name, err := range sentinels {
		errs = append(errs, r.RegisterError(name, err))
	}
	for name, sample := range errorTypes {
		errs = append(errs, r.Register(name, sample))
	}
	errs = append(errs, codec.Refuse[future.Any](r, ErrFuture))
	if err := errtext.Join(errs...); err != nil {
		return fmt.Errorf("%w: Registry: %w", ErrConfig, err)
	}
	return nil
}
