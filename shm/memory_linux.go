package shm

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/internal/ring"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
)

const (
	// inboxSize and reactorSize are TensorPipe's, in bytes.
	inboxSize   = 2 << 20
	reactorSize = 4 << 20

	// largestRing bounds what a peer can have mapped here.
	largestRing = 64 << 20
)

// memory is a ring and the two segments it lies in.
type memory struct {
	header, data *segment.Segment
	ring         *ring.Ring
}

// create makes the memory of a ring of this end, of which the first part has its
// pages. It is sealed: a C++ peer does not notice, and nobody can take it away.
func create(size, part int) (m memory, err error) {
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	if m.header, err = segment.CreateSealed(ring.HeaderSize); err != nil {
		return m, err
	}
	if m.data, err = segment.CreateSparse(size, segment.Extent{At: 0, Length: part}); err != nil {
		return m, err
	}
	if err = ring.Init(m.header.Bytes(), size); err != nil {
		return m, err
	}
	m.ring, err = ring.Open(m.header.Bytes(), m.data.Bytes())
	return m, err
}

// open maps a ring of the peer.
func open(header, data *os.File) (m memory, err error) {
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	if m.header, err = segment.Map(header, ring.HeaderSize); err != nil {
		return m, unusable(err)
	}
	if m.data, err = segment.Map(data, largestRing); err != nil {
		return m, unusable(err)
	}
	err = m.guard(func() error {
		m.ring, err = ring.Open(m.header.Bytes(), m.data.Bytes())
		return err
	})
	return m, unusable(err)
}

// unusable blames the peer where it is to blame, and not the limits of this
// process.
func unusable(err error) error {
	var refused *segment.Error
	if err == nil || errors.As(err, &refused) {
		return err
	}
	return protocolError("%w", err)
}

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrProtocol, fmt.Errorf(format, args...))
}

// guard runs f, which touches the memory.
func (m memory) guard(f func() error) error {
	return segment.Guard(f, m.header.Bytes(), m.data.Bytes())
}

// sealed reports whether the memory needs no guard.
func (m memory) sealed() bool { return m.header.Sealed() && m.data.Sealed() }

func (m memory) closeFiles() error { return cmp.Or(m.header.CloseFile(), m.data.CloseFile()) }

func (m memory) close() {
	for _, s := range []*segment.Segment{m.header, m.data} {
		if s != nil {
			s.Close()
		}
	}
}

// The header of a ring has six bytes that TensorPipe does not use and leaves
// zero. In the last four of an inbox an end of ours says that it can do without
// tokens, who sleeps, and that nothing more will be written: the socket cannot
// say so, because an end that writes no more may still ring.
const (
	wordAt = 20

	doorbells = 0x7470_6800 // the upper three bytes: this end rings, and can be rung
	markBits  = 0xffff_ff00

	readerSleeps = 1
	writerSleeps = 2
	writerEnded  = 4
)

func (m memory) word() *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&m.header.Bytes()[wordAt]))
}
