package rref

import (
	"errors"
	"fmt"
)

// The errors of this package. Those of a call also wrap an *agent.Error.
var (
	ErrReleased = errors.New("rref: the reference has been released")
	ErrNotOwner = errors.New("rref: this worker is not the owner of the value")
	ErrNoValue  = errors.New("rref: the owner does not know the reference")
	ErrCreation = errors.New("rref: the value may not exist, because its creation failed")
	ErrNoAgent  = errors.New("rref: no agent with references")
	ErrEncoding = errors.New("rref: a reference can only be encoded in a call")
	ErrType     = errors.New("rref: the value has another type")
	ErrNoMethod = errors.New("rref: no such method")
	ErrLeak     = errors.New("rref: references are left")
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
