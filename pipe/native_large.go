package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// post gives the memory of the large parts to their channels, and tells the
// peer about the devices that it left open.
func (in *nativeIncoming) post(a Allocation) error {
	i := in.in
	i.mu.Lock()
	if in.aborted != nil {
		defer i.mu.Unlock()
		return in.aborted
	}
	if i.over {
		defer i.mu.Unlock()
		return i.end
	}
	in.left, in.done = in.large, make(chan struct{})
	i.countReads(1)
	i.mu.Unlock()
	if open := in.openTargets(a); len(open) > 0 {
		i.pipe.control.targets(in.number, open)
	}
	i.recvMu.Lock()
	defer i.recvMu.Unlock()
	for k := range in.parts.Payloads {
		if part := &in.parts.Payloads[k]; !part.Inline {
			in.recv(nil, i.pipe.mover.Lane(payloadLane), k, tail(device.Bytes(a.Payloads[k]), part.Carried()))
		}
	}
	for k := range in.parts.Tensors {
		if part := &in.parts.Tensors[k]; !part.Inline {
			b := tail(a.Tensors[k], part.Carried())
			l := i.pipe.laneFor(b.Device(), part.Source, b.Len())
			in.recv(l, l.channel, k, b)
		}
	}
	return nil
}

func (in *nativeIncoming) openTargets(a Allocation) []device.Device {
	var open []device.Device
	for k := range in.parts.Tensors {
		if part := &in.parts.Tensors[k]; !part.Inline && part.Target.IsZero() {
			open = append(open, a.Tensors[k].Device())
		}
	}
	return open
}

func (in *nativeIncoming) recv(l *lane, c channel.Channel, place int, b device.Buffer) {
	id := transferID(in.Incoming.pipe.peerRole(), in.number, place)
	in.in.mu.Lock()
	in.moving = append(in.moving, nativeArrival{id, c})
	in.in.mu.Unlock()
	c.Recv(id, b, func(err error) { in.partDone(l, b.Len(), err) })
	in.in.mu.Lock()
	aborted := in.aborted
	in.in.mu.Unlock()
	if aborted != nil {
		c.Abort(id, aborted) // the peer's word may have come before the channel knew the part
	}
}

// partDone notes that a channel has let go of a part. That the peer is gone
// shows at the pipe, which then says why; that it gave the part up, it says itself.
func (in *nativeIncoming) partDone(l *lane, n int, err error) {
	conn := "bulk"
	if l != nil {
		conn = "channel " + l.name
	}
	untold := false
	if err != nil {
		err = classifyPart(err)
		untold = isGone(err) || errors.Is(err, ErrClosed) || errors.Is(err, ErrAborted)
		err = in.in.pipe.errorFor("read", conn, err)
	} else if l != nil {
		l.received.add(n)
	}
	i := in.in
	i.mu.Lock()
	defer i.mu.Unlock()
	if err != nil && !untold && in.aborted == nil && in.err == nil {
		in.giveUp(err) // before done: behind it the message may be another one
	}
	in.untold = in.untold || untold
	in.err = cmp.Or(in.err, err)
	if in.left--; in.left == 0 {
		close(in.done)
	}
}

// classifyPart is classify for a part that a channel had to bring. In this dialect
// a peer that gives one up goes on with the others.
func classifyPart(err error) error {
	if errors.Is(err, channel.ErrAborted) && !isGone(err) {
		return fmt.Errorf("%w: %w", ErrAborted, err)
	}
	return classify(midMessage(err))
}

// wait returns when all parts have arrived or failed.
func (in *nativeIncoming) wait(ctx context.Context) error {
	select {
	case <-in.done:
	case <-ctx.Done():
		in.withdraw(fmt.Errorf("%w: %w", ErrCancelled, context.Cause(ctx)))
		<-in.done
	}
	in.awaitReason(ctx)
	in.in.mu.Lock()
	err, aborted := in.err, in.aborted
	in.in.mu.Unlock()
	switch {
	case err == nil:
		return nil
	case aborted != nil:
		return aborted
	}
	return cmp.Or(in.in.pipe.Err(), err)
}
