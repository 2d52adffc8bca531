package pipe

import (
	"runtime"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
)

// writeOrEnqueue sends the message m that o.frame describes, and takes its share of the budgets.
// Through a stream that can be polled it writes the descriptor and inline parts straight from their
// memory, as far as the stream accepts them and if no other bytes are queued. The rest is enqueued:
// as a copy or, if mayBorrow is set and a part is large, from m's memory; it then returns the
// operation that ends when that memory may be reused, and otherwise nil. The caller holds mu.
func (o *nativeWriter) writeOrEnqueue(m *Message, forms *compressedForms, mayBorrow bool, share budgetShare) *WriteOp {
	if forms != nil || !o.zeroCopy() {
		o.encode(m, forms, share)
		if o.zeroCopy() {
			o.signal() // otherwise writeQueued does so where it must
		}
		return nil
	}
	o.head = o.frame.AppendDescriptor(o.head[:0], false)
	o.pieces = o.appendInline(append(o.pieces[:0], o.head), m)
	remaining := o.pieces
	if !o.writing && o.blocks.Len() == 0 {
		remaining = o.tryWritePieces()
	}
	op := o.enqueueRemaining(m, remaining, mayBorrow, share)
	runtime.KeepAlive(m) // a Buffer's owner keeps its memory alive, its segments do not
	clear(o.pieces)
	o.head = kept(o.head)
	return op
}

// zeroCopy reports whether messages are written from their own memory: the stream can be polled,
// and no checksum is required.
func (o *nativeWriter) zeroCopy() bool { return o.poller != nil && !o.pipe.context.opts.Checksum }

// tryWritePieces writes o.pieces as far as the stream accepts them, and returns the rest. It polls
// for space but does not block. It drops an error, which writing the rest returns again. The caller
// holds mu.
func (o *nativeWriter) tryWritePieces() [][]byte {
	remaining := o.pieces
	for range maxWritePolls {
		n, err := o.poller.TryWrite(remaining...)
		remaining = skipBytes(remaining, n)
		if err != nil || len(remaining) == 0 || !o.poller.PollWritable() {
			break
		}
	}
	return remaining
}

// maxWritePolls bounds how often a message is continued when the stream has room again, so that a
// slow peer does not keep the writer spinning.
const maxWritePolls = 128

// skipBytes returns pieces without their first n bytes; they must have as many. It changes the
// first piece that remains.
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

// maxInline returns the largest size of an inline part of a message, given its size and compressed
// forms.
func (o *nativeWriter) maxInline(size *messageSize, forms *compressedForms) int {
	if forms == nil && size.data <= maxInlineShared {
		return o.inlineLimit()
	}
	return maxInlinePart
}

// inlineLimit returns the largest size that an inline part of a message of this pipe can have;
// maxInline may be lower.
func (o *nativeWriter) inlineLimit() int {
	if o.zeroCopy() {
		return maxInlineShared
	}
	return maxInlinePart
}

// appendInline appends to pieces the memory of the inline parts of m, which o.frame describes and
// none of which is compressed. It copies no bytes.
func (o *nativeWriter) appendInline(pieces [][]byte, m *Message) [][]byte {
	for i := range m.Payloads {
		if o.frame.Payloads[i].Inline {
			pieces = append(pieces, m.Payloads[i].Data)
		}
	}
	for i := range m.Tensors {
		if o.frame.Tensors[i].Inline {
			pieces = m.Tensors[i].Buffer.AppendSegments(pieces)
		}
	}
	return pieces
}

// enqueueRemaining enqueues the remaining bytes of m for the run loop. If mayBorrow is set and a
// piece is large they stay in m's memory, and it returns the operation that ends when this memory
// may be reused. Otherwise they are copied, and it returns nil. It takes the share of the budgets
// and releases it if nothing remains. The caller holds mu.
func (o *nativeWriter) enqueueRemaining(m *Message, remaining [][]byte, mayBorrow bool, share budgetShare) *WriteOp {
	if len(remaining) == 0 {
		o.budget.releaseShare(share)
		return nil
	}
	defer o.signal()
	if mayBorrow && slices.ContainsFunc(remaining, func(p []byte) bool { return len(p) > maxInlinePart }) {
		return o.borrow(m, remaining, share)
	}
	size := 0
	for _, p := range remaining {
		size += len(p)
	}
	b := o.blockFor(size)
	o.chargeBlock(b, share)
	b.data = appendAll(b.data, remaining)
	return nil
}

// maxDirectBlocks bounds the blocks that one call of writeQueued writes.
const maxDirectBlocks = 4

