package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/compress"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/staging"
)

// readStaged is readAll, but a may have host memory with streams. Such memory receives its bytes by
// copies that readStaged enqueues on the streams. Only if it cannot enqueue them it waits for the
// work of a stream, see [staging.Budget.Begin], until ctx, the message or the pipe ends.
func (in *nativeIncoming) readStaged(ctx context.Context, a Allocation) error {
	if !staging.Needed(a.Tensors) {
		return in.readAll(ctx, a)
	}
	staged, err := in.stage(a, func(ready device.Event) error { return in.awaitEvent(ctx, ready) })
	if err != nil {
		if in.large > 0 {
			in.cancel(err)
		}
		if in.inlineLength > 0 {
			in.reader.stream.skipInline(in)
		}
		return err
	}
	err = in.readAll(ctx, Allocation{Payloads: a.Payloads, Tensors: staged.Memory})
	return cmp.Or(err, staged.End(err == nil))
}

// awaitEvent is Pipe.awaitEvent. It also ends when the peer aborts the message, with the reason.
// If ctx ends first, the error matches ErrCancelled.
func (in *nativeIncoming) awaitEvent(ctx context.Context, ready device.Event) error {
	mu := &in.reader.mu
	mu.Lock()
	if in.aborted != nil {
		defer mu.Unlock()
		return in.aborted
	}
	abortedChan := make(chan struct{})
	in.abortedChan = abortedChan
	mu.Unlock()
	err := in.reader.pipe.awaitEvent(ctx, ready, abortedChan)
	mu.Lock()
	defer mu.Unlock()
	switch {
	case in.aborted != nil:
		return in.aborted
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ErrCancelled, err)
	}
	return err
}

// startTransfers makes the channels receive the parts that are not inline into the memory in a, and
// counts the Read as under way until finish. If the sender has left the choice of devices to this
// end, it also sends the peer a TARGETS frame with the devices of a. If the message was aborted or
// the session has ended, it starts no transfer and returns an error. If it returns nil, the caller
// must call wait before a may be reused.
func (in *nativeIncoming) startTransfers(a Allocation) error {
	i := in.reader
	i.mu.Lock()
	if in.aborted != nil {
		defer i.mu.Unlock()
		return in.aborted
	}
	if i.readsEnded {
		defer i.mu.Unlock()
		return i.pipe.endError()
	}
	in.pending, in.done = in.large, make(chan struct{})
	i.countReads(1)
	i.mu.Unlock()
	var chosen []device.Device
	for k := range in.parts.Tensors {
		if part := &in.parts.Tensors[k]; !part.Inline && part.Target.IsZero() {
			chosen = append(chosen, a.Tensors[k].Device())
		}
	}
	if len(chosen) > 0 {
		i.pipe.control.send(&native.Control{Kind: native.Targets, Number: in.number, Devices: chosen})
	}
	i.recvMu.Lock()
	defer i.recvMu.Unlock()
	for k := range in.parts.Payloads {
		if part := &in.parts.Payloads[k]; !part.Inline {
			in.startTransfer(nil, i.pipe.mover.Lane(payloadLane), k, 1, formTail(device.Bytes(a.Payloads[k]), part.WireLength()))
		}
	}
	for k := range in.parts.Tensors {
		if part := &in.parts.Tensors[k]; !part.Inline && !part.Joined {
			b, tensors := in.transferMemory(k, a)
			l := i.pipe.channelFor(b.Device(), part.Source, b.Len())
			in.startTransfer(l, l.channel, k, tensors, b)
		}
	}
	return nil
}

// transferMemory returns the memory in a for the transfer of tensor k: that of the tensor, and after
// it that of the tensors that are joined to it. tensors is the number of all of them.
func (in *nativeIncoming) transferMemory(k int, a Allocation) (b device.Buffer, tensors int) {
	parts := in.parts.Tensors
	b = formTail(a.Tensors[k], parts[k].WireLength())
	joined := native.JoinedTo(parts, k)
	if joined == 0 {
		return b, 1
	}
	pieces := b.AppendSegments(make([][]byte, 0, 1+joined))
	for next, left := k+1, joined; left > 0; next++ {
		if parts[next].Joined {
			pieces = a.Tensors[next].AppendSegments(pieces)
			left--
		}
	}
	return device.Host(pieces...), 1 + joined
}

