package shm

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/internal/deadline"
	"github.com/tensorpipe-go/tensorpipe/internal/frame"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ring"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// headerSize is the length in bytes of the header of a frame.
const headerSize = 4

// outbox is the writing half of a connection. The ring that it writes to is memory of the peer (the
// peer's inbox).
type outbox struct {
	waiter
	conn     *conn
	producer *ring.Producer
	guarded  bool  // the peer can take the memory away
	reserved bool  // all pages of the memory are reserved
	written  int64 // bytes that were written before
	deadline deadline.Deadline

	mu             sync.Mutex // held by a write
	unpublished    int        // bytes that the peer cannot see yet
	incomplete     int64      // bytes that a write has left of a frame when it failed
	triggerPending bool       // bytes were published and no trigger was sent

	frames     []transport.Frame
	pieces     net.Buffers  // what remains of them
	sent       int          // bytes of pieces that were written
	framesFunc func() error // writeFramesUnguarded
	piecesFunc func() error // writePiecesUnguarded
	header     [headerSize]byte
	single     [1][]byte // the pieces of a Write
}

// ready reports whether a blocked write can go on because of the ring: there is space in it, or it
// is corrupt, so that the write returns an error. The caller calls it within guard.
func (o *outbox) ready() bool {
	n, err := o.producer.Free()
	return n > 0 || err != nil
}

