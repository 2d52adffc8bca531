package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/internal/ring"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// inbox is the reading half of a connection. Its memory is of this end, and
// sealed: reading it cannot fault.
type inbox struct {
	waiter
	conn     *conn
	from     *ring.Consumer
	deadline deadline
	blamed   atomic.Pointer[error] // on the peer

	mu     sync.Mutex // held by a reader
	handed bool       // to a stream
	owed   int        // bytes of room that the peer has not been told of

	header [headerSize]byte
	have   int   // bytes of header that came
	left   int64 // bytes of the body not yet read
}

// ready reports whether there are bytes.
func (b *inbox) ready() bool {
	n, err := b.from.Readable()
	return n > 0 || err != nil
}

// blame ends reading, behind what came before.
func (b *inbox) blame(err error) {
	b.blamed.CompareAndSwap(nil, &err)
	b.bell.ring()
}

func (b *inbox) nextFrame() (int64, error) {
	if b.conn.closed.Load() {
		return 0, transport.ErrClosed
	}
	if b.left > 0 {
		return 0, fmt.Errorf("%w: next frame asked for with %d bytes of the last one unread", transport.ErrFrame, b.left)
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
	b.have, b.left = 0, int64(binary.LittleEndian.Uint32(b.header[:]))
	if b.left == 0 {
		return 0, b.settle()
	}
	return b.left, nil
}

func (b *inbox) readBody(dst [][]byte) error {
	if b.conn.closed.Load() {
		return transport.ErrClosed
	}
	if want := frame.Size(dst); want > b.left {
		return fmt.Errorf("%w: %d bytes asked for with %d left of the frame", transport.ErrFrame, want, b.left)
	}
	for _, p := range dst {
		for len(p) > 0 {
			n, err := b.read(p)
			p = p[n:]
			b.left -= int64(n)
			if err == io.EOF {
				return io.ErrUnexpectedEOF
			}
			if err != nil {
				return err
			}
		}
	}
	return b.settle()
}

// read waits for bytes and moves some into p, which is not empty. It returns
// io.EOF when the peer has ended and nothing is left.
func (b *inbox) read(p []byte) (int, error) {
	for {
		if err := b.stopped(); err != nil {
			return 0, err
		}
		ended := b.end() // before the ring: what came before the end is there
		n, err := b.from.Read(p[:min(piece, len(p))])
		switch {
		case err != nil:
			return 0, err
		case n > 0:
			return n, b.free(n)
		case ended != nil:
			return 0, ended
		}
		if err := b.settle(); err != nil {
			return 0, err
		}
		b.wait()
	}
}

// stopped is the reason to read no more.
func (b *inbox) stopped() error {
	switch {
	case b.conn.closed.Load():
		return transport.ErrClosed
	case b.deadline.expired():
		return os.ErrDeadlineExceeded
	}
	return nil
}

// end is why nothing more will come, if so.
func (b *inbox) end() error {
	if err := b.blamed.Load(); err != nil {
		return *err
	}
	if b.conn.ended.Load() || b.word != nil && b.word.Load()&writerEnded != 0 {
		return io.EOF
	}
	return nil
}

// free gives the room of n bytes back to the peer.
func (b *inbox) free(n int) error {
	if err := b.from.Publish(); err != nil {
		return err
	}
	if b.conn.rings {
		b.conn.wake(b.word, writerSleeps)
		return nil
	}
	b.owed += n
	if b.owed < piece {
		return nil
	}
	return b.settle()
}

// settle tells a peer that takes tokens of the room that it has not heard of. What a
// deadline prevents the next call makes up for.
func (b *inbox) settle() error {
	if b.owed == 0 {
		return nil
	}
	err := b.conn.letters.leave(b.conn.letters.outbox, &b.deadline, b.bell)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		b.owed = 0
	}
	return err
}
