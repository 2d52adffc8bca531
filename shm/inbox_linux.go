package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/internal/deadline"
	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ring"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// inbox is the reading half of a connection. Its memory was created by this end and is sealed, so
// reading it cannot fault.
type inbox struct {
	waiter
	conn        *conn
	consumer    *ring.Consumer
	deadline    deadline.Deadline
	protocolErr atomic.Pointer[error] // why the peer broke the protocol, on the socket

	mu         sync.Mutex // held by a read
	unreported int        // bytes that were read and for which no trigger was sent

	header    [headerSize]byte
	have      int   // bytes of header that were read
	remaining int64 // bytes of the body that were not read
}

// ready reports whether a blocked read can go on because of the ring: there are bytes in it, or it
// is corrupt, so that the read returns an error.
func (b *inbox) ready() bool {
	n, err := b.consumer.Readable()
	return n > 0 || err != nil
}

// fail makes read return err once the ring is empty, unless callError gives another reason. Only
// the err of the first call counts. Each call wakes a blocked read.
func (b *inbox) fail(err error) {
	b.protocolErr.CompareAndSwap(nil, &err)
	b.wakeup.wake()
}

func (b *inbox) nextFrame() (int64, error) {
	if b.conn.closed.Load() {
		return 0, transport.ErrClosed
	}
	if b.remaining > 0 {
		return 0, fmt.Errorf("%w: next frame asked for with %d bytes of the last one unread", transport.ErrFrame, b.remaining)
	}
	for b.have < headerSize {
		n, err := b.read(b.header[b.have:])
		b.have += n
		if err == io.EOF && b.have > 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, err
		}
	}
	b.have, b.remaining = 0, int64(binary.LittleEndian.Uint32(b.header[:]))
	if b.remaining == 0 {
		return 0, b.reportFreed()
	}
	return b.remaining, nil
}

func (b *inbox) readBody(dst [][]byte) error {
	if b.conn.closed.Load() {
		return transport.ErrClosed
	}
	if want := frame.Size(dst); want > b.remaining {
		return fmt.Errorf("%w: %d bytes asked for with %d left of the frame", transport.ErrFrame, want, b.remaining)
	}
	for _, p := range dst {
		for len(p) > 0 {
			n, err := b.read(p)
			p = p[n:]
			b.remaining -= int64(n)
			if err == io.EOF {
				return io.ErrUnexpectedEOF
			}
			if err != nil {
				return err
			}
		}
	}
	return b.reportFreed()
}

// read blocks until there are bytes, copies at most 64 KiB of them to p, which must not be empty,
// and returns how many. Once the ring is empty it returns the error given to fail, or io.EOF if the
// peer has finished. Other errors are those of callError, of a corrupt ring, or of reportFreed;
// with an error of reportFreed, the number can be positive. The caller holds mu.
func (b *inbox) read(p []byte) (int, error) {
	for {
		if err := b.callError(); err != nil {
			return 0, err
		}
		var ended error // checked before the ring: bytes written before the end are returned first
		if err := b.protocolErr.Load(); err != nil {
			ended = *err
		} else if b.conn.peerFinished.Load() || b.marker != nil && b.marker.Load()&writerClosed != 0 {
			ended = io.EOF
		}
		n, err := b.consumer.Read(p[:min(piece, len(p))])
		switch {
		case err != nil:
			return 0, err
		case n > 0:
			return n, b.release(n)
		case ended != nil:
			return 0, ended
		}
		if err := b.reportFreed(); err != nil {
			return 0, err
		}
		b.wait()
	}
}

// callError returns why reads fail at once, even if there are bytes in the ring: ErrClosed after
// Close, or os.ErrDeadlineExceeded after the read deadline. Otherwise it returns nil.
func (b *inbox) callError() error {
	switch {
	case b.conn.closed.Load():
		return transport.ErrClosed
	case b.deadline.Passed():
		return os.ErrDeadlineExceeded
	}
	return nil
}

// release lets the peer reuse the space of n bytes that were read. A peer of this package gets a
// doorbell if its writer is blocked. For a C++ peer release adds n to unreported, and calls
// reportFreed if that makes 64 KiB or more. The error is that of reportFreed. The caller holds mu.
func (b *inbox) release(n int) error {
	if err := b.consumer.Publish(); err != nil {
		return err
	}
	if b.conn.doorbells {
		b.conn.notifyIfBlocked(b.marker, writerBlocked)
		return nil
	}
	b.unreported += n
	if b.unreported < piece {
		return nil
	}
	return b.reportFreed()
}

// reportFreed sends a C++ peer a trigger if unreported is not 0: bytes were read since the last
// trigger. For a peer of this package unreported is always 0, and reportFreed does nothing. The
// error is that of peerReactor.send. After os.ErrDeadlineExceeded unreported keeps its value, so
// that the next call tries again. After success, and after any other error, unreported is 0. The
// caller holds mu.
func (b *inbox) reportFreed() error {
	if b.unreported == 0 {
		return nil
	}
	err := b.conn.peerReactor.send(b.conn.peerReactor.outbox, &b.deadline, b.wakeup)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		b.unreported = 0
	}
	return err
}
