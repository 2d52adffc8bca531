package pipe

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
)

// nativeWriteOp is the write of a message with parts that are not inline, until all their transfers
// have ended. It is guarded by mu of the sender.
type nativeWriteOp struct {
	WriteOp
	out           *nativeWriter
	forms         *compressedForms
	parts         []writePart
	peerCancelled bool // the peer does not want it
}

// writePart is a payload or tensor of a nativeWriteOp that is not inline. It is guarded by
// nativeWriter.mu.
type writePart struct {
	state   partState
	index   int
	pieces  [][]byte // of the tensor with the index and those that are joined to it, nil if none is
	id      uint64
	link    *pipeChannel // nil for a payload
	channel channel.Channel
	eager   bool // channel is a lane of the bulk connection, and credit is reserved
}

type partState int

const (
	partAwaitsTarget partState = iota // the receiver has to choose the device
	partTransferring                  // a channel is sending it
	partLost                          // its connection has failed, and the pipe is about to fail too
	partEnded
)

// transferID returns the id of the transfer of one part: the payload or tensor with this index of
// the message with this number. Both directions of a channel share the ids, so the highest bit is
// set if the server sends.
func transferID(serverSends bool, number uint64, index int) uint64 {
	id := native.TransferID(number, uint16(index))
	if serverSends {
		id |= 1 << 63
	}
	return id
}

// payloadLane is the lane of the bulk mover that carries payloads.
const payloadLane = 0

// start makes the channels send all parts except the tensors whose target device the receiver
// chooses; resolve sends those later. If the message has a deadline, start also starts the timer
// that cancels the operation then. The caller holds nativeWriter.mu.
func (op *nativeWriteOp) start() {
	for k := range op.parts {
		part := &op.parts[k]
		if part.state == partTransferring {
			b := device.Bytes(op.msg.Payloads[part.index].Data)
			if form := op.forms.payload(part.index); form != nil {
				b = formBuffer(form, b)
			}
			op.send(k, b)
		} else if target := op.msg.Tensors[part.index].TargetDevice; !target.IsZero() {
			op.sendTensor(k, target)
		}
	}
	op.expireAt(op.msg.Deadline)
}

// sendTensor makes the channel to the device target send the tensor of part k, whose memory the
// channel uses until partDone. There must be such a channel. The caller holds nativeWriter.mu.
func (op *nativeWriteOp) sendTensor(k int, target device.Device) {
	part := &op.parts[k]
	b := op.msg.Tensors[part.index].Buffer
	source := b.Device()
	if form := op.forms.tensor(part.index); form != nil {
		b = formBuffer(form, b)
	}
	tensors := 1
	if part.pieces != nil {
		tensors, b, part.pieces = len(part.pieces), device.Host(part.pieces...), nil // each tensor is one piece
	}
	part.link = op.out.pipe.channelFor(source, target, b.Len())
	part.state, part.channel = partTransferring, part.link.channel
	part.link.sent.addMany(Traffic{uint64(tensors), uint64(b.Len())})
	op.send(k, b)
}

func (op *nativeWriteOp) send(k int, b device.Buffer) {
	part := &op.parts[k]
	done := func(err error) { op.partDone(k, err) }
	if !part.eager {
		part.channel.Send(part.id, b, done)
		return
	}
	mover := op.out.pipe.mover
	lane, _ := mover.LaneOf(part.channel)
	mover.SendEager(lane, part.id, b, done)
}

// resolve makes the channels send the tensors whose devices the receiver chooses, in order, to the
// devices in chosen. If the number of devices is wrong, or no channel reaches one, the error
// matches ErrProtocol; earlier tensors may have been passed to their channels then. The caller
// holds nativeWriter.mu.
func (op *nativeWriteOp) resolve(chosen []device.Device) error {
	for k := range op.parts {
		part := &op.parts[k]
		if part.state != partAwaitsTarget {
			continue
		}
		if len(chosen) == 0 {
			return protocolError("too few devices for message %d", op.number)
		}
		if _, err := op.out.pipe.findChannel(op.msg.Tensors[part.index].Buffer.Device(), chosen[0]); err != nil {
			return protocolError("device for message %d: %w", op.number, err)
		}
		op.sendTensor(k, chosen[0])
		chosen = chosen[1:]
	}
	if len(chosen) > 0 {
		return protocolError("%d devices too many for message %d", len(chosen), op.number)
	}
	return nil
}

