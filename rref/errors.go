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
