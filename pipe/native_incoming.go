package pipe

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
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
	large      int            // number of parts that are not inline
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
	err := in.readAll(ctx, a)
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
// true. After that the caller must call finish.
func (in *nativeIncoming) claim() bool { return in.claimed.CompareAndSwap(false, true) }

// finish ends a message that was read, discarded or aborted. It releases the message's memory
// charge; from then on Release may return the message to the pool. The caller must make sure that
// no channel uses the message's memory any more. After a Read it must call noteRead first: Close
// waits for Reads to finish and then confirms every message that was read.
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
	keptParts = 64
)

// release returns the message to the pool, emptied. It does nothing before finish. Memory is kept
// for reuse unless it is large, or a device may still be reading it.
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

// kept returns buf emptied for reuse, or nil if its capacity is over keptBytes.
func kept(buf []byte) []byte {
	if cap(buf) > keptBytes {
		return nil
	}
	return buf[:0]
}

// The memory that a decoded part takes in addition to its bytes of the frame.
const (
	receivedPayloadSize = 104
	receivedTensorSize  = 200
)

// cost returns the memory, in bytes, that the message takes once it is decoded, with inline bytes
// that have not been received yet. It counts the parts in the undecoded body.
func (in *nativeIncoming) cost() int {
	body := in.body
	if body == nil {
		body = in.frame
	}
	payloads, tensors := native.CountParts(body)
	return messageOverhead + len(in.frame) + in.inlineLength + payloads*receivedPayloadSize + tensors*receivedTensorSize
}

// decode decodes in.body and fills in the Descriptor, which refers to frame. It charges the memory,
// and checks the message against the limits and channels of the pipe. Errors match ErrProtocol,
// ErrLimit or ErrChecksum.
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

// decodeDescriptor decodes the descriptor of a message that is returned early, and fills in the
// Descriptor. frame has the bytes of the body before the inline bytes, and length is the size of the
// whole body. Checks and errors are those of decode.
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

// describe fills in the Descriptor from the decoded parts, and checks it against the limits and the
// channels of the pipe. Errors match ErrProtocol.
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
		if !part.Inline {
			in.large++
		}
	}
	if n := d.Bytes(); n > limits.MessageBytes {
		return protocolError("%w", limitError("message", uint64(n), uint64(limits.MessageBytes)))
	}
	return nil
}

// cancelLocked aborts all transfers of the message with cause and sends the peer a CANCEL frame, so
// that it sends no more of them. The caller holds nativeReader.mu.
func (in *nativeIncoming) cancelLocked(cause error) {
	in.reader.pipe.control.sendCancel(in.number)
	in.abort(cause)
}

// cancel locks nativeReader.mu, aborts all transfers of the message with cause and sends the peer a
// CANCEL frame. It does not wait until the channels have released the memory.
func (in *nativeIncoming) cancel(cause error) {
	in.reader.mu.Lock()
	defer in.reader.mu.Unlock()
	in.cancelLocked(cause)
}

// abort makes cause the reason in in.aborted, unless there is one, and aborts all transfers of the
// message that have started. startTransfer aborts those that start later. It does not wait until
// the channels have released the memory. The caller holds nativeReader.mu.
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

// tryDiscard discards the message and returns true, or returns false if a Read or Discard has
// claimed it. It does not count the message as read; discard does.
func (in *nativeIncoming) tryDiscard() bool {
	if !in.claim() {
		return false
	}
	in.discardClaimed()
	return true
}

// discardClaimed discards a message that the caller has claimed: it sends the peer a CANCEL frame
// if parts are not inline, has inline bytes that are still in the stream skipped, and ends the
// message. It does not count the message as read.
func (in *nativeIncoming) discardClaimed() {
	if in.large > 0 {
		in.reader.pipe.control.sendCancel(in.number)
	}
	if in.inlineLength > 0 {
		in.reader.stream.skipInline(in)
	}
	in.finish()
}
