// Package segment holds memory that processes share: a file without a name
// (memfd) that is mapped here, and whose descriptor is passed to the peer, who
// maps it too.
//
// # A peer is not trusted
//
// Whoever has the descriptor of an ordinary segment can shrink the file, and then
// the pages behind the end are gone: to touch them is a fault that ends the
// process. Hence every touch of such memory happens within [Guard]. A segment of
// [CreateSealed] cannot shrink, and needs no guard; [Segment.Sealed] says whether
// that holds for a segment that came from the peer.
//
// What is in the memory can change at any moment. Whoever decides by it reads it
// once, keeps what he read, and checks that.
//
// On systems other than Linux every call fails with an error that matches
// [errors.ErrUnsupported].
package segment

import (
	"cmp"
	"os"
	"sync"
)

// Segment is mapped shared memory. Its methods may be called by any goroutine;
// the memory must not be touched any more once Close has been called.
type Segment struct {
	memory []byte
	sealed bool

	mu   sync.Mutex
	file *os.File // nil when closed, and for a segment from the peer
}

// Create makes a segment of size bytes, all zero, whose pages are set aside. It is
// what TensorPipe in C++ makes: whoever gets the descriptor can shrink it. It is for
// those who stand in for such a peer; a peer accepts a sealed one as well.
//
// A size below 1 gives a *SizeError, and what the system refuses an *Error with
// its reason in it.
func Create(size int) (*Segment, error) { return create(size, false, Extent{0, size}) }

// CreateSealed is Create with a size that nobody can change.
func CreateSealed(size int) (*Segment, error) { return create(size, true, Extent{0, size}) }

// Extent is the Length bytes of a segment from At on.
type Extent struct{ At, Length int }

// CreateSparse is CreateSealed where only the given parts have their pages set aside.
// [Reserve] does that for others.
func CreateSparse(size int, parts ...Extent) (*Segment, error) { return create(size, true, parts...) }

// Reserve sets pages aside for memory of a segment, so that it is here that a lack of
// them shows, and not at the first touch. What the system refuses is an *Error; an
// error that matches [errors.ErrUnsupported] says that it cannot do that (Linux can
// from 5.14 on).
func Reserve(memory []byte) error { return reserve(memory) }

// ReserveRead is Reserve for memory that this process only reads, which takes less time
// where the pages are there already.
func ReserveRead(memory []byte) error { return reserveRead(memory) }

// Release gives back the pages that lie within memory of a segment: it is zero then,
// for all who have it mapped, and nothing is set aside for it.
func Release(memory []byte) error { return release(memory) }

// Map maps a descriptor that came from a peer, as long as the file is. It accepts
// shared memory and nothing else, and maps neither an empty file (a *SizeError)
// nor one of more than limit bytes. What is no shared memory is an error that
// matches [ErrFile]. The caller keeps f, and may close it at any time.
func Map(f *os.File, limit int64) (*Segment, error) { return open(f, limit) }

// Bytes is the memory, as long as the file was when it was mapped. It starts at a
// page.
func (s *Segment) Bytes() []byte { return s.memory }

// Sealed reports whether the file cannot shrink, so that touching this memory needs no
// [Guard]. Whoever has it can still give pages back (fallocate, MADV_REMOVE): the next
// touch finds zeros in a new page, and is a fault only where the system has none left.
func (s *Segment) Sealed() bool { return s.sealed }

// File is the descriptor to pass to the peer. It belongs to the segment. It is
// nil after CloseFile, and for a segment of [Map].
func (s *Segment) File() *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.file
}

// CloseFile closes the descriptor, which is of no use once the peer has it. The
// memory stays. Further calls do nothing.
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

// Close unmaps the memory and closes the descriptor if it is open still. The
// caller sees to it that nobody touches the memory any more: anything may lie
// there next. Further calls do nothing.
func (s *Segment) Close() error {
	err := s.CloseFile()
	s.mu.Lock()
	defer s.mu.Unlock()
	memory := s.memory
	s.memory = nil
	return cmp.Or(unmap(memory), err)
}
