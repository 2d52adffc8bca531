package ferry

import (
	"errors"
	"fmt"
)

var (
	// ErrProtocol: the other end does not speak this package's protocol, or
	// breaks it. Is it tpipe send, or tpipe recv, of this version?
	ErrProtocol = errors.New("the other end breaks the protocol of tpipe send and recv")

	// ErrChecksum: bytes arrived that were not sent. Send the file again.
	ErrChecksum = errors.New("wrong checksum")

	// ErrExists: there is a file of that name already. Remove it, or allow the
	// store to overwrite.
	ErrExists = errors.New("exists already; start the receiver with -overwrite to replace it")

	// ErrBusy: another transfer, perhaps of another process, is receiving a
	// file of that name. Wait for its end.
	ErrBusy = errors.New("is being received by another transfer")

	// ErrChanged: somebody wrote to a file while it was sent. Send it again.
	ErrChanged = errors.New("changed while it was sent")

	// ErrLimit: more than the StoreOptions allow, or than the disk has.
	ErrLimit = errors.New("more than the receiver takes")
)

// FaultError is what the receiver says is wrong.
type FaultError struct{ Text string }

// Error prints the text quoted if it could do something to a terminal.
func (e *FaultError) Error() string { return "the receiver says: " + Printable(e.Text) }

// NameError is about the name of a file, relative to the directory.
type NameError struct {
	Name   string
	Reason string
}

func (e *NameError) Error() string { return fmt.Sprintf("file name %.200q %s", e.Name, e.Reason) }

// brokenf is an ErrProtocol with what was wrong.
func brokenf(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrProtocol, fmt.Errorf(format, args...))
}

// about says which file an error is about.
func about(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}
