package rpcpeer

import (
	"errors"
	"fmt"
)

// ErrConfig matches errors about a Config that a peer does not take: change it.
var ErrConfig = errors.New("rpcpeer: bad config")

// ErrOutput matches errors about what a peer printed: it is of another version than
// this package.
var ErrOutput = errors.New("rpcpeer: unexpected output")

// MissingError says what this machine lacks for a peer. It matches
// [errors.ErrUnsupported].
type MissingError struct {
	Peer string
	What string
}

func (e *MissingError) Error() string { return "no " + e.Peer + " here: " + e.What }

// Is makes the error match [errors.ErrUnsupported].
func (e *MissingError) Is(target error) bool { return target == errors.ErrUnsupported }

// ProcessError says how a program ended that should not have, with its own words.
type ProcessError struct {
	Name   string
	Stderr string
	Err    error
}

func (e *ProcessError) Error() string {
	text := fmt.Sprintf("%s: %v", e.Name, e.Err)
	if e.Stderr != "" {
		text += ": " + e.Stderr
	}
	return text
}

// Unwrap returns how the program ended.
func (e *ProcessError) Unwrap() error { return e.Err }
