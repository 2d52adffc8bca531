package segment

import (
	"errors"
	"fmt"
	"syscall"
)

// ErrFault is the end of a [Guard] whose function touched memory that is gone:
// the peer has shrunk its file. Nothing of that memory can be relied on any more.
var ErrFault = errors.New("segment: the peer took shared memory away")

// ErrFile matches errors about a descriptor from a peer that is no shared memory,
// such as a file on a disk or a socket.
var ErrFile = errors.New("segment: not shared memory")

// SizeError says that a segment would be empty or too large.
type SizeError struct {
	Size  int64 // in bytes
	Limit int64 // the largest allowed
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("segment: %d bytes of shared memory: must be 1 to %d", e.Size, e.Limit)
}

// Error says what the system refused. Err is its reason, as in
// errors.Is(err, syscall.EMFILE).
type Error struct {
	Call string // the name of the system call
	Size int64  // of the segment, in bytes; 0 if not known yet
	Err  error
}

func (e *Error) Error() string {
	what := "shared memory"
	if e.Size > 0 {
		what = fmt.Sprintf("%d bytes of shared memory", e.Size)
	}
	return fmt.Sprintf("segment: %s for %s: %v%s", e.Call, what, e.Err, advice(e.Err))
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// advice says what helps against a refusal.
func advice(err error) string {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return " (raise the limit of open files, RLIMIT_NOFILE)"
	case errors.Is(err, syscall.EFBIG):
		return " (raise the limit of file sizes, RLIMIT_FSIZE)"
	case errors.Is(err, syscall.ENOMEM):
		return " (the process has too many mappings, or memory is short)"
	}
	return ""
}
