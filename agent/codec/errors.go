package codec

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// Causes of an [*Error], which also has the path to the value. Match them with errors.Is.
var (
	// ErrCorrupt: the bytes are not a valid message. The peer is faulty or uses another
	// version of the format.
	ErrCorrupt = errors.New("corrupt message")

	// ErrLimit: a message or a value is larger or deeper than [Limits] or the format allow.
	// If the peer is trusted, raise the limit.
	ErrLimit = errors.New("beyond the limit")

	// ErrType: a value does not fit the Go type to which it is decoded, or the type of a
	// value in an interface is not registered. If two types do not match, the error
	// wraps a [*TypeError].
	ErrType = errors.New("type does not fit")

	// ErrCycle: a value contains itself. Break the cycle, or give the type a custom
	// encoding.
	ErrCycle = errors.New("value contains itself")

	// ErrUnsupported: values of the type cannot be encoded, for example channels and
	// unexported fields. Omit the field with the tag `tensorpipe:"-"`, or give the type a
	// custom encoding. Calls with invalid arguments return it too.
	ErrUnsupported = errors.New("cannot be encoded")

	// ErrStorage: the storages given to [Decoder.Supply] do not have the sizes of the
	// parts, or Supply was not called.
	ErrStorage = errors.New("memory of tensors does not fit the message")

	// ErrRegistered: the name or the type is already registered as something else.
	ErrRegistered = errors.New("registered before")
)

// Error is the error of encoding or decoding a value, with the path to the value that caused it.
type Error struct {
	Err error // the cause

	segments []string // of the path, innermost first
}

func (e *Error) Error() string {
	if len(e.segments) == 0 {
		return "codec: " + e.Err.Error()
	}
	return "codec: " + e.Path() + ": " + e.Err.Error()
}

// Unwrap returns e.Err, the cause.
func (e *Error) Unwrap() error { return e.Err }

// pathEnds is the number of segments that Path shows at each end of a long path.
const pathEnds = 16

// Path returns the path from the value given to Encode or Decode to the part that caused the error,
// as in "Args.Layers[3].Weight". It returns "" if the error concerns the message as a whole. In a
// path of more than 32 segments the middle is replaced by "(...)".
func (e *Error) Path() string {
	var path strings.Builder
	n := len(e.segments)
	for i := n - 1; i >= 0; i-- {
		if from := n - pathEnds; n > 2*pathEnds && i < from && i >= pathEnds {
			if i == pathEnds {
				path.WriteString("(...)")
			}
			continue
		}
		path.WriteString(e.segments[i])
	}
	return strings.TrimPrefix(path.String(), ".")
}

// addSegment adds a segment to the front of the path of err and returns err as an *Error. If err is
// an *Error, it modifies and returns err itself; otherwise it returns a new *Error that wraps err.
// For nil it returns nil.
func addSegment(err error, segment string) error {
	if err == nil {
		return nil
	}
	e, ok := err.(*Error)
	if !ok {
		e = &Error{Err: err}
	}
	e.segments = append(e.segments, segment)
	return e
}

// errorf returns an *Error that matches sentinel and has an empty path. Its text is that of
// sentinel, followed by the text formatted as fmt.Sprintf does.
func errorf(sentinel error, format string, args ...any) error {
	return &Error{Err: fmt.Errorf("%w: %s", sentinel, fmt.Sprintf(format, args...))}
}

func corruptf(format string, args ...any) error { return errorf(ErrCorrupt, format, args...) }

// TypeError reports a type in a message that does not match the Go type to which it is decoded. It
// matches ErrType.
type TypeError struct {
	Wire string // the type in the message, as its sender describes it
	Go   string // the type to which it is decoded
}

func (e *TypeError) Error() string {
	return fmt.Sprintf("%v: the message has %s, want %s", ErrType, e.Wire, e.Go)
}

// Unwrap returns ErrType, so that errors.Is matches it.
func (e *TypeError) Unwrap() error { return ErrType }

// Limits bounds the resources that decoding one message uses. A zero field stands for its
// default.
type Limits struct {
	// MaxDepth bounds the nesting of values: each pointer, slice, map, interface, error and
	// custom encoding counts as one, and in a skipped value each part. It applies to encoding
	// too. Default 1000.
	MaxDepth int

	// Bytes bounds the size of a message without its tensors. Default 1 GiB.
	Bytes int

	// MemoryBytes bounds the memory of the decoded values in bytes, without tensors. A message
	// gets at most 1 MiB plus 64 times its size in any case, and at most 1 MiB plus 2 GiB.
	// Default 1 GiB.
	MemoryBytes int

	// MaxElements bounds the elements of all slices and maps of a message. Default 1<<28.
	MaxElements int

	// ExpandedBytes bounds the bytes by which all tensors of a message exceed their
	// memory, through strides that use elements more than once, as Expand does. Default
	// 1 GiB.
	ExpandedBytes int
}

func (l Limits) withDefaults() Limits {
	l.MaxDepth = cmp.Or(l.MaxDepth, 1000)
	l.Bytes = cmp.Or(l.Bytes, 1<<30)
	l.MemoryBytes = cmp.Or(l.MemoryBytes, 1<<30)
	l.MaxElements = cmp.Or(l.MaxElements, 1<<28)
	l.ExpandedBytes = cmp.Or(l.ExpandedBytes, 1<<30)
	return l
}

const (
	// minMemory is the memory that even the smallest message may use.
	minMemory = 1 << 20

	// memoryFactor bounds the memory of values relative to their encoded size: an empty
	// string takes 1 byte in the message and 16 in memory, a nil slice 24, and maps have
	// spare capacity.
	memoryFactor = 64
)
