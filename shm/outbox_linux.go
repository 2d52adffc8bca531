package shm

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/internal/ring"
	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// headerSize is the length of what precedes a frame.
const headerSize = 4

// outbox is the writing half of a connection.
type outbox struct {
	waiter
	conn     *conn
	to       *ring.Producer
	guarded  bool  // the peer can take the memory away
	complete bool  // the memory has all of its pages
	first    int64 // bytes put in while it had not
	deadline deadline

	mu     sync.Mutex // held by a writer
	handed bool       // to a stream
	hidden int        // bytes that the peer cannot see yet
	untold bool       // it can see bytes, and no token says so

	// Of the call under way.
	frames []transport.Frame
	pieces net.Buffers  // what is left of them
	sent   int          // bytes of pieces
	pass   func() error // is passFrames
	raw    func() error // is passPieces
	header [headerSize]byte
	whole  [1][]byte // the pieces of a Write
}

// ready reports whether there is room.
func (o *outbox) ready() bool {
	n, err := o.to.Free()
	return n > 0 || err != nil
}

func (o *outbox) writeFrames(frames []transport.Frame) error {
	if err := o.stopped(); err != nil {
		return err
	}
	total := int64(0)
	for _, f := range frames {
		n := frame.Size(f)
		if n > largestFrame {
			return &transport.FrameSizeError{Size: n, Largest: largestFrame}
		}
		total += headerSize + n
	}
	if err := o.reserve(total); err != nil {
		return err
	}
	o.frames = frames
	err := o.guard(o.pass)
	o.frames = nil
	return err
}

// guard runs f, which touches the memory of the peer, and that of the application.
func (o *outbox) guard(f func() error) error {
	if o.guarded {
		return o.conn.theirs.guard(f)
	}
	return f()
}

func (o *outbox) passFrames() error {
	for _, f := range o.frames {
		binary.LittleEndian.PutUint32(o.header[:], uint32(frame.Size(f)))
		if _, err := o.put(o.header[:]); err != nil {
			return err
		}
		for _, part := range f {
			if _, err := o.put(part); err != nil {
				return err
			}
		}
	}
	return o.show()
}

// writePieces writes bytes without a frame around them, consumes those that it
// moved, and returns how many they were. The peer has been told of them, also
// where it fails.
func (o *outbox) writePieces(pieces *net.Buffers) (int, error) {
	if err := o.stopped(); err != nil {
		return 0, err
	}
	if err := o.reserve(frame.Size(*pieces)); err != nil {
		return 0, err
	}
	o.pieces, o.sent = *pieces, 0
	err := o.guard(o.raw)
	*pieces, o.pieces = o.pieces, nil
	return o.sent, err
}

func (o *outbox) passPieces() error {
	err := o.putPieces()
	if showErr := o.show(); err == nil {
		err = showErr
	}
	return err
}

func (o *outbox) putPieces() error {
	for len(o.pieces) > 0 {
		p := o.pieces[0]
		n, err := o.put(p)
		o.sent += n
		if err != nil {
			o.pieces[0] = p[n:]
			return err
		}
		o.pieces[0] = nil
		o.pieces = o.pieces[1:]
	}
	return nil
}

// put moves all of p into the ring, and waits for room as needed. It returns how
// much it moved.
func (o *outbox) put(p []byte) (n int, err error) {
	for n < len(p) {
		if err := o.stopped(); err != nil {
			return n, err
		}
		m, err := o.to.Write(p[n:min(n+piece-o.hidden, len(p))])
		if err != nil {
			return n, err
		}
		n += m
		o.hidden += m
		if m == 0 || o.hidden == piece {
			err = o.show()
		}
		if err == nil && m == 0 {
			o.wait()
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// reserve has pages set aside before any of n bytes goes to where there may be none:
// a lack of them leaves no part of a frame behind, and the next call tries again.
func (o *outbox) reserve(n int64) error {
	if o.complete {
		return nil
	}
	if o.first+n > inboxBegin {
		err := o.conn.theirs.complete()
		o.complete = err == nil
		return err
	}
	o.first += n
	return nil
}

// stopped is the reason to write no more.
func (o *outbox) stopped() error {
	switch {
	case o.conn.finished.Load():
		return transport.ErrClosed
	case o.conn.gone.Load():
		return syscall.EPIPE
	case o.deadline.expired():
		return os.ErrDeadlineExceeded
	}
	return nil
}

// show tells the peer of the bytes in the ring.
func (o *outbox) show() error {
	if o.hidden > 0 {
		o.hidden = 0
		if err := o.to.Publish(); err != nil {
			return err
		}
		if o.conn.rings {
			o.conn.wake(o.word, readerSleeps)
			return nil
		}
		o.conn.reactor.hurry()
		o.untold = true
	}
	return o.tell(&o.deadline)
}

// tell leaves a token if one is due. What a deadline prevents the next call makes up
// for.
func (o *outbox) tell(d *deadline) error {
	if !o.untold {
		return nil
	}
	err := o.conn.letters.leave(o.conn.letters.inbox, d, o.bell)
	o.untold = errors.Is(err, os.ErrDeadlineExceeded)
	return err
}

// end tells a peer that rings that there will be no more, when the last writer
// has left.
func (o *outbox) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.conn.closed.Load() {
		step.Here()
		o.word.Or(writerEnded)
		o.conn.ringDoorbell()
	}
}

// linger ends the socket when the peer has taken all that was written. Writers find
// out at once that they are too late.
func (o *outbox) linger() {
	o.lastWriter()
	_ = o.tell(new(deadline)) // it fails where the peer's memory is gone, and so is the wait
	for !o.conn.alone() && !o.taken() {
		<-o.bell
	}
	if !o.conn.closed.Load() {
		_ = o.conn.socket.CloseWrite() // it fails where the peer was faster
	}
}

// lastWriter waits until the last writer has left.
func (o *outbox) lastWriter() {
	o.mu.Lock()
	defer o.mu.Unlock()
}

// taken reports whether the peer has all that was written, or never will.
func (o *outbox) taken() bool {
	var free int
	err := o.guard(func() (err error) {
		free, err = o.to.Free()
		return err
	})
	return err != nil || free == o.conn.theirs.ring.Size()
}
