package rref

import (
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// The errors of this package. Those of a call also wrap an *agent.Error.
var (
	ErrReleased = errors.New("rref: the reference has been released")
	ErrNotOwner = errors.New("rref: this worker is not the owner of the value")
	ErrNoValue  = errors.New("rref: the owner does not know the reference")
	ErrCreation = errors.New("rref: the value may not exist, because its creation failed")
	ErrNoAgent  = error(&faultError{"no agent", "rref: no agent with references"})
	ErrEncoding = error(&faultError{"encoding", "rref: a reference can only be encoded in a call"})
	ErrType     = errors.New("rref: the value has another type")
	ErrNoMethod = errors.New("rref: no such method")
	ErrLeak     = error(&faultError{"leak", "rref: references are left"})
	ErrClosed   = errors.New("rref: the agent is closed")
	ErrShared   = errors.New("rref: the reference was not shared in time")

	// ErrFenced: the owner has heard nothing from the user for a lease, and has dropped its
	// references. The user may make new ones.
	ErrFenced = errors.New("rref: the owner has dropped the references of the worker")

	// ErrOwnerGone: the owner has left the group or has restarted, and its values are gone.
	ErrOwnerGone = errors.New("rref: the owner of the value is gone")
)

// CreationError is the error of a reference whose value could not be created, or may not have been:
// the call by which Remote creates it has failed. It matches ErrCreation.
type CreationError struct {
	Ref string // the reference as text
	Err error  // of the call
}

func (e *CreationError) Error() string { return fmt.Sprintf("%v: %s: %v", ErrCreation, e.Ref, e.Err) }

// Unwrap returns ErrCreation and the error of the call.
func (e *CreationError) Unwrap() []error { return []error{ErrCreation, e.Err} }

// OwnerError is the error of a reference whose owner is gone. It matches ErrOwnerGone.
type OwnerError struct {
	Owner string // its name
	Err   error  // the reason
}

func (e *OwnerError) Error() string { return fmt.Sprintf("%v: %s: %v", ErrOwnerGone, e.Owner, e.Err) }

// Unwrap returns ErrOwnerGone and the reason.
func (e *OwnerError) Unwrap() []error { return []error{ErrOwnerGone, e.Err} }

// UseError is the error of an operation on a reference that was released, or that the operation needs
// to be on the owner. It matches Err.
type UseError struct {
	Op          string // "fetch", "local", "type", "call", "share" or "convert"
	Err         error  // ErrReleased or ErrNotOwner
	Value, Fork Label
	Self, Owner agent.WorkerInfo
}

// useError returns the UseError of h with the given operation and err.
func (h *handle) useError(op string, err error) error {
	c := h.core
	return &UseError{op, err, c.label, c.forkLabel, c.refs.self.info(), c.owner.info()}
}

func (e *UseError) Error() string {
	return fmt.Sprintf("%v: cannot %s rref %v to value %v on %s", e.Err, e.Op, e.Fork, e.Value, e.Owner.Name)
}

// Unwrap returns ErrReleased or ErrNotOwner.
func (e *UseError) Unwrap() error { return e.Err }

// ReferenceFault returns the kind of the error, the labels of the value and of the reference, and the
// workers, for package agent/torch.
func (e *UseError) ReferenceFault() (kind, value, fork string, self, owner agent.WorkerInfo) {
	kind = "not owner"
	if e.Err == ErrReleased {
		kind = "released " + e.Op
	}
	return kind, e.Value.String(), e.Fork.String(), e.Self, e.Owner
}

// ReferenceFault returns the kind of the error, for package agent/torch.
func (e *CreationError) ReferenceFault() (kind, value, fork string, self, owner agent.WorkerInfo) {
	return "creation", "", "", self, owner
}

// faultError is an error without data that PyTorch has too.
type faultError struct{ kind, text string }

func (e *faultError) Error() string { return e.text }

// ReferenceFault returns the kind of the error, for package agent/torch.
func (e *faultError) ReferenceFault() (kind, value, fork string, self, owner agent.WorkerInfo) {
	return e.kind, "", "", self, owner
}
