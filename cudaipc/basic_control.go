package cudaipc

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/framed"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Kinds of frames on the control connection in the native dialect. Each is followed by the id of a
// transfer in 8 bytes. In the compatible dialect the only frame is empty and announces a chunk.
const (
	frameWanted    = 1 // the receiver has memory
	frameWithdrawn = 2 // the receiver does not want a tensor that was not sent
	frameStaged    = 3 // the sender has begun the transfer of the next chunk in the host channel

	controlFrameSize = 9
)

// maxWanted bounds the tensors that a peer wants and that are not sent yet.
const maxWanted = 1 << 17

// stagedChunk is a chunk that the peer has staged: the next one of op. id is that of the transfer of
// the host channel.
type stagedChunk struct {
	op *basicOp
	id uint64
}

// controlFrames are frames to be written in one batch.
type controlFrames []transport.Frame

func (f *controlFrames) add(kind byte, id uint64) {
	text := binary.LittleEndian.AppendUint64([]byte{kind}, id)
	*f = append(*f, transport.Frame{text})
}

// firstEmpty is the number from which the host channel's transfers of empty tensors count. Those of
// chunks count from 0 and do not reach it.
const firstEmpty uint64 = 1 << 62

// hostID returns the id in the host channel of the transfer number n: a chunk that the end with the
// given role sends, or an empty tensor of that end.
func (e *basicEnd) hostID(n uint64, sender channel.Role) uint64 {
	if !e.link.Native {
		return n
	}
	return n<<1 | uint64(sender)
}

// readControl reads the control connection until it ends.
func (e *basicEnd) readControl() {
	defer close(e.readEnd)
	read := e.readNative
	if !e.link.Native {
		read = e.readCompatible
	}
	if err := read(); errIsProtocol(err) {
		e.lifecycle.Fail(e.wrap(err))
	} else {
		e.hostBroken(e.wrap(err))
	}
}

// readGrace is the time within which the connection is expected to report why it cannot be written to.
const readGrace = 100 * time.Millisecond

// writeFailed ends the channel because the control connection cannot be written to. If the peer has
// closed it, the error of reading is the better one, and comes soon.
func (e *basicEnd) writeFailed(err error) {
	timer := time.NewTimer(readGrace)
	defer timer.Stop()
	select {
	case <-e.readEnd:
	case <-timer.C:
	case <-e.lifecycle.Context().Done():
	}
	e.hostBroken(e.wrap(err))
}

// hostBroken ends the channel with err, once the chunks that the peer has staged are received.
func (e *basicEnd) hostBroken(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ending = cmp.Or(e.ending, err)
	e.wake()
}

// readCompatible reads announcements. It returns the error of the connection, or one that matches
// channel.ErrProtocol.
func (e *basicEnd) readCompatible() error {
	for {
		n, err := e.control.NextFrame()
		if err != nil {
			return err
		}
		if n != 0 {
			return fmt.Errorf("%w: an announcement of %d bytes", channel.ErrProtocol, n)
		}
		e.mu.Lock()
		e.announced++
		e.wake()
		e.mu.Unlock()
	}
}

// readNative reads the frames of the native dialect. It returns the error of the connection, or one
// that matches channel.ErrProtocol.
func (e *basicEnd) readNative() error {
	frames := framed.Reader{Conn: e.control, Limit: controlFrameSize}
	for {
		text, err := frames.Next()
		if err != nil {
			return err
		}
		if len(text) != controlFrameSize {
			return fmt.Errorf("%w: a frame of %d bytes, want %d", channel.ErrProtocol, len(text), controlFrameSize)
		}
		if err := e.handle(text[0], binary.LittleEndian.Uint64(text[1:])); err != nil {
			return err
		}
	}
}

// handle handles a frame of the native dialect. The error matches channel.ErrProtocol.
func (e *basicEnd) handle(kind byte, id uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch kind {
	case frameWanted:
		return e.handleWanted(id)
	case frameWithdrawn:
		delete(e.wanted, id)
		return nil
	case frameStaged:
		return e.handleStaged(id)
	}
	return fmt.Errorf("%w: a frame of kind %d", channel.ErrProtocol, kind)
}

// handleWanted handles that the peer has memory for the tensor id. The caller holds mu.
func (e *basicEnd) handleWanted(id uint64) error {
	op := e.sends[id]
	switch {
	case e.wanted[id] || op != nil && op.matched:
		return fmt.Errorf("%w: tensor %d is wanted twice", channel.ErrProtocol, id)
	case op == nil && len(e.wanted) == maxWanted:
		return fmt.Errorf("%w: more than %d tensors are wanted", channel.ErrProtocol, maxWanted)
	case op == nil:
		e.wanted[id] = true
		return nil
	}
	op.matched = true
	if op.usable {
		e.sendQueue.Push(op)
		e.wake()
	}
	return nil
}

// handleStaged handles that the peer has staged the next chunk of the tensor id. It ignores a tensor
// that this end has aborted. The caller holds mu.
func (e *basicEnd) handleStaged(id uint64) error {
	hostID := e.hostID(e.receivedChunks, 1-e.role)
	e.receivedChunks++
	op := e.recvs[id]
	if op == nil {
		return nil
	}
	if !op.matched || op.staged == op.length {
		return fmt.Errorf("%w: tensor %d has more bytes than were wanted", channel.ErrProtocol, id)
	}
	op.staged += min(e.chunkSize, op.length-op.staged)
	e.staged.Push(stagedChunk{op: op, id: hostID})
	e.wake()
	return nil
}
