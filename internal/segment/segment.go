// Package segment implements memory that processes share: an unnamed file (memfd) that is mapped
// here, and whose descriptor is passed to the peer, which maps it too.
//
// # Untrusted peers
//
// A process with the descriptor of an ordinary segment can truncate the file. An access to the
// pages beyond its end is then a fault, which kills the process. So every access to such memory
// runs in [Guard]. A segment of [CreateSealed] cannot be truncated and needs no guard;
// [Segment.Sealed] reports whether that holds for a segment of the peer.
//
// The contents can change at any moment. Code that makes a decision reads a value once into private
// memory, and checks and uses that copy.
//
// On systems other than Linux every call fails with an error that matches [errors.ErrUnsupported].
package segment

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/internal/probe"
)

// Segment is mapped shared memory. Its methods may be called concurrently. The memory must not be
// accessed once Close has been called.
type Segment struct {
	memory []byte
	sealed bool

	mu   sync.Mutex
	file *os.File // nil after CloseFile, and for a segment of the peer
}

// Create creates a segment of size bytes, all zero, with its pages reserved. The caller closes it.
// It is like those of TensorPipe in C++: a process with the descriptor can truncate it. It serves
// to imitate such a peer; peers accept sealed segments too.
//
// The error is a *SizeError for a size below 1, an *Error if the system refuses, and matches
// [errors.ErrUnsupported] if the system has no such memory.
func Create(size int) (*Segment, error) { return create(size, false, Extent{0, size}) }

// CreateSealed creates a segment of size bytes, all zero, with its pages reserved, whose size no
// process can change. The caller closes it. The errors are those of [Create].
func CreateSealed(size int) (*Segment, error) { return create(size, true, Extent{0, size}) }

// Extent is a part of a segment: Length bytes from Offset on.
type Extent struct{ Offset, Length int }

// CreateSparse creates a segment of size bytes, all zero, whose size no process can change, and
// reserves pages only for the given parts, which must lie within size. [Reserve] reserves others
// later. The caller closes the segment. The errors are those of [Create].
func CreateSparse(size int, parts ...Extent) (*Segment, error) { return create(size, true, parts...) }

// Reserve reserves pages for memory, a part of Bytes of a segment, so that a lack of memory is an
// error here and not a fault at the first access. It does not change the contents. The error is an
// *Error, or matches [errors.ErrUnsupported] if the system cannot do that (Linux before 5.14).
func Reserve(memory []byte) error { return advise(populateWrite, memory) }

// ReserveForReading reserves pages for memory, a part of Bytes of a segment that this process only
// reads. It takes less time than [Reserve] if the pages exist. Errors are those of Reserve.
func ReserveForReading(memory []byte) error { return advise(populateRead, memory) }

// Release releases the pages that lie entirely within memory, a part of Bytes of a segment. Their
// bytes then read as zero in all processes that have them mapped, and the pages are no longer
// reserved. Errors are those of [Reserve].
func Release(memory []byte) error { return advise(remove, memory) }

// pageAdvice is an argument of madvise.
type pageAdvice int

const (
	populateWrite pageAdvice = iota // MADV_POPULATE_WRITE
	populateRead                    // MADV_POPULATE_READ
	remove                          // MADV_REMOVE
)

// Map maps the whole file of f, a descriptor that a peer has passed. The caller keeps f, and may
// close it at any time; the caller also closes the segment. The error matches [ErrFile] if f is not
// shared memory, is a *SizeError if the file is empty or has more than limit bytes, is an *Error if
// the system refuses, and matches [errors.ErrUnsupported] if the system has no such memory.
func Map(f *os.File, limit int64) (*Segment, error) { return open(f, limit) }

// Bytes returns the mapped memory itself, which has the size that the file had when it was mapped,
// and begins at a page. The slice must not be accessed after Close; then Bytes returns nil.
func (s *Segment) Bytes() []byte { return s.memory }

// Sealed reports whether the file cannot be truncated, so that accesses need no [Guard]. The peer
// can still release pages (fallocate, MADV_REMOVE): the next access gets a new page of zeros, and
// faults only if the system has no memory.
func (s *Segment) Sealed() bool { return s.sealed }

// File returns the file whose descriptor is passed to the peer. The segment owns it, and closes it
// in CloseFile or Close; after that, and for a segment of [Map], File returns nil.
func (s *Segment) File() *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.file
}

// CloseFile closes the descriptor, which is not needed once the peer has received it. The memory
// stays mapped. Further calls do nothing and return nil.
func (s *Segment) CloseFile() error {
	s.mu.Lock()
	f := s.file
	s.file = nil
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	return f.Close()
}

// Close unmaps the memory and closes the descriptor if it is open. No goroutine may access the
// memory any more: other memory may be mapped at its address next. The error is that of either
// step, but both are done. Further calls do nothing and return nil.
func (s *Segment) Close() error {
	err := s.CloseFile()
	s.mu.Lock()
	defer s.mu.Unlock()
	memory := s.memory
	s.memory = nil
	return cmp.Or(unmap(memory), err)
}

// ErrFault is the error of a [Guard] whose function accessed memory that is gone: the peer has
// truncated its file. The contents of that memory are undefined.
var ErrFault = errors.New("segment: the peer took shared memory away")

// ErrFile matches errors about a peer's descriptor that is not shared memory, such as a file on a
// disk or a socket.
var ErrFile = errors.New("segment: not shared memory")

// SizeError is the error of a segment that would be empty or too large.
type SizeError struct {
	Size  int64 // in bytes
	Limit int64 // the largest allowed
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("segment: %d bytes of shared memory: must be 1 to %d", e.Size, e.Limit)
}

// Error is the error of a system call on shared memory. Err is the reason, as in errors.Is(err,
// syscall.EMFILE). An Error matches transport.ErrResource: the peer may be alive.
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

// Unwrap returns Err, the reason.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is transport.ErrResource, by which a pipe recognizes that the peer is
// not lost.
func (e *Error) Is(target error) bool { return target == probe.ErrResource }

// advice returns a hint, in parentheses, on how to avoid err, the error of a system call. It
// returns "" if it knows none.
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
