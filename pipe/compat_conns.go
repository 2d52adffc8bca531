package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// namedConn is a connection of a pipe with its name in errors.
type namedConn struct {
	transport.Conn
	name string
}

// frameStep bounds by how much the memory for a frame exceeds the bytes that were received,
// so that a peer that claims a large frame and sends little causes no large allocation.
const frameStep = 64 << 10

// readFrame reads the next frame of c and returns its body. The body lies in the memory of buf,
// which readFrame overwrites, or in new memory if the capacity of buf is too small. held is charged
// for the memory before that is allocated; held may be nil. On failure readFrame returns nil and
// one of these errors: for a frame of more than limit bytes one that matches ErrProtocol and
// ErrLimit, if the peer is evicted one that matches ErrLimit, and otherwise the error of c.
func readFrame(c transport.Conn, buf []byte, limit int, held *charge) ([]byte, error) {
	size, err := c.NextFrame()
	if err != nil {
		return nil, err
	}
	if size > int64(limit) {
		return nil, protocolError("%w", limitError("frame", uint64(size), uint64(limit)))
	}
	return readBody(c, buf, int(size), held)
}

// readBody reads and returns the body of the frame whose header c.NextFrame has just returned. size
// is the length of the body in bytes. The body lies in the memory of buf, or in new memory if the
// capacity of buf is too small. held is charged for the memory before that is allocated; held may
// be nil. The error matches ErrLimit if the peer is evicted; otherwise it is the error of c.
func readBody(c transport.Conn, buf []byte, size int, held *charge) ([]byte, error) {
	buf = buf[:0]
	for len(buf) < size {
		step := min(size-len(buf), max(frameStep, len(buf), cap(buf)-len(buf)))
		start := len(buf)
		if err := held.grow(max(start+step, cap(buf))); err != nil {
			return nil, err
		}
		if cap(buf) < start+step {
			buf = append(make([]byte, 0, start+step), buf...)
		}
		buf = buf[:start+step]
		if err := c.ReadBody(buf[start:]); err != nil {
			return nil, err
		}
	}
	return buf, nil
}

// replyConn is the reply connection. Its writing half may be ended while a reply is being
// written: the end then follows the reply, as a partial reply would look like a lost peer.
type replyConn struct {
	namedConn

	mu      sync.Mutex
	writing bool
	ended   bool
}

// write sends one reply and returns after it has been sent. The error is that of the connection. If
// endWrites was called before, write sends nothing and returns ErrClosed. If endWrites is called
// during write, write ends the writing half before it returns. Calls of write must not overlap.
func (r *replyConn) write(reply []byte) error {
	r.mu.Lock()
	if r.ended {
		r.mu.Unlock()
		return ErrClosed
	}
	r.writing = true
	r.mu.Unlock()
	err := r.WriteFrames(transport.Frame{reply})
	r.mu.Lock()
	r.writing = false
	ended := r.ended
	r.mu.Unlock()
	if ended {
		r.CloseWrite()
	}
	return err
}

// endWrites ends the writing half of the connection, after which write sends nothing. If a reply is
// being written, endWrites returns at once, and the writing half ends after that reply.
func (r *replyConn) endWrites() {
	r.mu.Lock()
	r.ended = true
	writing := r.writing
	r.mu.Unlock()
	if !writing {
		r.CloseWrite()
	}
}

// compatEncoder encodes messages as frames of the descriptor connection. It reuses its
// memory.
type compatEncoder struct {
	desc   wire.Descriptor
	buf    []byte
	parts  [][]byte
	frames []transport.Frame
}

// encode returns the frames of op's message for the descriptor connection: one for the descriptor,
// and one for each payload. The frames refer to memory of the message and of e, without a copy.
// They are valid until the next call of a method of e.
func (e *compatEncoder) encode(op *compatWriteOp) []transport.Frame {
	m := op.msg
	e.parts = append(e.parts[:0], e.encodeDescriptor(m))
	for _, p := range m.Payloads {
		e.parts = append(e.parts, p.Data)
	}
	e.frames = e.frames[:0]
	for i := range e.parts {
		e.frames = append(e.frames, e.parts[i:i+1])
	}
	return e.frames
}

// encodeDescriptor returns the encoded descriptor of m. The result lies in memory of e and is valid
// until the next call of encode or encodeDescriptor. e keeps references to the metadata of m until
// clear is called.
func (e *compatEncoder) encodeDescriptor(m *Message) []byte {
	e.desc.Metadata = m.Metadata
	e.desc.Payloads, e.desc.Tensors = e.desc.Payloads[:0], e.desc.Tensors[:0]
	for _, p := range m.Payloads {
		e.desc.Payloads = append(e.desc.Payloads, wire.PayloadDescriptor{Length: uint64(len(p.Data)), Metadata: p.Metadata})
	}
	for _, t := range m.Tensors {
		e.desc.Tensors = append(e.desc.Tensors, wire.TensorDescriptor{
			Length:       uint64(t.Buffer.Len()),
			SourceDevice: t.Buffer.Device(),
			TargetDevice: t.TargetDevice,
			Metadata:     t.Metadata,
		})
	}
	e.buf = e.desc.Append(e.buf[:0])
	return e.buf
}

// clear drops all references that e has to memory of a message. The frames that encode has returned
// must not be used afterwards.
func (e *compatEncoder) clear() {
	e.desc.DropMetadata()
	clear(e.parts)
	clear(e.frames)
}

// compatControl is the control connection, which two ends of this library have in addition to
// TensorPipe's connections. It carries confirmations of read messages and the close frame. With a
// C++ peer Conn is nil, and nothing is sent or received.
type compatControl struct {
	pipe *compat
	namedConn
	closeFrames
}

