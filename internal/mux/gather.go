package mux

import (
	"errors"
	"net"
	"os"

	"github.com/tensorpipe-go/tensorpipe/internal/deadline"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

var _ transport.Gatherer = (*polledStream)(nil)

// WriteBuffers implements [transport.Gatherer]: it writes pieces straight from their memory, and blocks
// while the window or the connection has no room. Other streams have their turn after each 256 KiB. A
// write deadline ends it after a whole message, of which the connection may have a copy to write.
// Errors are those of Write.
func (s *polledStream) WriteBuffers(pieces *net.Buffers) (written int64, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.finished.Load() {
		return 0, transport.ErrClosed
	}
	defer s.expectReply()
	left := 0
	for _, p := range *pieces {
		left += len(p)
	}
	for left > 0 {
		var n int
		if n, err = s.claim(min(left, maxBody), s.writeDeadline.Done()); err != nil {
			break
		}
		body := s.gather(*pieces, 0, n)
		h := streamMessage(data, s.StreamID(), uint32(n))
		ok := s.link.out.writeInPlace(s.link.watch.conn, &h, body, &s.writeDeadline)
		clear(body)
		if !ok {
			s.sendWindow.refund(n)
			err = os.ErrDeadlineExceeded
			break
		}
		left -= n
		written += int64(n)
		removeFirst(pieces, n)
	}
	if err != nil && s.finished.Load() {
		return written, transport.ErrClosed
	}
	return written, s.cause(err)
}

// removeFirst removes the first n bytes of pieces, of which there must be as many.
func removeFirst(pieces *net.Buffers, n int) {
	for len(*pieces) > 0 && n >= len((*pieces)[0]) {
		n -= len((*pieces)[0])
		(*pieces)[0] = nil
		*pieces = (*pieces)[1:]
	}
	if n > 0 {
		(*pieces)[0] = (*pieces)[0][n:]
	}
}

// inPlaceWrite is the write of a message from the memory of the caller, which blocks. A deadline of the
// stream interrupts it by one of the connection. It is guarded by mu of the queue.
type inPlaceWrite struct {
	deadline    *deadline.Deadline // of the stream; nil while there is no such write
	interrupted bool               // the deadline of the connection was set for it
}

// writeInPlace writes the message of h and the pieces of body to conn, the connection, from their memory,
// after all others, and blocks until it has accepted them; then it writes messages that others have
// queued meanwhile as far as that does not block. If d passes before the connection has accepted a
// byte, it returns false. If d passes later, a goroutine writes the rest from a copy. If the queue is
// closed it discards the message and returns true.
func (o *writeQueue) writeInPlace(conn transport.Gatherer, h *header, body [][]byte, d *deadline.Deadline) bool {
	expired := d.Done()
	o.mu.Lock()
	for o.writing {
		idle := o.whenIdle()
		o.mu.Unlock()
		select {
		case <-idle:
		case <-expired:
			return false
		}
		o.mu.Lock()
	}
	if o.closed || d.Passed() {
		defer o.mu.Unlock()
		return o.closed
	}
	o.writing, o.inPlace.deadline = true, d
	o.mu.Unlock()

	o.head = *h
	o.pieces = append(append(o.pieces[:0], o.head[:]), body...)
	pieces := net.Buffers(o.pieces)
	n, err := conn.WriteBuffers(&pieces)
	interrupted := o.endInPlace() && errors.Is(err, os.ErrDeadlineExceeded)
	var rest []byte
	if interrupted && n > 0 {
		rest = appendAll(nil, pieces)
	}
	clear(o.pieces)
	switch {
	case err != nil && !interrupted:
		o.fail(nil, err)
	case len(rest) > 0:
		o.charge(len(rest))
		o.writers.Go(func() { o.writeLoop(rest, 0) })
	default:
		o.writeNow()
	}
	return !interrupted || n > 0
}

// endInPlace ends the write of writeInPlace, and reports whether a deadline of the stream may have
// interrupted it. The connection then has the deadline of limit again. It acquires mu.
func (o *writeQueue) endInPlace() (interrupted bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	interrupted = o.inPlace.interrupted
	o.inPlace = inPlaceWrite{}
	if interrupted {
		_ = o.conn.SetWriteDeadline(o.limitTime) // if that fails, so do later writes
	}
	return interrupted
}

// interrupt ends the write in place of the stream with the deadline d, if there is one and d has passed.
// It acquires mu.
func (o *writeQueue) interrupt(d *deadline.Deadline) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.inPlace.deadline == d && d.Passed() && !o.inPlace.interrupted {
		o.inPlace.interrupted = true
		_ = o.conn.SetWriteDeadline(past) // if that fails, so does the write
	}
}
