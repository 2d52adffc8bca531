package pipe

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
)

// nativeIncoming is an Incoming of the native dialect. Its descriptor and inline parts are in
// frame, except the inline bytes of a message that was returned early, before they were read from
// the stream. It comes from a pool of the context, to which Release returns it.
type nativeIncoming struct {
	Incoming
	reader     *nativeReader
	number     uint64 // counts the messages of this direction, from 0
	frame      []byte
	body       []byte         // part of frame; nil if the message was returned early
	parts      native.Message // decoded; refers to frame
	large      int            // number of transfers: parts that are neither inline nor joined
	compressed int            // number of compressed parts
	readAhead  int            // charged to nativeReader.readAhead, in bytes
	memory     charge         // for frame, inlineBuf and parts
	frameInUse bool           // a device may still be reading frame

	// The following fields belong to a message that was returned early, and are
	// guarded by streamReader.mu.
	inlineLength   int           // number of inline bytes
	inlineLeft     int           // number of those that are still in the stream
	inlineDst      [][]byte      // remaining memory of Read that receives them; nil if inlineBuf does
	inlineBuf      []byte        // receives them if Read does not come first
	inlineDone     chan struct{} // made by a Read that waits for them, closed when all are received
	inlineDstArray [][]byte      // backing array of inlineDst

	claimed  atomic.Bool // a Read or Discard has begun
	finished atomic.Bool // that Read or Discard has ended

	// The following fields are guarded by nativeReader.mu.
	aborted       error              // why it was aborted
	transfers     []incomingTransfer // parts that were given to a channel
	pending       int                // number of parts that are not done
	err           error              // the first error of a part
	reasonPending bool               // a part has failed, and the reason arrives on another connection
	abortedChan   chan struct{}      // made by a Read that waits for the reason, closed when aborted is set
	done          chan struct{}      // closed when pending is 0
}

// incomingTransfer identifies a part that a channel is receiving.
type incomingTransfer struct {
	id      uint64
	channel channel.Channel
}

func (in *nativeIncoming) read(ctx context.Context, a Allocation) error {
	if ctx.Err() != nil {
		return in.errorFor(context.Cause(ctx))
	}
	if in.large > 0 {
		if err := in.reader.pipe.control.awaitQueueSpace(ctx); err != nil {
			return in.errorFor(err)
		}
	}
	if err := in.checkMemory(a); err != nil {
		return in.errorFor(err)
	}
	if !in.claim() {
		return in.errorFor(ErrAlreadyRead)
	}
	err := in.readStaged(ctx, a)
	runtime.KeepAlive(a) // a Buffer's owner keeps its memory alive, its segments do not
	in.reader.pipe.control.noteRead(in.number)
	in.finish()
	if err != nil {
		return in.errorFor(err)
	}
	in.reader.traffic.add(in.desc.Bytes())
	in.countSavings()
	return nil
}

// readAll receives the message into a, whose host memory has no streams, and returns when all parts
// have arrived or failed.
func (in *nativeIncoming) readAll(ctx context.Context, a Allocation) error {
	if in.inlineLength > 0 {
		if done, err := in.receiveInline(ctx, a); done || err != nil {
			return err
		}
	}
	if in.large == 0 {
		return in.copyInline(ctx, a)
	}
	if err := in.startTransfers(a); err != nil {
		return err
	}
	err := in.copyInline(ctx, a)
	if err != nil {
		in.cancel(err)
	}
	if err := cmp.Or(in.wait(ctx), err); err != nil {
		return err
	}
	return in.decompressLarge(ctx, a)
}

func (in *nativeIncoming) isInline() bool { return in.large == 0 }

// claim reports whether the caller may read or discard the message; only the first call returns
// true. If it returns true, the caller must call finish later.
func (in *nativeIncoming) claim() bool { return in.claimed.CompareAndSwap(false, true) }

// finish ends a message that was read, discarded or aborted. It removes the message from
// nativeReader.open and gives the message's memory charge back to the quota; from then on Release
// may return the message to its pool. No channel may use the message's memory any more. After a
// Read the caller must have called noteRead: Close waits for Reads to finish and then confirms
// every message that was read. It locks nativeReader.mu if the message has parts that are not
// inline.
func (in *nativeIncoming) finish() {
	if in.large > 0 {
		in.reader.mu.Lock()
		delete(in.reader.open, in.number)
		if in.done != nil {
			in.reader.countReads(-1)
		}
		in.reader.mu.Unlock()
	}
	in.memory.release()
	in.finished.Store(true)
}