// writeQueued writes up to maxDirectBlocks queued blocks on the caller's goroutine, so that a
// message needs no switch of goroutines, as far as the stream accepts them without blocking and no
// other goroutine is writing. It leaves them to the run loop, which writes several messages at
// once, if more is set, if this end has received no message since the last write, or if it received
// several at a time. The caller holds mu, which is released during the writes.
func (o *nativeWriter) writeQueued(more bool) {
	if o.zeroCopy() {
		return
	}
	if r := &o.pipe.in.stream; !r.messageArrived.Swap(false) || r.arrivedInBatch.Load() || more {
		o.batching.Store(true)
		o.signal()
		return
	}
	for range maxDirectBlocks {
		if o.stopped != nil || o.writing || o.blocks.Len() == 0 {
			return
		}
		b := o.blocks.Pop()
		o.writing = true
		o.mu.Unlock()
		o.directBuf[0] = b.data
		n, err := o.stream.TryWrite(o.directBuf[:]...)
		o.mu.Lock()
		if err != nil || n < len(b.data) { // the run loop gets the error again
			o.requeue(b, n)
			return
		}
		o.writing = false
		o.recycle(b, o.stopped)
		o.signalIdle()
	}
	o.signal()
}

// requeue leaves b, of which n bytes have been written, to the run loop; once the writer is stopped
// it releases b. The caller holds mu, has set writing and has taken b from the queue.
func (o *nativeWriter) requeue(b *block, n int) {
	if o.stopped != nil {
		o.writing = false
		o.recycle(b, o.stopped)
		o.signalIdle()
		return
	}
	b.data = append(b.data[:0], b.data[n:]...)
	o.unfinished = b
	o.signal()
}

func (p *nativePipe) tryWrite(m *Message) (bool, error) { return p.out.trySend(m) }

// trySend sends m without blocking if it can be copied at once: all parts are inline, none is to be
// compressed, and the budgets and the quota allow it now. It reports whether it has; m's memory may
// then be reused. If m was not sent, the error is nil unless m cannot be sent at all or the pipe
// has ended.
func (o *nativeWriter) trySend(m *Message) (taken bool, err error) {
	size, err := o.check(m)
	if err != nil || size.compressible.Messages > 0 && o.pipe.compresses {
		return false, err
	}
	cost := o.cost(&size)
	if !o.pipe.account.TryCharge(0) || !o.budget.tryAcquire(cost) {
		return false, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err = o.rejection; err == nil {
		taken = o.startCopied(m, &size)
	}
	if taken {
		o.writeQueued(m.More)
	} else {
		o.budget.release(cost)
	}
	return taken, err
}

// startCopied numbers m and writes it or enqueues a copy, so that m's memory is not used
// afterwards. If a part is not inline it does nothing and reports false. The caller holds mu and
// has acquired cost(size) of the budgets, which startCopied takes if it returns true.
func (o *nativeWriter) startCopied(m *Message, size *messageSize) bool {
	defer o.frame.Reset()
	if o.describe(m, size, nil) > 0 {
		return false
	}
	o.count++
	o.countCompressed(size, nil)
	o.traffic.add(size.data)
	o.writeOrEnqueue(m, nil, false, o.settleCost(size, nil))
	return true
}

// A part is inline if it has at most maxInlinePart bytes and the inline parts of the message
// together at most inlineMessage. Through shared memory all parts of a message of at most
// maxInlineShared bytes are inline: Read copies them from the ring to their destination, and
// a rendezvous would take longer.
const (
	maxInlinePart   = 64 << 10
	inlineMessage   = 1 << 20
	maxInlineShared = native.MaxInline
)

// inlinePlan decides which parts of a message are inline: first its payloads, then its tensors, in
// order. Empty parts always are.
type inlinePlan struct {
	limit int // largest size of a part
	used  int
}

// add reports whether a part of n bytes is inline: it is within the limit of a part, and the
// message's limit has n bytes left. If so it counts them.
func (i *inlinePlan) add(n int) bool {
	if n > i.limit || n > max(inlineMessage, i.limit)-i.used {
		return false
	}
	i.used += n
	return true
}

// addTensor reports whether a tensor of which n bytes are sent is inline, and if so counts its
// bytes. Only empty tensors are, and those in host memory without a stream whose target device is
// cpu:0 or unset, within the limits of add.
func (i *inlinePlan) addTensor(t *Tensor, n int) bool {
	b := &t.Buffer
	plain := b.IsHost() && b.Stream() == nil && b.Device() == device.CPU() &&
		(t.TargetDevice.IsZero() || t.TargetDevice == device.CPU())
	return n == 0 || plain && i.add(n)
}
