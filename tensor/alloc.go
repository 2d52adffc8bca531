package tensor

import (
	"math"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/hugepage"
	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
)

// Allocator makes storages. A runtime that manages memory of its own supplies
// one, built on NewStorage.
type Allocator interface {
	// Alloc returns a storage of size bytes with undefined contents, aligned
	// for every dtype. A size that no machine has is a *SizeError. It may be
	// called from any goroutine.
	Alloc(size int) (*Storage, error)
}

// Heap allocates from the Go heap. Its memory is zero. As with make, asking for
// more than the machine has ends the process: bound sizes that a peer claims.
type Heap struct{}

// Alloc implements Allocator.
func (Heap) Alloc(size int) (*Storage, error) {
	if err := checkSize(size); err != nil {
		return nil, err
	}
	return heapStorage(size), nil
}

// heapStorage makes a storage whose memory the collector owns; Release only
// makes stale users show under the tag "invariants".
func heapStorage(size int) *Storage {
	s, p := newHeapStorage(size)
	s.first.Store(&s.room)
	s.buf, s.host = device.Bytes(p), p
	if invariants.Enabled {
		s.release = func() { invariants.Scribble(p) }
	}
	return &s.Storage
}

func newHeapStorage(size int) (*roomyStorage, []byte) {
	if size > smallBytes {
		return &roomyStorage{}, heapBytes(size)
	}
	one := &smallStorage{}
	return &one.roomyStorage, unsafe.Slice((*byte)(unsafe.Pointer(&one.memory)), size)
}

// roomyStorage is a Storage beside the first tensor that views it, since most have one.
type roomyStorage struct {
	Storage
	room roomyTensor
}

// smallBytes is the size up to which memory lies beside its Storage.
const smallBytes = 64

type smallStorage struct {
	roomyStorage
	memory [smallBytes / 8]uint64
}

// heapBytes returns zeroed memory that is aligned for every dtype, which
// make([]byte, size) is not for small sizes. Big memory may have huge pages.
func heapBytes(size int) []byte {
	if size >= hugepage.Size {
		return hugepage.Make(size)
	}
	words := make([]uint64, (size+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), size)
}

// maxAlloc is the largest size worth trying: the user half of a 48 bit address
// space. The runtime panics for what cannot be.
const maxAlloc = min(1<<47, math.MaxInt)

func checkSize(size int) error {
	if size < 0 || size > maxAlloc {
		return &SizeError{Size: size}
	}
	return nil
}
