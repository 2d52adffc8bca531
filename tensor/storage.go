package tensor

import (
	"math"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/hugepage"
	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
)

// Storage is a region of memory on a device that tensors view. It is used by pointer; two tensors share
// memory if they have the same *Storage.
//
// When a Storage becomes unreachable its memory returns to its allocator; see the package comment for
// what keeps it reachable.
type Storage struct {
	buf      device.Buffer
	host     []byte // nil if the host cannot address the memory
	release  func()
	cleanup  runtime.Cleanup
	readOnly atomic.Bool
	released atomic.Bool
	first    atomic.Pointer[tensorWithDims] // preallocated first tensor, nil once it is used
	stream   atomic.Pointer[device.Stream]  // set by SetStream, in place of that of buf
}

// NewStorage returns a Storage of the memory of buf, without a copy, and keeps buf. buf is memory
// of another device, or host memory in one segment; for host memory in several segments the error
// is ErrNotContiguous.
//
// If release is not nil, it is called exactly once: by Storage.Release, or on a goroutine of the
// runtime some time after the Storage has become unreachable. It must not block, and must not refer
// to the Storage, which would then never become unreachable. After an error it is not called.
func NewStorage(buf device.Buffer, release func()) (*Storage, error) {
	host, ok := buf.Contiguous()
	if buf.IsHost() && !ok {
		return nil, ErrNotContiguous
	}
	s := &Storage{buf: buf, host: host, release: release}
	if release != nil {
		s.cleanup = runtime.AddCleanup(s, func(release func()) { release() }, release)
	}
	return s, nil
}

// Len returns the size of the memory in bytes.
func (s *Storage) Len() int { return s.buf.Len() }

// Device returns the device on which the memory is.
func (s *Storage) Device() device.Device { return s.buf.Device() }

// ReadOnly reports whether the memory is read-only, which SetReadOnly sets: the elements must then
// not change.
func (s *Storage) ReadOnly() bool { return s.readOnly.Load() }

// SetReadOnly makes the memory read-only if on is true, and writable if on is false. While it is
// read-only, operations of this package that would write return ErrReadOnly; slices and buffers
// obtained before can still be written to. Use it for a Storage that other goroutines or processes
// read, or whose memory is mapped read-only. It may be called concurrently.
func (s *Storage) SetReadOnly(on bool) { s.readOnly.Store(on) }

// Buffer returns the memory, without a copy, as a buffer for a pipe. The buffer and slices of it
// keep s reachable. A caller that writes to the buffer must check ReadOnly first. After Release it
// returns ErrReleased.
func (s *Storage) Buffer() (device.Buffer, error) {
	if err := s.check(); err != nil {
		return device.Buffer{}, err
	}
	b := s.buf.WithOwner(s)
	if stream := s.stream.Load(); stream != nil {
		b = b.WithStream(*stream)
	}
	return b, nil
}

// SetStream makes the memory valid on stream, in place of the stream on which it is valid now: stream waits for the
// present work of that one, and buffers that Buffer returns later are valid on stream. It is for work that changes the
// memory on another stream. stream must not be nil. No other goroutine may use the memory during the call. After an error, that of the streams
// or ErrReleased, nothing has changed.
func (s *Storage) SetStream(stream device.Stream) error {
	b, err := s.Buffer()
	if err != nil {
		return err
	}
	if before := b.Stream(); before != nil && before != stream {
		if err := stream.WaitFor(before); err != nil {
			return err
		}
	}
	s.stream.Store(&stream)
	return nil
}

// Bytes returns the memory, without a copy. The slice does not keep s reachable: call
// runtime.KeepAlive(s) after its last use. The caller must not write to the slice if s is ReadOnly.
// The error is ErrReleased after Release, or a *DeviceError if the host cannot address the memory.
func (s *Storage) Bytes() ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if !s.buf.IsHost() {
		return nil, &DeviceError{Device: s.buf.Device()}
	}
	return s.host, nil
}

