package filetransfer

import (
	"errors"
	"fmt"
)

var (
	// ErrProtocol is returned when the other end violates this package's protocol: it is
	// not tpipe send or recv.
	ErrProtocol = errors.New("the other end breaks the protocol of tpipe send and recv")

	// ErrVersion is returned when the other end has another version of this package's
	// protocol. Use the same release of tpipe at both ends.
	ErrVersion = errors.New("the other end has another version of the protocol of tpipe send and recv; use the same release of tpipe at both ends")

	// ErrChecksum is returned when the bytes received differ from those sent. Send the file again.
	ErrChecksum = errors.New("wrong checksum")

	// ErrExists is returned when a file of that name exists. Remove it, or set
	// StoreOptions.Overwrite.
	ErrExists = errors.New("exists already; start the receiver with -overwrite to replace it")

	// ErrBusy is returned when another transfer, of this or another process, is
	// receiving a file of that name. Wait until it has ended.
	ErrBusy = errors.New("is being received by another transfer")

	// ErrChanged is returned when a file was modified while it was being sent. Send it again.
	ErrChanged = errors.New("changed while it was sent")

	// ErrUnconfirmed is returned when a sender was interrupted and the receiver did not
	// answer in time. It may have more files than it has confirmed.
	ErrUnconfirmed = errors.New("the receiver has not confirmed its files")

	// ErrLimit is returned when a transfer exceeds the StoreOptions or the free disk space.
	ErrLimit = errors.New("more than the receiver accepts")
)

// FaultError is the error with which the receiver ended a transfer, as the sender gets it.
type FaultError struct{ Text string }

// Error returns a message with the receiver's text. The text is quoted as a Go string if it
// contains characters that are not printable.
func (e *FaultError) Error() string { return "the receiver reports: " + Printable(e.Text) }

// StopError is returned by Store.Receive when the sender was interrupted.
type StopError struct{ Reason string }

// Error returns a message with the sender's reason. The reason is quoted as a Go string if it
// contains characters that are not printable.
func (e *StopError) Error() string { return "the sender has stopped: " + Printable(e.Reason) }

// NameError is returned for a file name that is invalid or conflicts with another one. Name is relative
// to the directory.
type NameError struct {
	Name   string
	Reason string
}

func (e *NameError) Error() string { return fmt.Sprintf("file name %.200q %s", e.Name, e.Reason) }

// protocolErrorf returns an error that matches ErrProtocol and contains the text of fmt.Errorf, of
// which it also wraps the operands of %w.
func protocolErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrProtocol, fmt.Errorf(format, args...))
}

// withName returns an error that wraps err and begins with name, the name of a file. It returns nil
// if err is nil.
func withName(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}
