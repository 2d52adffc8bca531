// Package ring moves bytes through memory that processes share, in the form of
// TensorPipe's ring buffer.
//
// A ring is two pieces of memory. The data is a power of two of bytes. The header
// tells how far each side has come:
//
//	 0  8  size     of the data, in bytes
//	 8  8  mask     size - 1
//	16  1  flag     1 while a consumer is at work
//	17  1  flag     1 while a producer is at work
//	18  6           free: zero at first, and left alone
//	24  8  tail     bytes taken out since the beginning
//	32  8  head     bytes put in since the beginning
//
// in the byte order of the machine. The byte number n lies at index n & mask.
//
// # Transactions
//
// Who wants to put in or take out begins a transaction, which takes the flag of
// the role: others of the role, in any process, are busy meanwhile. Commit shows
// the other role what was moved, Cancel undoes it, and both give the flag back. A
// side that is alone in its role may as well begin once and Publish what it moves.
//
// Nothing here waits. Whoever finds no room, no bytes, or the role taken tries
// again later.
//
// # A peer is not trusted
//
// It can write to the header and the data at any time. The size is read once, and
// no access depends on anything but markers that were read once and checked:
// impossible ones are [ErrCorrupt]. What a peer can do is to keep a role taken for
// ever, to show bytes that nobody wrote, and to change them while they are read:
// read in place only what may change.
package ring

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// HeaderSize is the length of a header in bytes.
const HeaderSize = 40

// Sizes of the data in bytes, which are powers of two.
const (
	MinSize = 2
	MaxSize = 1 << 30
)

// Where the fields of a header are.
const (
	offsetSize  = 0
	offsetMask  = 8
	offsetFlags = 16
	offsetTail  = 24
	offsetHead  = 32
)

// Ring is one process's view of a ring. Any number may be open over the same
// memory.
type Ring struct {
	data  []byte
	flags *atomic.Uint32
	tail  *atomic.Uint64
	head  *atomic.Uint64
}

// Init makes a header for an empty ring over size bytes of data, a power of two
// from [MinSize] to [MaxSize]. Nobody may use the ring yet. A header that is too
// short or does not start at a multiple of 8, and a wrong size, are [ErrForm].
func Init(header []byte, size int) error {
	if err := checkHeader(header); err != nil {
		return err
	}
	if !isSize(uint64(size)) {
		return fmt.Errorf("%w: a size of %d", ErrForm, size)
	}
	clear(header[:HeaderSize])
	word(header, offsetSize).Store(uint64(size))
	word(header, offsetMask).Store(uint64(size) - 1)
	return nil
}

// Open makes a view of a ring that somebody has initialized. Both pieces of memory
// must stay as long as the view is in use. A header that describes no ring of
// len(data) bytes is [ErrCorrupt], and one that cannot be used [ErrForm].
func Open(header, data []byte) (*Ring, error) {
	if err := checkHeader(header); err != nil {
		return nil, err
	}
	size, mask := word(header, offsetSize).Load(), word(header, offsetMask).Load()
	if !isSize(size) || mask != size-1 {
		return nil, fmt.Errorf("%w: a header with size %d and mask %#x", ErrCorrupt, size, mask)
	}
	if size != uint64(len(data)) {
		return nil, fmt.Errorf("%w: a header with size %d over %d bytes of data", ErrCorrupt, size, len(data))
	}
	return &Ring{
		data:  data,
		flags: (*atomic.Uint32)(unsafe.Pointer(&header[offsetFlags])),
		tail:  word(header, offsetTail),
		head:  word(header, offsetHead),
	}, nil
}

// Size is the number of bytes that fit in the ring.
func (r *Ring) Size() int { return len(r.data) }

func checkHeader(header []byte) error {
	if len(header) < HeaderSize {
		return fmt.Errorf("%w: a header of %d bytes", ErrForm, len(header))
	}
	// Markers must be read and written as a whole.
	if uintptr(unsafe.Pointer(&header[0]))%8 != 0 {
		return fmt.Errorf("%w: the header does not start at a multiple of 8", ErrForm)
	}
	return nil
}

func isSize(n uint64) bool { return n >= MinSize && n <= MaxSize && n&(n-1) == 0 }

func word(header []byte, offset int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&header[offset]))
}
