package pipe

import (
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
)

// nativeOp is a message of which parts wait for the peer's memory. It is guarded
// by nativeOutbox.mu.
type nativeOp struct {
	watchedOp
	msg    *Message
	number uint64
	data   int // bytes of payloads and tensors
	room   share
	packed *packing

	parts    []nativePart
	left     int  // parts that are not through
	unwanted bool // the peer gave it up
}

// nativePart is a payload or tensor that did not travel inside its message.
type nativePart struct {
	state   partState
	place   int
	id      uint64
	lane    *lane // nil for a payload
	channel channel.Channel
}

type partState int

const (
	partAsks  partState = iota // for the device to go to
	partMoves                  // a channel has it
	partLost                   // with a connection; the pipe is about to say why
	partEnded
)

// transferID is the id of the transfer of one part of a message. The ids of a
// channel are unique for both directions together: those of what the listening
// end sends have the highest bit.
func transferID(sender channel.Role, number uint64, place int) uint64 {
	id := native.Transfer(number, uint16(place))
	if sender == channel.RoleListen {
		id |= 1 << 63
	}
	return id
}

// peerRole is the role of the other end.
func (p *Pipe) peerRole() channel.Role {
	if p.role == channel.RoleListen {
		return channel.RoleConnect
	}
	return channel.RoleListen
}

func newNativeOp(o *nativeOutbox, m *Message, number uint64, large int) *nativeOp {
	op := &nativeOp{msg: m, number: number, left: large, parts: make([]nativePart, 0, large)}
	op.init(o, op)
	for i := range m.Payloads {
		if !o.frame.Payloads[i].Inline {
			op.parts = append(op.parts, nativePart{place: i, state: partMoves, channel: o.pipe.mover.Lane(payloadLane)})
		}
	}
	for i := range m.Tensors {
		if !o.frame.Tensors[i].Inline {
			op.parts = append(op.parts, nativePart{place: i})
		}
	}
	for k := range op.parts {
		op.parts[k].id = transferID(o.pipe.role, number, op.parts[k].place)
	}
	return op
}

// payloadLane is the lane of the mover that carries payloads.
const payloadLane = 0

// begin gives the channels what need not be asked for.
func (op *nativeOp) begin() {
	for k := range op.parts {
		part := &op.parts[k]
		if part.state == partMoves {
			b := device.Bytes(op.msg.Payloads[part.place].Data)
			if form := op.packed.payload(part.place); form != nil {
				b = formBuffer(form, b)
			}
			op.send(k, b)
		} else if target := op.msg.Tensors[part.place].TargetDevice; !target.IsZero() {
			op.sendTensor(k, target)
		}
	}
	op.expireAt(op.msg.Deadline)
}

// sendTensor gives a tensor to the channel to a device of the peer; that there
// is one has been checked.
func (op *nativeOp) sendTensor(k int, target device.Device) {
	part := &op.parts[k]
	b := op.msg.Tensors[part.place].Buffer
	source := b.Device()
	if form := op.packed.tensor(part.place); form != nil {
		b = formBuffer(form, b)
	}
	part.lane = op.out.pipe.laneFor(source, target, b.Len())
	part.state, part.channel = partMoves, part.lane.channel
	part.lane.sent.add(b.Len())
	op.send(k, b)
}

func (op *nativeOp) send(k int, b device.Buffer) {
	part := &op.parts[k]
	part.channel.Send(part.id, b, func(err error) { op.partDone(k, err) })
}

// resolve takes the devices that the receiver chose, in order.
func (op *nativeOp) resolve(chosen []device.Device) error {
	for k := range op.parts {
		part := &op.parts[k]
		if part.state != partAsks {
			continue
		}
		if len(chosen) == 0 {
			return protocolError("too few devices for message %d", op.number)
		}
		if _, err := op.out.pipe.lane(op.msg.Tensors[part.place].Buffer.Device(), chosen[0]); err != nil {
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

// partDone notes that a channel has let go of a part.
func (op *nativeOp) partDone(k int, err error) {
	op.out.mu.Lock()
	defer op.out.mu.Unlock()
	part := &op.parts[k]
	if err != nil && op.err == nil && !op.unwanted {
		if err = classify(err); isGone(err) || errors.Is(err, ErrClosed) {
			part.state = partLost
			return
		}
		conn := "bulk"
		if part.lane != nil {
			conn = "channel " + part.lane.name
		}
		op.giveUp(op.out.pipe.errorFor("write", conn, err))
	}
	op.endPart(k)
	op.settle()
}

func (op *nativeOp) endPart(k int) {
	if op.parts[k].state != partEnded {
		op.parts[k].state = partEnded
		op.left--
	}
}

// giveUp ends the message with err and tells the peer.
func (op *nativeOp) giveUp(err error) {
	op.out.pipe.control.abort(op.number, goodbyeText(err))
	op.fail(err)
}

// fail ends the message with err.
func (op *nativeOp) fail(err error) {
	if op.err == nil {
		op.err = err
	}
	op.abort(err)
}

// abort takes back what has not moved and makes the channels let go of the rest.
func (op *nativeOp) abort(cause error) {
	for k := range op.parts {
		switch part := &op.parts[k]; part.state {
		case partMoves:
			part.channel.Abort(part.id, cause)
		default:
			op.endPart(k)
		}
	}
	op.settle()
}

// settle completes the message when all its parts are through.
func (op *nativeOp) settle() {
	if op.left > 0 || op.ended {
		return
	}
	if op.unwanted {
		op.err = nil
	}
	if op.err == nil {
		op.out.traffic.add(op.data)
	}
	op.packed.release()
	op.msg, op.packed = nil, nil
	op.out.room.giveBack(op.room)
	delete(op.out.ops, op.number)
	op.end()
	op.out.settle()
}

func (op *nativeOp) cancel(cause error) {
	op.out.mu.Lock()
	defer op.out.mu.Unlock()
	if !op.ended && op.err == nil && !op.unwanted {
		op.giveUp(op.out.pipe.errorFor("write", "", fmt.Errorf("%w: %w", ErrCancelled, cause)))
	}
}
