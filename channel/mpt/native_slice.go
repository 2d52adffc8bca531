package mpt

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
)

// transferOp is a Send or Recv that is not small. Fields that are not constant are guarded by
// nativeEnd.mu.
type transferOp struct {
	transfer.Transfer // constant
	ready             bool
	offered           bool  // a Send to the peer, or a Recv by the peer
	route             route // valid once offered is set
	assigned          int   // bytes assigned to slices
	moved             int   // bytes of completed slices
	slices            []*slice
	cause             error // why it is being cancelled
}

// slice is a part of a transferOp that is being moved. It is one transfer of the channel on: that
// of a lane, or nativeEnd.host.
type slice struct {
	on     channel.Channel
	lane   *lane // nil if on is nativeEnd.host
	id     uint64
	length int
}

// direction holds the transfers of one direction of an end, the Sends or the Recvs. nativeEnd.mu
// guards it.
type direction struct {
	begin func(channel.Channel, uint64, device.Buffer, func(error))
	ops   map[uint64]*transferOp // neither completed nor cancelled
	next  uint64                 // id of the next slice on a lane
}

// newDirection returns the direction of transfers in which the end with role sender sends. begin is
// the method Send or Recv with which this end moves a slice over a channel. The ids of slices
// differ between the two directions.
func newDirection(sender channel.Role, begin func(channel.Channel, uint64, device.Buffer, func(error))) direction {
	return direction{begin: begin, ops: make(map[uint64]*transferOp), next: uint64(sender) << 63}
}

// begin adds a transfer of buf to direction s. Once its memory is ready it calls proceed with the
// transfer and with mu held: at once, or on another goroutine. If the transfer cannot begin, for
// example because the channel has ended, buf is not host memory or id is in use, proceed is not
// called, and done is called with the error on another goroutine. The same happens if the work of
// buf's stream fails, or the transfer is cancelled before its memory is ready. begin also calls
// wantLanes. The caller does not hold mu.
func (e *nativeEnd) begin(s *direction, id uint64, buf device.Buffer, done func(error), proceed func(*transferOp)) {
	t, fault := transfer.New(e.lifecycle.Context(), id, buf, done)
	op := &transferOp{Transfer: t}
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.endCause()
	switch {
	case err != nil:
	case !buf.IsHost():
		err = e.wrapError(device.ErrMemory)
	case fault != nil:
		err = e.wrapError(fault)
	case s.ops[id] != nil:
		err = e.wrapError(errBusy)
	}
	if err != nil {
		op.CancelWait()
		e.lifecycle.CompleteAsync(done, err)
		return
	}
	s.ops[id] = op
	e.wantLanes()
	if op.ready = op.Ready(); op.ready {
		proceed(op)
		return
	}
	e.lifecycle.Go(func() {
		fault := op.WaitReady()
		e.mu.Lock()
		defer e.mu.Unlock()
		switch {
		case s.ops[id] != op: // it was cancelled
		case fault != nil:
			e.cancel(s, op, e.wrapError(fault))
		default:
			op.ready = true
			proceed(op)
		}
	})
}

// startSlice starts to move the next sl.length bytes of op, a transfer of direction s, as slice sl.
// op must have that many bytes that are not assigned to slices. When the slice has ended,
// completeSlice is called, and op.Done if op has ended too. The caller holds mu.
func (e *nativeEnd) startSlice(s *direction, op *transferOp, sl *slice) {
	part := op.Buf.Slice(op.assigned, sl.length).WithStream(nil)
	op.assigned += sl.length
	if sl.lane != nil {
		sl.lane.moving++
		e.active = true
	}
	op.slices = append(op.slices, sl)
	s.begin(sl.on, sl.id, part, func(err error) {
		if over, outcome := e.completeSlice(s, op, sl, err); over {
			op.Done(outcome)
		}
	})
}

// startWhole starts to move all bytes of op, a transfer of direction s, as one slice over e.host,
// the pipe's bulk connection. No bytes of op may be assigned to slices. The caller holds mu.
func (e *nativeEnd) startWhole(s *direction, op *transferOp) {
	e.startSlice(s, op, &slice{on: e.host, id: op.ID, length: op.Buf.Len()})
}

// completeSlice records that slice sl of op, a transfer of direction s, has ended with err. If err
// is not nil and op is not being cancelled yet, it removes op and aborts the other slices of op. It
// also requests further slices if sl was received on a lane, and continues the closing of lanes if
// that has begun. over is true if op has ended; the caller must then call op.Done(outcome). The
// caller does not hold mu.
func (e *nativeEnd) completeSlice(s *direction, op *transferOp, sl *slice, err error) (over bool, outcome error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.Index(op.slices, sl)
	op.slices = slices.Delete(op.slices, i, i+1)
	defer e.continueRest()
	if sl.lane != nil {
		sl.lane.moving--
		if e.peerGone != nil && sl.lane.moving == 0 {
			e.retireLane(sl.lane)
		}
	}
	if sl.lane != nil && s == &e.recvs {
		sl.lane.requested--
		defer e.requestSlices()
	}
	if err == nil {
		op.moved += sl.length
	} else if op.cause == nil {
		op.cause = err
		e.remove(s, op)
	}
	if len(op.slices) > 0 || op.cause == nil && op.moved < op.Buf.Len() {
		return false, nil
	}
	if s.ops[op.ID] == op {
		delete(s.ops, op.ID)
	}
	return true, op.cause
}

// cancel removes op from direction s, aborts its slices, and withdraws op if it is a Send that was
// offered. op completes with cause as soon as no slice uses its memory: on another goroutine if op
// has no slices in progress, and otherwise when the last slice ends. The caller holds mu.
func (e *nativeEnd) cancel(s *direction, op *transferOp, cause error) {
	op.cause = cause
	e.remove(s, op)
	if len(op.slices) == 0 {
		e.lifecycle.CompleteAsync(op.Done, cause)
	}
}

// remove removes op, whose cause must be set, from direction s, and aborts its slices with that
// cause. If op is a Send that was offered, remove withdraws the offer. It also continues the
// closing of lanes if that has begun. It does not complete op. The caller holds mu.
func (e *nativeEnd) remove(s *direction, op *transferOp) {
	if s.ops[op.ID] == op {
		delete(s.ops, op.ID)
	}
	op.CancelWait()
	e.unrequested.Remove(func(other *transferOp) bool { return other == op })
	for _, sl := range op.slices {
		sl.on.Abort(sl.id, op.cause)
	}
	if s == &e.sends && op.offered {
		e.writer.Push(controlFrame{kind: kindWithdraw, id: op.ID})
	}
	e.continueRest()
}