// startTransfer makes channel c receive a number of parts into b, which belongs to c until partDone:
// the payload or tensor with this index, and tensors that are joined to it. l is the pipe's entry
// for c, or nil for a payload. If the message has been aborted, startTransfer also aborts the
// transfer. The caller holds recvMu.
func (in *nativeIncoming) startTransfer(l *pipeChannel, c channel.Channel, index, parts int, b device.Buffer) {
	id := transferID(in.Incoming.pipe.role != channel.RoleListen, in.number, index)
	in.reader.mu.Lock()
	in.transfers = append(in.transfers, incomingTransfer{id, c})
	in.reader.mu.Unlock()
	c.Recv(id, b, func(err error) { in.partDone(l, Traffic{uint64(parts), uint64(b.Len())}, err) })
	in.reader.mu.Lock()
	aborted := in.aborted
	in.reader.mu.Unlock()
	if aborted != nil {
		c.Abort(id, aborted) // the abort may have come before the channel knew the transfer
	}
}

// partDone records that a channel no longer uses the memory of a transfer: it has received n, or has
// failed with err. l is the pipe's entry for the channel, nil for a payload. If the channel
// itself has failed, partDone cancels the message, unless the message has an error already. If err
// only means that the peer is gone or has aborted the message, or that this end has closed, the
// reason comes later, and wait waits for it. partDone locks nativeReader.mu.
func (in *nativeIncoming) partDone(l *pipeChannel, n Traffic, err error) {
	conn := "bulk"
	if l != nil {
		conn = "channel " + l.name
	}
	reasonPending := false
	if err != nil {
		if errors.Is(err, channel.ErrAborted) && !isPeerGone(err) {
			err = fmt.Errorf("%w: %w", ErrAborted, err) // by the sender; other messages go on
		} else {
			err = classify(midMessage(err))
		}
		reasonPending = isPeerGone(err) || errors.Is(err, ErrClosed) || errors.Is(err, ErrAborted)
		err = in.reader.pipe.errorFor("read", conn, err)
	} else if l != nil {
		l.received.addMany(n)
	}
	i := in.reader
	i.mu.Lock()
	defer i.mu.Unlock()
	if err != nil && !reasonPending && in.aborted == nil && in.err == nil {
		in.cancelLocked(err) // before done is closed, after which the message may be reused
	}
	in.reasonPending = in.reasonPending || reasonPending
	in.err = cmp.Or(in.err, err)
	if in.pending--; in.pending == 0 {
		close(in.done)
	}
}

