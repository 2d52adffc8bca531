// Package ring implements TensorPipe's ring buffer in memory that processes share.
//
// A ring is two pieces of memory. The data has a size that is a power of two. The header holds the
// state:
//
//	 0  8  size     of the data, in bytes
//	 8  8  mask     size - 1
//	16  1  flag     1 while a consumer is in a transaction
//	17  1  flag     1 while a producer is in a transaction
//	18  6           unused: zero at first, and left alone
//	24  8  tail     number of bytes read since the beginning
//	32  8  head     number of bytes written since the beginning
//
// in the byte order of the machine. Byte number n is at index n & mask.
//
// # Transactions
//
// A producer writes, and a consumer reads, in a transaction, which sets the flag of its role.
// Others in the same role, in any process, get ErrBusy until it ends. Commit publishes what was
// moved to the other role, Cancel discards it, and both clear the flag. A producer or consumer that
// is the only one in its role may begin once and call Publish repeatedly.
//
// No call blocks. A caller that finds no space, no bytes, or its role taken tries again later.
//
// # Untrusted peers
//
// The peer can write to the header and the data at any time. The size is read once, and accesses
// depend only on head and tail, which are read once and checked: impossible values are
// [ErrCorrupt]. A peer can still keep a role taken, publish bytes that were never written, and
// change bytes while they are read. Only what may change should be read in place.
package ring

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// HeaderSize is the size of a header in bytes.
const HeaderSize = 40

// Smallest and largest size of the data in bytes, powers of two.
const (
	MinSize = 2
	MaxSize = 1 << 30
)

// Offsets of the fields in a header.
const (
	offsetSize  = 0
	offsetMask  = 8
	offsetFlags = 16
	offsetTail  = 24
	offsetHead  = 32
)

// Ring is one process's view of a ring in shared memory, which must stay mapped while the view is
// in use. Any number of views of the same memory may be open.
type Ring struct {
	data  []byte
	flags *atomic.Uint32
	tail  *atomic.Uint64
	head  *atomic.Uint64
}

// Init overwrites header with the header of an empty ring over size bytes of data. No process may
// be using the ring. The error matches [ErrForm] if size is not a power of two from [MinSize] to
// [MaxSize], or if header is too short or not aligned to 8 bytes.
func Init(header []byte, size int) error {
	if err := checkHeader(header); err != nil {
		return err
	}
	if !validSize(uint64(size)) {
		return fmt.Errorf("%w: a size of %d", ErrForm, size)
	}
	clear(header[:HeaderSize])
	uint64At(header, offsetSize).Store(uint64(size))
	uint64At(header, offsetMask).Store(uint64(size) - 1)
	return nil
}

// Open returns a view of the ring whose header is in header, initialized by Init, and whose bytes
// are in data. The view keeps both slices, which must stay mapped while it is in use. The error
// matches [ErrForm] if header is too short or not aligned to 8 bytes, and [ErrCorrupt] if it does
// not describe a ring of len(data) bytes.
func Open(header, data []byte) (*Ring, error) {
	if err := checkHeader(header); err != nil {
		return nil, err
	}
	size, mask := uint64At(header, offsetSize).Load(), uint64At(header, offsetMask).Load()
	if !validSize(size) || mask != size-1 {
		return nil, fmt.Errorf("%w: a header with size %d and mask %#x", ErrCorrupt, size, mask)
	}
	if size != uint64(len(data)) {
		return nil, fmt.Errorf("%w: a header with size %d over %d bytes of data", ErrCorrupt, size, len(data))
	}
	return &Ring{
		data:  data,
		flags: (*atomic.Uint32)(unsafe.Pointer(&header[offsetFlags])),
		tail:  uint64At(header, offsetTail),
		head:  uint64At(header, offsetHead),
	}, nil
}

// Size returns the number of bytes that fit in the ring, which is the size of its data.
func (r *Ring) Size() int { return len(r.data) }

func checkHeader(header []byte) error {
	if len(header) < HeaderSize {
		return fmt.Errorf("%w: a header of %d bytes", ErrForm, len(header))
	}
	// Head and tail must be read and written atomically.
	if uintptr(unsafe.Pointer(&header[0]))%8 != 0 {
		return fmt.Errorf("%w: the header does not start at a multiple of 8", ErrForm)
	}
	return nil
}

func validSize(n uint64) bool { return n >= MinSize && n <= MaxSize && n&(n-1) == 0 }

func uint64At(header []byte, offset int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&header[offset]))
}

// ErrBusy is returned by Begin if another producer, or consumer, is in a transaction, or this one
// itself is. Try again later. If there is no other, the peer has taken a role that is not its own.
var ErrBusy = errors.New("ring: the role is taken")

// ErrIdle is returned by calls that need a transaction if none has begun.
var ErrIdle = errors.New("ring: no transaction has begun")

// ErrShort is returned if there is less space, or fewer bytes, than requested. Try again later.
var ErrShort = errors.New("ring: too little space, or too few bytes")

// ErrCorrupt matches errors about a header that no honest peer writes. The ring cannot be used any
// more.
var ErrCorrupt = errors.New("ring: the peer broke the header")

// ErrForm matches errors about memory that cannot hold a header, and invalid sizes.
var ErrForm = errors.New("ring: this cannot be a ring")