func (o *outbox) writeFrames(frames []transport.Frame) error {
	if err := o.callError(); err != nil {
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
	err := o.guard(o.framesFunc)
	o.frames = nil
	return err
}

// guard calls f, which accesses the peer's memory, and returns its error. If the peer has truncated
// that memory, the access ends f, and the error matches segment.ErrFault. So f must release its
// locks with defer.
func (o *outbox) guard(f func() error) error {
	if o.guarded {
		return o.conn.peerInbox.guard(f)
	}
	return f()
}

func (o *outbox) writeFramesUnguarded() error {
	for _, f := range o.frames {
		if err := o.writeFrame(f); err != nil {
			return err
		}
	}
	return o.publish()
}

// writeFrame writes the header and the parts of f to the ring. After an error incomplete is the
// number of bytes that it wrote. The error is that of write.
func (o *outbox) writeFrame(f transport.Frame) error {
	binary.LittleEndian.PutUint32(o.header[:], uint32(frame.Size(f)))
	n, err := o.write(o.header[:])
	written := int64(n)
	for _, part := range f {
		if err != nil {
			break
		}
		n, err = o.write(part)
		written += int64(n)
	}
	if err != nil {
		o.incomplete = written
	}
	return err
}

// writePieces writes pieces without a frame around them, blocks until all are in the ring, and
// publishes them. It removes the bytes written from pieces and returns their number, also if it
// fails. It keeps no reference to the memory of pieces. The error is that of callError, of reserve,
// of write or of publish, or matches segment.ErrFault; in the last case the bytes of the piece in
// progress are not counted. The caller holds mu.
func (o *outbox) writePieces(pieces *net.Buffers) (int, error) {
	if err := o.callError(); err != nil {
		return 0, err
	}
	if err := o.reserve(frame.Size(*pieces)); err != nil {
		return 0, err
	}
	o.pieces, o.sent = *pieces, 0
	err := o.guard(o.piecesFunc)
	*pieces, o.pieces = o.pieces, nil
	return o.sent, err
}

func (o *outbox) writePiecesUnguarded() error {
	var err error
	for len(o.pieces) > 0 {
		p := o.pieces[0]
		var n int
		n, err = o.write(p)
		o.sent += n
		if err != nil {
			o.pieces[0] = p[n:]
			break
		}
		o.pieces[0] = nil
		o.pieces = o.pieces[1:]
	}
	if publishErr := o.publish(); err == nil {
		err = publishErr
	}
	return err
}

// write copies all of p to the ring and returns how much it copied, less than len(p) only with an
// error. It blocks for space. It publishes the bytes whenever 64 KiB are unpublished or the ring is
// full; the last ones may stay unpublished, also with an error. The error is that of callError or
// publish, or means that the ring is corrupt. The caller holds mu and calls write within guard.
func (o *outbox) write(p []byte) (n int, err error) {
	for n < len(p) {
		if err := o.callError(); err != nil {
			return n, err
		}
		m, err := o.producer.Write(p[n:min(n+piece-o.unpublished, len(p))])
		if err != nil {
			return n, err
		}
		n += m
		o.unpublished += m
		if m == 0 || o.unpublished == piece {
			err = o.publish()
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

// reserve reserves all pages of the peer's inbox if a write of n more bytes may reach memory
// without pages. So a lack of memory is an error that leaves no part of a frame in the ring, and
// the next write tries again. If the bytes fit into the pages that exist, reserve only adds n to
// written; once all pages are reserved it does nothing. The error is that of reserveAll. The caller
// holds mu.
func (o *outbox) reserve(n int64) error {
	if o.reserved {
		return nil
	}
	if o.written+n > inboxReserved {
		err := o.conn.peerInbox.reserveAll()
		o.reserved = err == nil
		return err
	}
	o.written += n
	return nil
}

// callError returns why writes fail at once, even if there is space: ErrClosed after CloseWrite or
// Close, syscall.EPIPE if the peer is gone, or os.ErrDeadlineExceeded after the write deadline.
// Otherwise it returns nil.
func (o *outbox) callError() error {
	switch {
	case o.conn.writeClosed.Load():
		return transport.ErrClosed
	case o.conn.peerGone.Load():
		return syscall.EPIPE
	case o.deadline.Passed():
		return os.ErrDeadlineExceeded
	}
	return nil
}

// publish makes the bytes that were written to the ring visible to the peer and wakes its reader:
// by a doorbell if a reader of this package is blocked, or by a trigger for a C++ peer. It also
// sends a trigger that an earlier call has left pending. The error is that of sendTrigger; the
// bytes are visible even then. The caller holds mu.
func (o *outbox) publish() error {
	if o.unpublished > 0 {
		o.unpublished = 0
		if err := o.producer.Publish(); err != nil {
			return err
		}
		if o.conn.doorbells {
			o.conn.notifyIfBlocked(o.marker, readerBlocked)
			return nil
		}
		o.conn.reactor.expectReply()
		o.triggerPending = true
	}
	return o.sendTrigger(&o.deadline)
}

// sendTrigger sends a C++ peer the trigger for bytes that were published. It does nothing if none
// is pending. If it returns os.ErrDeadlineExceeded, because d has passed, the trigger stays
// pending, and the next call tries again. After success, and after any other error of
// peerReactor.send, none is pending. The caller holds mu, or is the last user of o.
func (o *outbox) sendTrigger(d *deadline.Deadline) error {
	if !o.triggerPending {
		return nil
	}
	err := o.conn.peerReactor.send(o.conn.peerReactor.inbox, d, o.wakeup)
	o.triggerPending = errors.Is(err, os.ErrDeadlineExceeded)
	return err
}

// closeWhenDrained is the goroutine of CloseWrite for a C++ peer. It sends a trigger that is
// pending, waits until drained reports true or the peer is gone, and then closes the writing half
// of the socket. Close ends the wait; then closeWhenDrained leaves the socket alone.
func (o *outbox) closeWhenDrained() {
	o.mu.Lock() // waits for the current write; no other can follow
	pending := o.triggerPending
	o.mu.Unlock()
	if pending {
		_ = o.sendTrigger(new(deadline.Deadline)) // fails if the peer's memory is gone, which ends the wait too
	}
	for !o.conn.unreachable() && !o.drained() {
		<-o.wakeup
	}
	if !o.conn.closed.Load() {
		_ = o.conn.socket.CloseWrite() // fails if the peer has closed before
	}
}

// drained reports whether the peer has read everything that it needs to read: all bytes of the
// ring, except those of a frame that was not written completely, of which the peer may not read
// even the beginning. It also returns true if the peer has corrupted or truncated the ring, because
// then it never will.
func (o *outbox) drained() bool {
	var free int
	err := o.guard(func() (err error) {
		free, err = o.producer.Free()
		return err
	})
	return err != nil || int64(free)+o.incomplete >= int64(o.conn.peerInbox.ring.Size())
}