// partDone records that a channel has sent part k, or has failed with err, and no longer uses the
// part's memory. If the channel itself has failed, partDone aborts the message. If err means that
// the peer is gone or this end has closed, the operation ends later, when stopWriting fails it. An
// error has no effect once the operation has an error or the peer has cancelled the message.
// partDone locks nativeWriter.mu.
func (op *nativeWriteOp) partDone(k int, err error) {
	op.out.mu.Lock()
	defer op.out.mu.Unlock()
	part := &op.parts[k]
	if err != nil && op.err == nil && !op.peerCancelled {
		if err = classify(err); isPeerGone(err) || errors.Is(err, ErrClosed) {
			part.state = partLost
			return
		}
		conn := "bulk"
		if part.link != nil {
			conn = "channel " + part.link.name
		}
		op.abort(op.out.pipe.errorFor("write", conn, err))
	}
	op.endPart(k)
	op.completeIfDone()
}

func (op *nativeWriteOp) endPart(k int) {
	if op.parts[k].state != partEnded {
		op.parts[k].state = partEnded
		op.pending--
	}
}

// abort makes err the error of the operation, unless it has one, aborts its transfers, and sends
// the peer an ABORT frame with err as the reason. The operation is done once the channels have
// released their memory. The caller holds nativeWriter.mu.
func (op *nativeWriteOp) abort(err error) {
	op.out.pipe.control.send(&native.Control{Kind: native.Abort, Number: op.number, Text: closeReason(err)})
	op.fail(err)
}

// fail sets the error of the operation to err, unless it has one, and aborts its transfers with
// err. The operation is done once the channels have released their memory, which may be before fail
// returns. The caller holds nativeWriter.mu.
func (op *nativeWriteOp) fail(err error) {
	if op.err == nil {
		op.err = err
	}
	op.abortParts(err)
}

// abortParts ends the parts that no channel is sending, aborts the transfers of the others with
// cause, and completes the operation if no transfer is left. The caller holds nativeWriter.mu.
func (op *nativeWriteOp) abortParts(cause error) {
	for k := range op.parts {
		switch part := &op.parts[k]; part.state {
		case partTransferring:
			part.channel.Abort(part.id, cause)
		default:
			op.endPart(k)
		}
	}
	op.completeIfDone()
}

// completeIfDone completes the operation if all its parts have ended, and otherwise does nothing.
// It releases the message, its compressed forms and its share of the budgets, counts a message
// without an error as sent, and wakes the callers that wait for the operation. If the peer has
// cancelled the message the operation has no error. The caller holds nativeWriter.mu.
func (op *nativeWriteOp) completeIfDone() {
	if op.pending > 0 || op.state == opDone {
		return
	}
	if op.peerCancelled {
		op.err = nil
	}
	if op.err == nil {
		op.out.traffic.add(op.data)
	}
	op.forms.release()
	op.msg, op.forms = nil, nil
	delete(op.out.ops, op.number)
	op.complete()
	op.out.signalIdle()
}

// cancelLocked implements canceler: it makes an error that matches ErrCancelled and cause the error
// of the operation, aborts its transfers and sends the peer an ABORT frame. It does nothing if the
// operation has an error already or the peer has cancelled the message. The caller holds
// nativeWriter.mu.
func (op *nativeWriteOp) cancelLocked(cause error) {
	if op.err == nil && !op.peerCancelled {
		op.abort(op.out.pipe.errorFor("write", "", fmt.Errorf("%w: %w", ErrCancelled, cause)))
	}
}

// borrowedWrite is the operation of a message whose remaining bytes are written from its own
// memory, see borrowFrom. It is started while the run loop writes it. It is guarded by mu of the
// sender.
type borrowedWrite struct {
	WriteOp
	out      *nativeWriter
	pieces   [][]byte
	block    *block
	recalled bool
}