// Release gives the memory back to its allocator now, instead of when s becomes unreachable, by
// calling the function given to NewStorage. The caller must make sure that no tensor, slice or
// buffer in a pipe uses the memory any more; later operations on s fail with ErrReleased. A second
// call does nothing; in builds with the tag "invariants" it panics.
func (s *Storage) Release() {
	first := s.released.CompareAndSwap(false, true)
	invariants.Check(first, "tensor: storage of %d bytes released twice", s.Len())
	if first && s.release != nil {
		s.cleanup.Stop()
		s.release()
	}
	runtime.KeepAlive(s) // otherwise Stop could run after the cleanup
}

// check returns ErrReleased if s was released, and otherwise nil. In builds with the tag
// "invariants" it panics if s was released.
func (s *Storage) check() error {
	released := s.released.Load()
	invariants.Check(!released, "tensor: storage of %d bytes used after Release", s.Len())
	if released {
		return ErrReleased
	}
	return nil
}

// Allocator creates storages. A runtime that manages its own memory implements it with NewStorage.
type Allocator interface {
	// Alloc returns a storage of size bytes with undefined contents, aligned for every dtype. The error
	// for an impossible size is a *SizeError. It may be called from any goroutine.
	Alloc(size int) (*Storage, error)
}

// Heap allocates zeroed memory from the Go heap. As with make, allocating more than the machine has
// ends the process: bound sizes that a peer claims.
type Heap struct{}

// Alloc returns a storage of size zeroed bytes on the Go heap, which the garbage collector frees.
// If size is negative or impossibly large the error is a *SizeError. Memory that is merely
// exhausted ends the process, as it does for make.
func (Heap) Alloc(size int) (*Storage, error) {
	if err := checkSize(size); err != nil {
		return nil, err
	}
	return heapStorage(size), nil
}

// heapStorage returns a storage of size zeroed bytes on the Go heap. size must have passed
// checkSize. Release of the storage frees nothing, but in builds with the tag "invariants" it
// overwrites the memory, which exposes later uses.
func heapStorage(size int) *Storage {
	var s *storageWithTensor
	var p []byte
	if size > inlineBytes {
		s, p = &storageWithTensor{}, heapBytes(size)
	} else {
		one := &smallStorage{}
		s, p = &one.storageWithTensor, unsafe.Slice((*byte)(unsafe.Pointer(&one.memory)), size)
	}
	s.first.Store(&s.inlineTensor)
	s.buf, s.host = device.Bytes(p), p
	if invariants.Enabled {
		s.release = func() { invariants.Scribble(p) }
	}
	return &s.Storage
}

// storageWithTensor is a Storage allocated together with the first tensor that views it, since most
// storages have a tensor.
type storageWithTensor struct {
	Storage
	inlineTensor tensorWithDims
}

// inlineBytes is the size in bytes up to which memory is allocated together with its Storage.
const inlineBytes = 64

// smallStorage is a storageWithTensor allocated together with its memory of at most inlineBytes bytes.
type smallStorage struct {
	storageWithTensor
	memory [inlineBytes / 8]uint64
}

// heapBytes returns size zeroed bytes on the Go heap, aligned for every dtype; make([]byte, size)
// is not for small sizes. Large memory may use huge pages.
func heapBytes(size int) []byte {
	if size >= hugepage.Size {
		return hugepage.Make(size)
	}
	words := make([]uint64, (size+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), size)
}

// maxAlloc is the largest size that may succeed: the user half of a 48-bit address space. The runtime
// panics for larger ones.
const maxAlloc = min(1<<47, math.MaxInt)

// checkSize returns nil if size is from 0 to maxAlloc, the largest storage, and otherwise a
// *SizeError.
func checkSize(size int) error {
	if size < 0 || size > maxAlloc {
		return &SizeError{Size: size}
	}
	return nil
}
