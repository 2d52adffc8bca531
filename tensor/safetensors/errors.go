package safetensors

import (
	"errors"
	"fmt"
)

// ErrShrunk is returned where a file lost bytes while it was open. Somebody
// else writes to it; open it again when he is done.
var ErrShrunk = errors.New("safetensors: the file shrank while it was read")

// ErrClosed is returned by calls on a File that was closed.
var ErrClosed = errors.New("safetensors: file is closed")

// FormatError says that the bytes are no safetensors file, or one that breaks
// the rules.
type FormatError struct {
	Tensor string // the tensor at fault, if one is
	Reason string
	Err    error // the cause, if there is one
}

func (e *FormatError) Error() string {
	text := "safetensors: "
	if e.Tensor != "" {
		text += fmt.Sprintf("tensor %.80q: ", e.Tensor)
	}
	text += e.Reason
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns Err.
func (e *FormatError) Unwrap() error { return e.Err }

// DTypeError is about a dtype that the format does not have, or that package
// tensor or the format cannot represent.
type DTypeError struct {
	Tensor string
	DType  string
	Reason string
}

func (e *DTypeError) Error() string {
	return fmt.Sprintf("safetensors: tensor %.80q: dtype %.80q %s", e.Tensor, e.DType, e.Reason)
}

// NotFoundError is about a name that the file does not have.
type NotFoundError struct{ Tensor string }

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("safetensors: no tensor %.80q in the file", e.Tensor)
}

// NameError is about a name, or text of the metadata, that cannot be written.
type NameError struct {
	Name   string
	Reason string
}

func (e *NameError) Error() string { return fmt.Sprintf("safetensors: %.80q %s", e.Name, e.Reason) }

// LimitError is about a file beyond a limit of Options. Raise the limit if the
// file is to be trusted.
type LimitError struct {
	What  string // what there is too much of, as in "bytes of header"
	Value uint64
	Limit int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("safetensors: %d %s, the limit is %d", e.Value, e.What, e.Limit)
}
