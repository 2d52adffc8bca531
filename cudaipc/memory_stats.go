package cudaipc

import (
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// MemoryStats are the statistics of the memory of one device, in bytes and numbers.
type MemoryStats struct {
	InUse     int    // bytes of blocks in use, rounded up
	PeakInUse int    // the maximum of InUse
	Held      int    // bytes allocated from the driver: in use, pending and kept for reuse
	Segments  int    // allocations of the driver
	Pending   int    // bytes that become free when work on other streams has completed
	Allocs    uint64 // blocks that were allocated
	Frees     uint64 // blocks that were freed
	Moved     uint64 // blocks that one stream has taken over from another
}

// MemoryError reports that a device has no memory for an allocation. It matches ErrOutOfMemory.
type MemoryError struct {
	Device device.Device
	Size   int // of the allocation, in bytes
	Stats  MemoryStats
	Limit  int // Options.MemoryLimit
}

func (e *MemoryError) Error() string {
	limit := ""
	if e.Limit > 0 {
		limit = fmt.Sprintf(", limit %d", e.Limit)
	}
	return fmt.Sprintf("cudaipc: %v has no memory for %d bytes (in use %d, pending %d, held %d%s)",
		e.Device, e.Size, e.Stats.InUse, e.Stats.Pending, e.Stats.Held, limit)
}

// Unwrap returns ErrOutOfMemory.
func (e *MemoryError) Unwrap() error { return ErrOutOfMemory }

// ErrOutOfMemory matches errors about memory that a device does not have.
var ErrOutOfMemory = errors.New("the device is out of memory")
