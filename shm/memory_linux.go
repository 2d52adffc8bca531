package shm

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ring"
)

const (
	// inboxSize and reactorSize are TensorPipe's, in bytes.
	inboxSize   = 2 << 20
	reactorSize = 4 << 20

	// largestRing bounds what a peer can have mapped here.
	largestRing = 64 << 20
)

// memory is a ring, an inbox or the ring of a reactor, and the two segments that contain its header
// and its data. It was created here or mapped from a peer; close unmaps it. The zero value is no
// memory.
type memory struct {
	header, data *segment.Segment
	ring         *ring.Ring
}

// createRing creates an empty ring with size bytes of data. part is the number of bytes at the
// beginning of the data for which it reserves pages. The caller closes the result; after an error
// nothing is left to close. The memory is sealed, so that no peer can truncate it; C++ peers do not
// notice.
func createRing(size, part int) (m memory, err error) {
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	if m.header, err = segment.CreateSealed(ring.HeaderSize); err != nil {
		return m, err
	}
	if m.data, err = segment.CreateSparse(size, segment.Extent{Offset: 0, Length: part}); err != nil {
		return m, err
	}
	if err = ring.Init(m.header.Bytes(), size); err != nil {
		return m, err
	}
	m.ring, err = ring.Open(m.header.Bytes(), m.data.Bytes())
	return m, err
}

// mapRing maps the peer's ring, which consists of these two files. The caller keeps the files and
// closes the memory; after an error nothing is mapped. The error matches ErrProtocol if the peer is
// at fault, and is a *segment.Error if this system refuses to map the files.
func mapRing(header, data *os.File) (m memory, err error) {
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	if m.header, err = segment.Map(header, ring.HeaderSize); err != nil {
		return m, mapError(err)
	}
	if m.data, err = segment.Map(data, largestRing); err != nil {
		return m, mapError(err)
	}
	err = m.guard(func() error {
		m.ring, err = ring.Open(m.header.Bytes(), m.data.Bytes())
		return err
	})
	return m, mapError(err)
}

// mapError returns err, an error of receiving or mapping memory of the peer, wrapped so that it
// matches [ErrProtocol]. It returns err unchanged if err is nil or contains a *segment.Error, by
// which this system has refused.
func mapError(err error) error {
	var refused *segment.Error
	if err == nil || errors.As(err, &refused) {
		return err
	}
	return protocolError("%w", err)
}

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrProtocol, fmt.Errorf(format, args...))
}

// guard calls f, which accesses m on the calling goroutine, and returns its error. If the peer has
// truncated the memory, the access ends f, and the error matches segment.ErrFault. So f must
// release its locks with defer.
func (m memory) guard(f func() error) error {
	return segment.Guard(f, m.header.Bytes(), m.data.Bytes())
}

// sealed reports whether neither end can truncate the memory, so that it can be accessed without
// guard.
func (m memory) sealed() bool { return m.header.Sealed() && m.data.Sealed() }

func (m memory) close() {
	for _, s := range []*segment.Segment{m.header, m.data} {
		if s != nil {
			s.Close()
		}
	}
}

// Six bytes in the header of a ring are unused by TensorPipe and zero. In the last four of an
// inbox, two ends of this package keep a marker: that they use doorbells, which directions are
// blocked, and whether the writer has finished. The end of the socket cannot show the latter, since
// an end that has finished writing still sends doorbells.
const (
	markerOffset = 20

	doorbellMagic = 0x7470_6800 // in the upper three bytes: this end sends and understands doorbells
	markerMask    = 0xffff_ff00

	readerBlocked = 1
	writerBlocked = 2
	writerClosed  = 4
)

func (m memory) marker() *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&m.header.Bytes()[markerOffset]))
}

// inboxReserved is the number of bytes of an inbox that have pages at first: enough for the
// handshake of a pipe, after which the connection usually becomes a session. A writer of this
// package reserves the others when it writes more. C++ writers do not. For one that dials, all
// pages are reserved before it can write. One that listens shows too late that it is C++; but in
// TensorPipe the dialling end writes first, and until then the pages are reserved.
const inboxReserved = 64 << 10

// createInbox creates the inbox of a connection, which the caller closes. Only its first
// inboxReserved bytes have pages; all have if this system cannot reserve pages of existing memory.
func createInbox() (memory, error) {
	m, err := createRing(inboxSize, inboxReserved)
	if err != nil || !errors.Is(segment.Reserve(m.data.Bytes()[:1]), errors.ErrUnsupported) {
		return m, err
	}
	m.close()
	return createRing(inboxSize, inboxSize)
}

// reserveAll reserves all pages of the data of an inbox, or of its first inboxSize bytes if the
// inbox is larger. It returns nil if this system cannot reserve pages of existing memory: then the
// owner has reserved all when it created the inbox. Other errors are those of segment.Reserve.
func (m memory) reserveAll() error {
	data := m.data.Bytes()
	err := segment.Reserve(data[:min(len(data), inboxSize)])
	if errors.Is(err, errors.ErrUnsupported) {
		return nil // the owner has then reserved all pages
	}
	return err
}