// init sets up c as the control connection of p on conn. If conn is nil, because a C++ peer has no
// control connection, init closes c.ended and c.wrote, as if both directions had ended.
func (c *compatControl) init(p *compat, conn transport.Conn) {
	c.pipe = p
	c.namedConn = namedConn{conn, "control"}
	c.closeFrames.init(p.Pipe)
	if conn == nil {
		c.abandon()
	}
}

// exists reports whether there is a control connection.
func (c *compatControl) exists() bool { return c.Conn != nil }

// run reads and handles the peer's control frames until the peer's close frame, the end of the
// connection or an error. Then it queues the close frame of this end, closes c.ended, and blocks
// until the peer ends the connection or sends another frame. If the peer has broken the protocol,
// run fails the pipe. It drops other errors, because the other connections end too and report why.
// Without a control connection run returns at once.
func (c *compatControl) run() {
	if !c.exists() {
		return
	}
	var buf []byte
	for {
		frame, err := readFrame(c, buf, wire.MaxControl, nil)
		if err == nil {
			buf = frame
			err = c.handle(frame)
		}
		if err = classify(err); errors.Is(err, ErrProtocol) {
			c.pipe.fail(c.pipe.errorFor("connection", c.name, err))
		}
		if err != nil {
			break
		}
	}
	c.pipe.sendClose(cmp.Or(c.pipe.Err(), ErrClosed)) // the peer requests nothing any more
	close(c.ended)
	c.NextFrame() // reads the end: closing with unread bytes, as of TLS, would discard frames being sent
}

// handle decodes and handles one control frame of the peer: a request to confirm a message, a
// confirmation, or the close frame. It returns io.EOF for the close frame, and an error that
// matches ErrProtocol for an invalid frame or too many requests. Otherwise, also for an unknown
// kind, it returns nil. It does not keep frame.
func (c *compatControl) handle(frame []byte) error {
	m, err := wire.DecodeControl(frame)
	if err != nil {
		return protocolError("%w", err)
	}
	switch m.Kind {
	case wire.WantRead:
		return c.handleRequest(m.Number)
	case wire.HaveRead:
		c.handleConfirmation(m.Number)
	case wire.Goodbye:
		c.receiveClose(m.Reason)
		return io.EOF
	}
	return nil
}

// write is the loop that sends queued control frames, and blocks while there are none. After the
// close frame it ends the writing half of the connection. It returns then, or when a frame cannot
// be sent, and closes c.wrote. Without a control connection write returns at once.
func (c *compatControl) write() {
	if !c.exists() {
		return
	}
	defer close(c.wrote)
	var buf []byte
	for {
		m, ok := c.take()
		if !ok {
			<-c.wake
			continue
		}
		buf = m.Append(buf[:0])
		if c.WriteFrames(transport.Frame{buf}) != nil {
			return
		}
		if m.Kind == wire.Goodbye {
			c.CloseWrite()
			return
		}
	}
}

// take returns the next control frame to send, and whether there is one. Confirmations come first,
// then requests, and last the close frame. take holds c.closeMu throughout. Otherwise a close frame
// that is queued after take has looked for confirmations could be sent before confirmations that
// must precede it.
func (c *compatControl) take() (wire.Control, bool) {
	c.closeMu.Lock()
	defer c.closeMu.Unlock()
	if n, ok := c.nextConfirmation(); ok {
		return wire.Control{Kind: wire.HaveRead, Number: n}, true
	}
	if n, ok := c.nextQuery(); ok {
		return wire.Control{Kind: wire.WantRead, Number: n}, true
	}
	if c.ownReason != nil {
		return wire.Control{Kind: wire.Goodbye, Reason: *c.ownReason}, true
	}
	return wire.Control{}, false
}

// explainEnd returns err with the reason of the peer's close frame added, if err means that the
// peer has closed or is lost. It returns any other error unchanged. If there is a control
// connection, it waits for the close frame, at most for closeFrameTimeout or until the pipe fails.
// If no reason arrives, err stays as it is, with one exception: if the control connection has ended
// without a close frame, ErrPeerClosed becomes ErrPeerLost, since TCP connections also end in an
// orderly way when a process is killed. If err matches ErrPeerLost, explainEnd first queues a close
// frame for the peer.
func (c *compatControl) explainEnd(err error) error {
	if !isPeerGone(err) {
		return err
	}
	if errors.Is(err, ErrPeerLost) {
		c.pipe.sendClose(err) // the peer may also wait for a close frame
	}
	t := time.NewTimer(closeFrameTimeout)
	defer t.Stop()
	select {
	case <-c.ended:
	case <-c.pipe.down:
	case <-t.C:
	}
	ended := isClosed(c.ended) // also if the pipe failed for the same reason
	peerClosed, reason := c.peerClose()
	if c.exists() && ended && !peerClosed && errors.Is(err, ErrPeerClosed) {
		return fmt.Errorf("%w: it ended without a close frame", ErrPeerLost)
	}
	return withReason(err, reason)
}

func (p *compat) awaitRead(ctx context.Context, number uint64) error {
	c := &p.control
	confirmed, err := c.await(ctx, number, c.ended, c.pipe.down)
	switch {
	case confirmed:
		return nil
	case err != nil:
		return c.pipe.unconfirmed("", err)
	case c.pipe.Err() != nil:
		return c.pipe.unconfirmed("", c.pipe.Err())
	case c.pipe.isClosing():
		return c.pipe.unconfirmed("", ErrClosed)
	default:
		return c.pipe.unconfirmed(c.name, c.explainEnd(ErrPeerClosed))
	}
}
