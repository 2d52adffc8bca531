package safetensors

import (
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// maxHeader is the size of the largest header that other implementations read.
const maxHeader = 100_000_000

// Options has limits for reading, and provides memory for tensors. The zero value permits headers of
// up to 100 MB, as other implementations do, and uses memory from the Go heap.
type Options struct {
	// HeaderLimit is the maximum size of the header in bytes; 0 is 100 MB.
	HeaderLimit int

	// TensorLimit is the maximum number of tensors; 0 is no limit except that of the header.
	TensorLimit int

	// RankLimit is the maximum number of dimensions of a tensor; 0 is tensor.MaxRank, which larger
	// values do not exceed.
	RankLimit int

	// ByteLimit is the maximum total size of the tensors in bytes; 0 is no limit.
	ByteLimit int

	// Allocator allocates the memory of tensors; nil is the Go heap.
	Allocator tensor.Allocator
}

// withDefaults returns a copy of o in which HeaderLimit, RankLimit and Allocator have their
// defaults if they are not set, and in which a RankLimit above tensor.MaxRank is replaced by
// tensor.MaxRank.
func (o Options) withDefaults() Options {
	if o.HeaderLimit <= 0 {
		o.HeaderLimit = maxHeader
	}
	if o.RankLimit <= 0 || o.RankLimit > tensor.MaxRank {
		o.RankLimit = tensor.MaxRank
	}
	if o.Allocator == nil {
		o.Allocator = tensor.Heap{}
	}
	return o
}

// within returns a *LimitError if value exceeds limit, and otherwise nil. A limit of 0 or less is
// no limit. The error calls the limited quantity by the name in what, such as "tensors".
func within(what string, value uint64, limit int) error {
	if limit > 0 && value > uint64(limit) {
		return &LimitError{What: what, Value: value, Limit: limit}
	}
	return nil
}

// ErrShrunk is returned if a file lost bytes while it was open, because another program writes to
// it. Open it again after that.
var ErrShrunk = errors.New("safetensors: the file shrank while it was read")

// ErrClosed is returned by calls on a File that was closed.
var ErrClosed = errors.New("safetensors: file is closed")

// FormatError reports that the bytes are not a safetensors file, or violate the format.
type FormatError struct {
	Tensor string // name of the invalid tensor, if it is one
	Reason string
	Err    error // the cause, or nil
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

// Unwrap returns e.Err, the cause, or nil if there is none.
func (e *FormatError) Unwrap() error { return e.Err }

// DTypeError reports a dtype that the safetensors format does not have, or one of the format that
// package tensor does not support.
type DTypeError struct {
	Tensor string
	DType  string
	Reason string
}

func (e *DTypeError) Error() string {
	return fmt.Sprintf("safetensors: tensor %.80q: dtype %.80q %s", e.Tensor, e.DType, e.Reason)
}

// NotFoundError reports a name that the file does not contain.
type NotFoundError struct{ Tensor string }

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("safetensors: no tensor %.80q in the file", e.Tensor)
}

// NameError reports a tensor's name, or a text of the metadata, that cannot be written to a file.
// It also reports a name whose tensor is nil.
type NameError struct {
	Name   string
	Reason string
}

func (e *NameError) Error() string { return fmt.Sprintf("safetensors: %.80q %s", e.Name, e.Reason) }

// LimitError reports a file that exceeds a limit of Options. Raise the limit if the file is
// trusted.
type LimitError struct {
	What  string // the limited quantity, such as "bytes of header"
	Value uint64
	Limit int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("safetensors: %d %s, the limit is %d", e.Value, e.What, e.Limit)
}
