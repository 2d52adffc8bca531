package device

import (
	"errors"
	"fmt"
)

// Errors about the use of a kind. They arrive wrapped in text that names the
// call and the devices; test for them with [errors.Is].
var (
	// ErrDevice says that the kind has no such device: ask its Devices.
	ErrDevice = errors.New("no such device of this kind")

	// ErrMemory says that memory belongs to another kind or device than the
	// call can handle: stage it through host memory.
	ErrMemory = errors.New("memory of another kind or device")

	// ErrStream says that a stream belongs to another kind or device than the
	// memory it was given for.
	ErrStream = errors.New("stream of another kind or device")

	// ErrSize says that a size is negative.
	ErrSize = errors.New("size is negative")
)

// ParseError says why a text names no device.
type ParseError struct {
	Text   string // what was to be read
	Reason string // what is wrong with it and what is wanted
}

func (e *ParseError) Error() string {
	return fmt.Sprintf("device: %q %s", e.Text, e.Reason)
}

// LengthError says that the two sides of a copy differ in size; cut one of them
// with [Buffer.Slice].
type LengthError struct {
	Dst, Src int // in bytes
}

func (e *LengthError) Error() string {
	return fmt.Sprintf("device: copy of %d bytes into a buffer of %d", e.Src, e.Dst)
}
