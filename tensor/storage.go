package tensor

import (
	"runtime"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
)

// Storage is a piece of memory on a device that tensors view. It is held by
// pointer; two tensors share memory if they have the same *Storage.
//
// When a Storage becomes unreachable its memory goes back to where it came
// from; see the package comment for what keeps it reachable.
type Storage struct {
	buf      device.Buffer
	host     []byte // nil if the host cannot address the memory
	release  func()
	cleanup  runtime.Cleanup
	readOnly atomic.Bool
	released atomic.Bool
	first    atomic.Pointer[roomyTensor] // room for the tensor that views it first, until that is made; nil without
}

// NewStorage makes a Storage of the memory of buf, host memory in one segment
// or memory of another device.
//
// release, if not nil, is called exactly once: by Release, or from a goroutine
// of the runtime some time after the Storage has become unreachable. It must
// not block, and must not refer to the Storage, which would then never become
// unreachable. The error is ErrNotContiguous if buf has several segments.
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

// Len is the size in bytes.
func (s *Storage) Len() int { return s.buf.Len() }

// Device is where the memory lives.
func (s *Storage) Device() device.Device { return s.buf.Device() }

// ReadOnly reports whether the elements must not change.
func (s *Storage) ReadOnly() bool { return s.readOnly.Load() }

// SetReadOnly freezes or thaws the memory: while it is read-only, operations
// that write return ErrReadOnly. Slices and buffers taken out before are not
// stopped. Freeze a Storage that somebody else reads or that lies in memory
// mapped for reading only.
func (s *Storage) SetReadOnly(on bool) { s.readOnly.Store(on) }

// Buffer is the memory as a pipe takes it. The Buffer and its slices keep the
// Storage alive. Who writes to it has asked ReadOnly before. The error is
// ErrReleased.
func (s *Storage) Buffer() (device.Buffer, error) {
	if err := s.check(); err != nil {
		return device.Buffer{}, err
	}
	return s.buf.WithOwner(s), nil
}

// Bytes is the memory itself. The slice does not keep s alive: call
// runtime.KeepAlive(s) behind its last use. It must not be written to if s is
// ReadOnly. The error is ErrReleased or a *DeviceError.
func (s *Storage) Bytes() ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if !s.buf.IsHost() {
		return nil, &DeviceError{Device: s.buf.Device()}
	}
	return s.host, nil
}

// Release gives the memory back now instead of when s becomes unreachable.
// The caller knows that nobody uses the memory any more: no tensor, no buffer
// on its way through a pipe. Releasing again does nothing, or panics in builds
// with the tag "invariants".
func (s *Storage) Release() {
	first := s.released.CompareAndSwap(false, true)
	invariants.Check(first, "tensor: storage of %d bytes released twice", s.Len())
	if first && s.release != nil {
		s.cleanup.Stop()
		s.release()
	}
	runtime.KeepAlive(s) // or Stop could come after the cleanup
}

// check fails if the memory was given back.
func (s *Storage) check() error {
	released := s.released.Load()
	invariants.Check(!released, "tensor: storage of %d bytes used after Release", s.Len())
	if released {
		return ErrReleased
	}
	return nil
}
