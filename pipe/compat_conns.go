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

// readFrame reads the next frame of c and returns its body. The body is in the memory of buf, which
// readFrame overwrites, or in new memory if buf is too small. held is charged for the memory before it
// is allocated; a nil held counts nothing. The error matches ErrProtocol and ErrLimit if the frame has
// more than limit bytes, and ErrLimit if the peer is evicted. Otherwise it is that of c.
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

// readBody reads and returns the body, of size bytes, of the frame whose header c.NextFrame has
// returned. It uses buf and held as readFrame does. The error matches ErrLimit if the peer is evicted;
// otherwise it is that of c.
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

// write sends one reply and returns when it has been sent. After endWrites it sends nothing and
// returns ErrClosed. Calls must not overlap.
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

// endWrites ends the writing half: at once or, if a reply is being written, after that. It does not
// wait.
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

// encode returns the frame of the descriptor and one frame for each payload of op's message. The
// frames refer to memory of the message and of e, and are valid until the next call of encode or
// clear.
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

// encodeDescriptor returns the encoded descriptor of m, in memory of e that is valid until the next
// call. e refers to the metadata of m until clear.
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

// clear drops all references to memory of the message. The frames that encode has returned must not
// be used afterwards.
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

// init sets up c. conn is nil with a C++ peer; both directions then count as ended.
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

// run handles the peer's frames until its close frame or the end of the connection, queues the
// close frame of this end, closes ended, and then waits until the peer has ended the connection. It
// fails the pipe if the peer has broken the protocol. It drops other errors: the other connections
// end too, and report why. Without a control connection it returns at once.
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

// handle handles a frame of the peer. It returns io.EOF for the close frame, and an error that
// matches ErrProtocol for an invalid frame.
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

// write sends queued frames until it has sent the close frame or sending fails, and closes
// wrote. Without a control connection it returns at once.
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

// take returns the next frame to send and true, or false if there is none. It holds closeMu throughout:
// a close frame that was queued between the checks would otherwise be sent before confirmations that
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

// explainEnd adds the reason of the peer's close frame to err, if err means that the peer is gone. It
// returns any other error unchanged. It waits for the close frame, for closeFrameTimeout at most.
// Without a close frame an orderly end becomes ErrPeerLost, since TCP connections also end in an
// orderly way when a process is killed.
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
