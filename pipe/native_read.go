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
)

// startTransfers makes the channels receive the parts that are not inline into the memory in a. If the
// sender left devices to the receiver, it sends the peer a TARGETS frame. If the message was aborted or
// the session has ended, it starts no transfer and returns an error. Otherwise the caller must call
// wait.
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
			in.startTransfer(nil, i.pipe.mover.Lane(payloadLane), k, formTail(device.Bytes(a.Payloads[k]), part.WireLength()))
		}
	}
	for k := range in.parts.Tensors {
		if part := &in.parts.Tensors[k]; !part.Inline {
			b := formTail(a.Tensors[k], part.WireLength())
			l := i.pipe.channelFor(b.Device(), part.Source, b.Len())
			in.startTransfer(l, l.channel, k, b)
		}
	}
	return nil
}

// startTransfer makes channel c receive one part into b, which belongs to c until partDone. index is
// the index of the payload or tensor. l is the pipe's entry for c, or nil for a payload. The caller
// holds recvMu.
func (in *nativeIncoming) startTransfer(l *pipeChannel, c channel.Channel, index int, b device.Buffer) {
	id := transferID(in.Incoming.pipe.role != channel.RoleListen, in.number, index)
	in.reader.mu.Lock()
	in.transfers = append(in.transfers, incomingTransfer{id, c})
	in.reader.mu.Unlock()
	c.Recv(id, b, func(err error) { in.partDone(l, b.Len(), err) })
	in.reader.mu.Lock()
	aborted := in.aborted
	in.reader.mu.Unlock()
	if aborted != nil {
		c.Abort(id, aborted) // the abort may have come before the channel knew the transfer
	}
}

// partDone records that a channel has received a part of n bytes or has failed with err, and no longer
// uses its memory. l is nil for a payload. A failure of the channel itself cancels the message. If the
// error only means that the peer is gone or has aborted the message, wait waits for the reason.
func (in *nativeIncoming) partDone(l *pipeChannel, n int, err error) {
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
		l.received.add(n)
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

// wait waits until all parts have been received or have failed, and returns the message's error. If
// ctx ends first it cancels the message, with an error that matches ErrCancelled. In any case no
// channel uses the memory any more when it returns.
//
// If a part has failed and the reason is not known, wait also waits until it is: the peer has aborted
// the message, or the pipe is down. Both are learned from other connections, possibly later. It waits
// until ctx ends or for twice closeFrameTimeout at most.
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

// copyInline copies or decompresses the inline parts into a. Their bytes are in frame, or in the buffer
// that has received them. Copies to a device may still be under way, in the order of its stream, when
// it returns. The error is that of decompressInline or copyTensor.
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
			err = in.copyTensor(ctx, a.Tensors[k], part.Data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyTensor copies data, an inline tensor, to dst, in the order of dst's stream. If the host
// cannot address dst, data stays in use after the return, so frameInUse is set. If ctx ends while
// it waits for the stream it returns an error.
func (in *nativeIncoming) copyTensor(ctx context.Context, dst device.Buffer, data []byte) error {
	if p, ok := dst.Contiguous(); ok && dst.Stream() == nil {
		copy(p, data)
		return nil
	}
	if !dst.IsHost() {
		in.frameInUse = true
		return in.Incoming.pipe.context.copyTo(dst, device.Bytes(data))
	}
	if err := awaitStream(ctx, dst); err != nil {
		return err
	}
	return device.CopyHost(dst.WithStream(nil), device.Bytes(data))
}

// awaitStream waits until the work on b's stream is done, so that the host may access b, and
// returns at once if b has no stream. Errors are those of the stream, and of ctx if it ends first.
func awaitStream(ctx context.Context, b device.Buffer) error {
	s := b.Stream()
	if s == nil {
		return nil
	}
	ready, err := s.Record()
	if err != nil {
		return err
	}
	return ready.Synchronize(ctx)
}

// readInlineBytes reads the remaining inline bytes of an open message from src: to the memory of
// Read or, if Read has not set it, to memory of the pipe. After an error, also errNoData, the next
// call continues. The caller holds streamReader.mu.
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

// receiveInline waits until the inline bytes of a message that was returned early have been received,
// and reads them itself as far as they arrive soon. It reports whether they went straight to a;
// otherwise copyInline must copy them. If ctx ends first, the error matches ErrCancelled; if the pipe
// ends first, it is that of the pipe. After receiveInline has returned, the pipe does not write to a
// any more.
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

// pollInline polls for the inline bytes of the open message for a bounded time, and reports whether all
// have been received. If it reports false the run loop is resumed and reads the rest. An error of the
// stream is kept in r.err. The caller holds mu.
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

// setInlineTarget makes the memory of a the destination of the inline bytes, and reports true. It
// changes nothing and reports false if a tensor of a is not contiguous host memory without a stream, or
// if bytes have been read to memory of the pipe. The caller holds streamReader.mu.
func (in *nativeIncoming) setInlineTarget(a Allocation) bool {
	if in.inlineBuf != nil {
		return false
	}
	inlineDst := append(in.inlineDstArray[:0], a.Payloads...)
	for _, b := range a.Tensors {
		p, ok := b.Contiguous()
		if !ok || b.Stream() != nil || b.Device() != device.CPU() {
			return false
		}
		inlineDst = append(inlineDst, p)
	}
	in.inlineDstArray, in.inlineDst = inlineDst, inlineDst
	return true
}
