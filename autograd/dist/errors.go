package dist

import (
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
)

// Errors of this package, for errors.Is, also where another worker has returned them.
var (
	// ErrNoAgent is returned for an agent without this extension, see New.
	ErrNoAgent = errors.New("dist: need to initialize distributed autograd: list dist.New in Config.Extensions")

	// ErrNoContext is returned where there is no Context: it was never there, or it was closed.
	ErrNoContext = errors.New("dist: Could not find autograd context")

	// ErrNested is returned by WithContext if the context.Context has a Context already.
	ErrNested = errors.New("dist: Already have an autograd context id for this thread")

	// ErrRoots is returned by Backward for roots through which there is no pass.
	ErrRoots = errors.New("dist: the roots are not valid")

	// ErrRunning is returned by Backward if a pass through the Context is running, or if a call is under
	// way that was made with it.
	ErrRunning = errors.New("dist: the context is in use")

	// ErrUnused is returned by Backward if the pass does not need the result of a call, or if the
	// function did not need an argument.
	ErrUnused = errors.New("dist: no gradient comes to a message")

	// ErrNoSend is returned for the gradients of a message that its sender does not know.
	ErrNoSend = errors.New("dist: Could not find send function for autograd message id")

	// ErrRepeated is returned for a message with Variables that was received before. Calls of a function
	// served WithOnce fail so if an earlier call, with the same key, has got the same reply.
	ErrRepeated = errors.New("dist: the message was received before")

	// ErrFailed is returned for gradients of a pass that has ended.
	ErrFailed = errors.New("dist: the pass has failed")

	// ErrAlgorithm is returned by Optimizer.Step for numbers or parameters that an Algorithm cannot have.
	ErrAlgorithm = errors.New("dist: the optimizer is not valid")
)

// registered are the errors that keep their identity when another worker returns them.
var registered = map[string]error{
	"dist.ErrNoContext": ErrNoContext, "dist.ErrRunning": ErrRunning, "dist.ErrUnused": ErrUnused, "dist.ErrNoSend": ErrNoSend, "dist.ErrRepeated": ErrRepeated,
	"dist.ErrFailed": ErrFailed, "dist.ErrAlgorithm": ErrAlgorithm, "autograd.ErrReleased": autograd.ErrReleased, "autograd.ErrModified": autograd.ErrModified,
}

// NodeError is the error of a worker in a pass.
type NodeError struct {
	Rank   int
	Worker string
	Err    error
}

// Error returns a text that begins as PyTorch's does, such as "Error on Node 1: ...". The name is that
// of the worker on which the error occurred first.
func (e *NodeError) Error() string {
	text := fmt.Sprintf("Error on Node %d: %v", e.Rank, e.Err)
	if inner := (*NodeError)(nil); !errors.As(e.Err, &inner) {
		text += " (" + e.Worker + ")"
	}
	return text
}
func (e *NodeError) Unwrap() error { return e.Err }

// nodeError returns err as the error of the worker w, once.
func nodeError(w agent.WorkerInfo, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := err.(*NodeError); ok && e.Worker == w.Name {
		return err
	}
	return &NodeError{w.Rank, w.Name, err}
}