// The memory that is kept for reuse: bytes of a frame, and parts of a message.
const (
	keptBytes = 2 * frameStep
	keptParts = 128
)

// release empties in and returns it to the pool of incoming messages. It does nothing before finish
// was called. The pool keeps memory of the message for reuse, but no large frame, and no frame that
// a device may still be reading.
func (in *nativeIncoming) release() {
	if !in.finished.Load() {
		return
	}
	c := in.Incoming.pipe.context
	in.parts.Reset()
	clear(in.inlineDstArray[:cap(in.inlineDstArray)])
	frame := kept(in.frame)
	if in.frameInUse {
		frame = nil
	}
	var desc Descriptor
	if max(cap(in.desc.Payloads), cap(in.desc.Tensors)) <= keptParts {
		clear(in.desc.Payloads)
		clear(in.desc.Tensors)
		desc = Descriptor{Payloads: in.desc.Payloads[:0], Tensors: in.desc.Tensors[:0]}
	}
	*in = nativeIncoming{
		Incoming:       Incoming{desc: desc},
		frame:          frame,
		parts:          in.parts,
		inlineDstArray: in.inlineDstArray[:0],
	}
	c.incoming.Put(in)
}

// kept returns buf with length 0, in the same memory, so that the memory is reused. If buf's
// capacity is over keptBytes it returns nil.
func kept(buf []byte) []byte {
	if cap(buf) > keptBytes {
		return nil
	}
	return buf[:0]
}

// The memory that a decoded part takes in addition to its bytes of the frame.
const (
	receivedPayloadSize = 104
	receivedTensorSize  = 224
)

// cost returns the number of bytes of memory that the message takes once it is decoded and its
// inline bytes are received. It counts the parts in the body, which need not be decoded or valid.
func (in *nativeIncoming) cost() int {
	body := in.body
	if body == nil {
		body = in.frame
	}
	payloads, tensors := native.CountParts(body)
	return messageOverhead + len(in.frame) + in.inlineLength + payloads*receivedPayloadSize + tensors*receivedTensorSize
}

// decode decodes in.body and fills in the Descriptor, whose metadata stays in in.frame. Before that
// it charges in.cost() bytes to the message. It checks the message against the limits and channels
// of the pipe, as describe does. Errors match ErrProtocol, ErrLimit or ErrChecksum.
func (in *nativeIncoming) decode() error {
	limits := &in.Incoming.pipe.context.limits
	if err := in.memory.grow(in.cost()); err != nil {
		return err
	}
	if err := in.parts.Decode(in.body, limits.native()); err != nil {
		return nativeError(err)
	}
	return in.describe(limits)
}

// decodeDescriptor decodes the descriptor of a message whose inline bytes are still in the stream,
// and fills in the Descriptor, whose metadata stays in in.frame. It sets in.inlineLength and
// in.inlineLeft to the number of inline bytes. in.frame has the part of the body before these
// bytes, and length is the size of the whole body. It checks the message as decode does, and
// charges the memory that the message takes without the inline bytes. Errors are those of decode.
func (in *nativeIncoming) decodeDescriptor(length uint32) error {
	limits := &in.Incoming.pipe.context.limits
	if err := in.memory.grow(in.cost()); err != nil {
		return err
	}
	if err := in.parts.DecodeDescriptor(in.frame, length, limits.native()); err != nil {
		return nativeError(err)
	}
	in.inlineLength = int(length) - len(in.frame)
	in.inlineLeft = in.inlineLength
	return in.describe(limits)
}

