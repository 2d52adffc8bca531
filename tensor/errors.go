package tensor

import (
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Errors about the state of a tensor or its storage.
var (
	// ErrReadOnly is returned by operations that would write to a read-only storage. Clone the tensor
	// and write to the clone.
	ErrReadOnly = errors.New("tensor: storage is read-only; clone it to write")

	// ErrReleased is returned after Release of the storage, which another user of the memory has
	// called.
	ErrReleased = errors.New("tensor: storage was released")

	// ErrNotContiguous is returned if a view requires adjacent elements. Use Contiguous, Reshape or
	// Clone.
	ErrNotContiguous = errors.New("tensor: elements are not contiguous; use Contiguous or Clone")

	// ErrOverlap is returned by writes to a tensor whose elements share memory,
	// as after Expand. Clone the tensor and write to the clone.
	ErrOverlap = errors.New("tensor: elements share memory; clone the tensor to write")

	// ErrUnaligned is returned if memory that was not allocated by this package does not start at a
	// multiple of the element's alignment. Use Clone.
	ErrUnaligned = errors.New("tensor: memory is not aligned for the dtype; clone it")
)

// DTypeError reports a dtype that does not exist or is unsuitable for the operation.
type DTypeError struct {
	Name   string // the name of the dtype
	Reason string
}

func (e *DTypeError) Error() string { return fmt.Sprintf("tensor: dtype %q: %s", e.Name, e.Reason) }

// ShapeError reports a shape that is impossible, or unsuitable for the operation.
type ShapeError struct {
	Shape  []int // the invalid shape
	Reason string
}

func (e *ShapeError) Error() string { return fmt.Sprintf("tensor: shape %v: %s", e.Shape, e.Reason) }

// IndexError reports an index out of range.
type IndexError struct {
	What  string // the indexed object, such as "dimension" or "storage"
	Index int
	Len   int // valid indices are 0..Len-1
}

func (e *IndexError) Error() string {
	return fmt.Sprintf("tensor: %s index %d out of range [0, %d)", e.What, e.Index, e.Len)
}

// DeviceError is returned by operations on elements that the host cannot address. Copy the memory to
// the host with the device's Kind first.
type DeviceError struct{ Device device.Device }

func (e *DeviceError) Error() string {
	return fmt.Sprintf("tensor: memory on %v is not addressable by the host; copy it first", e.Device)
}

// SizeError reports a number of bytes that cannot be allocated, because it is impossible or the system
// has no memory.
type SizeError struct {
	Size int
	Err  error // of the operating system, or nil
}

func (e *SizeError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("tensor: cannot allocate %d bytes: %v", e.Size, e.Err)
	}
	return fmt.Sprintf("tensor: cannot allocate %d bytes", e.Size)
}

// Unwrap returns e.Err, the error of the operating system, or nil if there is none.
func (e *SizeError) Unwrap() error { return e.Err }

// LimitError is returned by a Pool if an allocation would exceed the limit. Release storages, wait with
// AllocWait, or raise PoolOptions.Limit.
type LimitError struct {
	Size  int // requested bytes, rounded up to a size class of the pool
	InUse int // bytes in use
	Limit int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("tensor: pool has %d of %d bytes in use, no room for %d more", e.InUse, e.Limit, e.Size)
}