// cancelLocked implements canceler: it gives the message's memory back early. The message is still
// sent, from a copy of the remaining bytes, so the operation ends without an error and the argument
// is not used. If the run loop is writing the block, it makes the copy a moment later. The caller
// holds mu of the sender.
func (l *borrowedWrite) cancelLocked(error) {
	switch {
	case l.recalled:
	case l.state == opStarted:
		l.recalled = true
		_ = l.out.stream.SetWriteDeadline(time.Unix(1, 0)) // if that fails, so does Write
	default:
		l.block.copyBorrowed()
	}
}

// block is a queue entry of the run loop: encoded messages that are written together, or the
// remaining bytes of one message, part of which may be borrowed from the message's memory.
type block struct {
	data     []byte
	borrowed *borrowedWrite // follows data; nil if all bytes are in data
	share    budgetShare
}

// size returns the number of bytes of b.
func (b *block) size() int {
	n := len(b.data)
	if b.borrowed != nil {
		for _, p := range b.borrowed.pieces {
			n += len(p)
		}
	}
	return n
}

// appendPieces appends the bytes of b to pieces, without copying them.
func (b *block) appendPieces(pieces net.Buffers) net.Buffers {
	pieces = append(pieces, b.data)
	if b.borrowed != nil {
		pieces = append(pieces, b.borrowed.pieces...)
	}
	return pieces
}

// skip removes the first n bytes of b, which must have as many.
func (b *block) skip(n int) {
	k := min(n, len(b.data))
	b.data = append(b.data[:0], b.data[k:]...)
	if n > k {
		b.borrowed.pieces = skipBytes(b.borrowed.pieces, n-k)
	}
}

// copyBorrowed copies the bytes that b borrows, and ends their operation. The caller holds mu of the sender.
func (b *block) copyBorrowed() {
	b.data = appendAll(b.data, b.borrowed.pieces)
	b.endBorrow(nil)
}

// endBorrow ends the operation of the bytes that b borrows, if there are any, with err; b then has none.
// The caller holds mu of the sender.
func (b *block) endBorrow(err error) {
	if b.borrowed != nil {
		b.borrowed.err = err
		b.borrowed.complete()
		b.borrowed = nil
	}
}

// appendAll appends copies of all pieces to data and returns the extended slice.
func appendAll(data []byte, pieces [][]byte) []byte {
	for _, p := range pieces {
		data = append(data, p...)
	}
	return data
}

// skipBytes returns pieces without their first n bytes; there must be at least n. The result is a
// part of the slice pieces and shares its bytes. If the cut is within a piece, skipBytes shortens
// that element of pieces.
func skipBytes(pieces [][]byte, n int) [][]byte {
	for len(pieces) > 0 && n >= len(pieces[0]) {
		n -= len(pieces[0])
		pieces = pieces[1:]
	}
	if n > 0 {
		pieces[0] = pieces[0][n:]
	}
	return pieces
}

// handleTargets acts on the peer's TARGETS frame c: it sends the tensors whose devices the receiver
// chooses to the devices in c. It ignores a frame for a message that was aborted or has no
// transfers under way. If the message was not sent, or the devices do not fit it, the error matches
// ErrProtocol. It locks mu.
func (o *nativeWriter) handleTargets(c *native.Control) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	op := o.ops[c.Number]
	if op == nil && c.Number < o.count {
		return nil
	}
	if op == nil {
		return protocolError("devices for message %d, which was not sent", c.Number)
	}
	if op.err != nil || op.peerCancelled {
		return nil // aborted, and a channel has not released it yet
	}
	return op.resolve(c.Devices)
}

// handleCancel acts on the peer's CANCEL frame for the message with this number: it aborts the
// message's transfers, and the write completes without an error. It ignores a frame for a message
// without transfers under way. It locks mu.
func (o *nativeWriter) handleCancel(number uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op := o.ops[number]; op != nil {
		op.peerCancelled = true
		op.abortParts(errPeerCancelled)
	}
}

// cancelAll aborts all transfers under way, because the peer closes and does not receive them.
// Their writes complete without an error. It locks mu.
func (o *nativeWriter) cancelAll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range o.ops {
		op.peerCancelled = true
		op.abortParts(errPeerCancelled)
	}
}

// errPeerCancelled is the error given to channels for transfers that the peer has cancelled.
var errPeerCancelled = errors.New("the peer does not want it")