// describe fills in the Descriptor from the decoded parts, whose metadata it shares. It counts the
// transfers in in.large, and the compressed parts in in.compressed. It checks the message against
// limits and against the channels and the features of the pipe; if the message does not fit them,
// the error matches ErrProtocol.
func (in *nativeIncoming) describe(limits *Limits) error {
	d := &in.desc
	d.Metadata = in.parts.Metadata
	if left := in.parts.Timeout; left > 0 {
		d.Deadline = time.Now().Add(left)
	}
	d.Payloads = slices.Grow(d.Payloads, len(in.parts.Payloads))
	for k := range in.parts.Payloads {
		part := &in.parts.Payloads[k]
		if part.Length > uint64(limits.PayloadBytes) {
			return protocolError("%w", limitError("payload", part.Length, uint64(limits.PayloadBytes)))
		}
		if err := in.checkCodec(part.Codec); err != nil {
			return protocolError("payload %d: %w", k, err)
		}
		d.Payloads = append(d.Payloads, PayloadDescriptor{Length: int(part.Length), Metadata: part.Metadata})
		if !part.Inline {
			in.large++
		}
	}
	var last *native.Tensor // to which others may be joined
	d.Tensors = slices.Grow(d.Tensors, len(in.parts.Tensors))
	for k := range in.parts.Tensors {
		part := &in.parts.Tensors[k]
		if part.Length > uint64(limits.TensorBytes) {
			return protocolError("%w", limitError("tensor", part.Length, uint64(limits.TensorBytes)))
		}
		d.Tensors = append(d.Tensors, TensorDescriptor{
			Length: int(part.Length), SourceDevice: part.Source, TargetDevice: part.Target, Metadata: part.Metadata,
		})
		if err := in.Incoming.pipe.checkArrival(&d.Tensors[k]); err != nil {
			return protocolError("tensor %d: %w", k, err)
		}
		if err := in.checkTensorCodec(part); err != nil {
			return protocolError("tensor %d: %w", k, err)
		}
		switch {
		case part.Inline:
		case !part.Joined:
			in.large++
			last = part
		case !in.reader.pipe.joins:
			return protocolError("tensor %d: it is joined, which this end does not support", k)
		case !betweenHosts(last) || !betweenHosts(part):
			return protocolError("tensor %d: it is joined, and not in host memory", k)
		}
	}
	if n := d.Bytes(); n > limits.MessageBytes {
		return protocolError("%w", limitError("message", uint64(n), uint64(limits.MessageBytes)))
	}
	return nil
}

// betweenHosts reports whether t goes from cpu:0 to cpu:0, as joined tensors must.
func betweenHosts(t *native.Tensor) bool {
	return t.Source == device.CPU() && t.Target == device.CPU()
}

// cancelLocked aborts the message with cause, as abort does, and sends the peer a CANCEL frame, so
// that the peer sends no further bytes of the message. If the message was aborted before, it
// sends no frame, which would replace the error of the peer's write. It does not wait until the
// channels have released the memory. The caller holds nativeReader.mu.
func (in *nativeIncoming) cancelLocked(cause error) {
	if in.aborted == nil {
		in.reader.pipe.control.sendCancel(in.number)
	}
	in.abort(cause)
}

// cancel aborts the message with cause, as abort does, and sends the peer a CANCEL frame, so that
// the peer sends no further bytes of the message. It does not wait until the channels have released
// the memory. It locks nativeReader.mu.
func (in *nativeIncoming) cancel(cause error) {
	in.reader.mu.Lock()
	defer in.reader.mu.Unlock()
	in.cancelLocked(cause)
}

// abort aborts all transfers of the message that have started, with cause, and stores cause in
// in.aborted unless the message was aborted before; startTransfer then aborts transfers that start
// later. It wakes a Read that waits for the reason of an abort. It does not wait until the channels
// have released the memory. The caller holds nativeReader.mu.
func (in *nativeIncoming) abort(cause error) {
	if in.aborted == nil && in.abortedChan != nil {
		close(in.abortedChan)
	}
	in.aborted = cmp.Or(in.aborted, cause)
	for _, part := range in.transfers {
		part.channel.Abort(part.id, cause)
	}
}

func (in *nativeIncoming) discard(context.Context) error {
	if !in.tryDiscard() {
		return in.errorFor(ErrAlreadyRead)
	}
	in.reader.pipe.control.noteRead(in.number)
	return nil
}

// tryDiscard discards the message and reports true. If a Read or Discard has claimed the message
// already, it does nothing and reports false. It does not count the message as read; discard does.
func (in *nativeIncoming) tryDiscard() bool {
	if !in.claim() {
		return false
	}
	in.discardClaimed()
	return true
}

// discardClaimed discards a message that the caller has claimed. If parts are not inline, it sends
// the peer a CANCEL frame. Inline bytes that are still in the stream will be skipped. It ends the
// message, but does not count it as read.
func (in *nativeIncoming) discardClaimed() {
	if in.large > 0 {
		in.reader.pipe.control.sendCancel(in.number)
		in.dropEager()
	}
	if in.inlineLength > 0 {
		in.reader.stream.skipInline(in)
	}
	in.finish()
}