// wait blocks until all parts have been received or have failed, and returns the message's error,
// nil if all were received. If ctx ends first, wait cancels the message; the error then matches
// ErrCancelled, unless the message was aborted before or all parts have arrived all the same. When
// wait returns, no channel uses the memory any more.
//
// If a part has failed because the peer has aborted the message or the connection has ended, wait
// also blocks until the reason is known, from the peer's ABORT frame or the end of the pipe. It
// does this until ctx ends, and for twice closeFrameTimeout at most.
func (in *nativeIncoming) wait(ctx context.Context) error {
	select {
	case <-in.done:
	case <-ctx.Done():
		in.cancel(fmt.Errorf("%w: %w", ErrCancelled, context.Cause(ctx)))
		<-in.done
	}
	mu := &in.reader.mu
	mu.Lock()
	defer mu.Unlock()
	if in.reasonPending && in.aborted == nil {
		abortedChan := make(chan struct{})
		in.abortedChan = abortedChan
		mu.Unlock()
		t := time.NewTimer(2 * closeFrameTimeout)
		select {
		case <-abortedChan:
		case <-in.reader.pipe.down:
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
		mu.Lock()
	}
	switch {
	case in.err == nil:
		return nil
	case in.aborted != nil:
		return in.aborted
	}
	return cmp.Or(in.reader.pipe.Err(), in.err)
}

// copyInline copies or decompresses the inline parts, which are in memory of the pipe, into a. If a
// buffer of a is on a device, its copy may still be under way when copyInline returns, in the order
// of the buffer's stream. It stops at the first error, which is that of decompressInline or
// copyTensor.
func (in *nativeIncoming) copyInline(ctx context.Context, a Allocation) error {
	for k := range in.parts.Payloads {
		part := &in.parts.Payloads[k]
		if part.Inline && part.Codec != compress.None {
			if err := in.decompressInline(ctx, part.Codec, device.Bytes(a.Payloads[k]), part.Data); err != nil {
				return err
			}
		} else if part.Inline {
			copy(a.Payloads[k], part.Data)
		}
	}
	for k := range in.parts.Tensors {
		part := &in.parts.Tensors[k]
		if !part.Inline || part.Length == 0 {
			continue
		}
		var err error
		if part.Codec != compress.None {
			err = in.decompressInline(ctx, part.Codec, a.Tensors[k], part.Data)
		} else {
			err = in.copyTensor(a.Tensors[k], part.Data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyTensor copies data, the bytes of an inline tensor, to dst. If dst is not host memory, the copy
// is made in the order of dst's stream and may still read data after the return, so copyTensor sets
// in.frameInUse, and Release does not reuse data. Errors are those of copyTo and device.CopyHost.
func (in *nativeIncoming) copyTensor(dst device.Buffer, data []byte) error {
	if p, ok := dst.Contiguous(); ok {
		copy(p, data)
		return nil
	}
	if dst.IsHost() {
		return device.CopyHost(dst, device.Bytes(data))
	}
	in.frameInUse = true
	return in.Incoming.pipe.context.copyTo(dst, device.Bytes(data))
}

// readInlineBytes reads the remaining inline bytes of an open message from src, and returns nil
// once it has all of them. It reads into the memory that Read has set, or otherwise into memory of
// the pipe, and keeps their remaining number in in.inlineLeft. After an error, also errNoData, the
// next call continues where this one stopped. The caller holds streamReader.mu.
func (in *nativeIncoming) readInlineBytes(src io.Reader) (err error) {
	if in.inlineDst == nil {
		in.inlineBuf, err = readGrowing(src, in.inlineBuf, in.inlineLength, &in.memory, in.cost()-in.inlineLength)
		in.inlineLeft = in.inlineLength - len(in.inlineBuf)
		return err
	}
	for len(in.inlineDst) > 0 {
		n, err := io.ReadFull(src, in.inlineDst[0])
		in.inlineLeft -= n
		if in.inlineDst[0] = in.inlineDst[0][n:]; err != nil {
			return err
		}
		in.inlineDst = in.inlineDst[1:]
	}
	return nil
}

// receiveInline waits until the inline bytes of a message have been received, and for a bounded
// time reads them itself. The result is true if they were read straight into a. It is false if they
// are in memory of the pipe, from which copyInline must copy them. If ctx ends first, the error
// matches ErrCancelled; if the pipe ends first, it is that of the pipe; the first result then has
// no meaning. Once receiveInline has returned, the goroutines of the pipe do not write to a.
func (in *nativeIncoming) receiveInline(ctx context.Context, a Allocation) (bool, error) {
	r := &in.reader.stream
	r.mu.Lock()
	if r.open != in {
		r.mu.Unlock()
		return false, nil
	}
	placed := in.setInlineTarget(a)
	if r.pollInline(ctx) {
		r.mu.Unlock()
		in.reader.afterPoll()
		return placed, nil
	}
	in.inlineDone = make(chan struct{})
	r.mu.Unlock()
	select {
	case <-in.inlineDone:
	case <-ctx.Done():
		if r.skipInline(in) {
			return placed, fmt.Errorf("%w: %w", ErrCancelled, context.Cause(ctx))
		}
	case <-in.reader.pipe.down:
		if r.skipInline(in) {
			return placed, in.reader.pipe.Err()
		}
	}
	return placed, nil // all were received
}

// pollInline polls for the inline bytes of the open message for a bounded time, and reports whether
// all have been received. If it reports false, the goroutine of nativeReader.run continues in its
// place. An error of the stream is kept in r.err. The caller holds mu.
func (r *streamReader) pollInline(ctx context.Context) bool {
	for range maxPartialPolls {
		err := r.readInline()
		if err == nil {
			return true
		}
		if err != errNoData {
			r.err = midMessage(err)
		}
		if r.err != nil || ctx.Err() != nil || !r.poller.PollReadable(false) {
			break
		}
	}
	r.resumeLoop()
	return false
}

// setInlineTarget makes the memory of a the destination of the inline bytes that are read from now
// on, and reports true. The reader writes to that memory until all bytes are received or skipInline
// is called. If a tensor of a is not contiguous memory of cpu:0, or if bytes have been read to memory
// of the pipe, it reports false, and the bytes go to memory of the pipe. The caller holds
// streamReader.mu.
func (in *nativeIncoming) setInlineTarget(a Allocation) bool {
	if in.inlineBuf != nil {
		return false
	}
	inlineDst := append(in.inlineDstArray[:0], a.Payloads...)
	for _, b := range a.Tensors {
		p, ok := b.Contiguous()
		if !ok || b.Device() != device.CPU() {
			return false
		}
		inlineDst = append(inlineDst, p)
	}
	in.inlineDstArray, in.inlineDst = inlineDst, inlineDst
	return true
}
