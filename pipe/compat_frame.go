package pipe

import (
	"sync"

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

// readFrame reads the next frame of c and returns its body, in the memory of buf, which it
// overwrites, or in new memory if buf is too small. A frame of more than limit bytes is an error
// that matches ErrProtocol and ErrLimit. held is charged for the memory before it is allocated; a
// nil held counts nothing.
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

// readBody reads the body, of size bytes, of the frame whose header NextFrame has returned. Memory
// and held are those of readFrame.
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
