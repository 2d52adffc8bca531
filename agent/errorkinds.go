package agent

import (
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/aten"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// sentinels are the errors that are the same at both ends of every call.
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

// errorTypes are the errors that keep their fields.
var errorTypes = map[string]error{
	"agent.Error":        (*Error)(nil),
	"agent.TimeoutError": (*TimeoutError)(nil),
	"agent.PanicError":   (*PanicError)(nil),
	"agent.RemoteError":  (*RemoteError)(nil),

	"aten.UnknownError":    (*aten.UnknownError)(nil),
	"aten.RegisteredError": (*aten.RegisteredError)(nil),
	"aten.KernelError":     (*aten.KernelError)(nil),
	"aten.SizeError":       (*aten.SizeError)(nil),
	"aten.ValueError":      (*aten.ValueError)(nil),
	"aten.LimitError":      (*aten.LimitError)(nil),
}

// prepare makes a registry know what every agent needs. Several agents may share one.
func prepare(r *codec.Registry) error {
	var errs []error
	for name, err := range sentinels {
		errs = append(errs, r.RegisterError(name, err))
	}
	for name, sample := range errorTypes {
		errs = append(errs, r.Register(name, sample))
	}
	errs = append(errs, codec.Refuse[future.Any](r, ErrFuture))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: Registry: %w", ErrConfig, err)
	}
	return nil
}

// travelling is an error as it is answered. What panicked within a future is a panic
// of the handler.
func travelling(err error) error {
	if p, ok := err.(*future.PanicError); ok && p != nil {
		return &PanicError{Value: fmt.Sprint(p.Value), Stack: string(p.Stack)}
	}
	return err
}
