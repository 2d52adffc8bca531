package pipe

import (
	"runtime"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/internal/native"
)

// writeOrEnqueue sends the message m that o.frame describes, and takes its share of the budgets. forms
// are its compressed forms, nil if there are none. Through a stream that can be polled it writes the
// descriptor and inline parts straight from their memory, as far as the stream accepts them and if no
// other bytes are queued. It enqueues the rest. If mayBorrow is set and a part is large, the rest stays
// in m's memory, and the result is the operation that ends when that memory may be reused. Otherwise
// the rest is copied, and the result is nil. The caller holds mu.
func (o *nativeWriter) writeOrEnqueue(m *Message, forms *compressedForms, mayBorrow bool, share budgetShare) *WriteOp {
	if forms != nil || !o.zeroCopy() {
		o.encode(m, forms, share)
		if o.zeroCopy() {
			o.signal() // otherwise writeQueued does so where it must
		}
		return nil
	}
	o.head = o.frame.AppendDescriptor(o.head[:0], false)
	o.pieces = append(o.pieces[:0], o.head)
	for i := range m.Payloads {
		if o.frame.Payloads[i].Inline {
			o.pieces = append(o.pieces, m.Payloads[i].Data)
		}
	}
	for i := range m.Tensors {
		if o.frame.Tensors[i].Inline {
			o.pieces = m.Tensors[i].Buffer.AppendSegments(o.pieces)
		}
	}
	remaining := o.pieces
	if !o.writing && o.blocks.Len() == 0 {
		for range maxWritePolls {
			n, err := o.poller.TryWrite(remaining...)
			remaining = skipBytes(remaining, n)
			if err != nil || len(remaining) == 0 || !o.poller.PollWritable() {
				break // writing the rest returns the error again
			}
		}
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

// maxWritePolls bounds how often a message is continued when the stream has room again, so that a
// slow peer does not keep the writer spinning.
const maxWritePolls = 128

// skipBytes returns pieces without their first n bytes. pieces must have at least n bytes. It changes
// the first piece that remains.
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

// inlineLimit returns the largest size that an inline part of a message of this pipe can have; for
// large and compressed messages it is lower.
func (o *nativeWriter) inlineLimit() int {
	if o.zeroCopy() {
		return maxInlineShared
	}
	return maxInlinePart
}

// enqueueRemaining enqueues the remaining bytes of m for the run loop. If mayBorrow is set and a piece
// is large, they stay in m's memory, and the result is the operation that ends when this memory may be
// reused. Otherwise they are copied, and the result is nil. enqueueRemaining takes the share of the
// budgets, and releases it if no bytes remain. The caller holds mu.
func (o *nativeWriter) enqueueRemaining(m *Message, remaining [][]byte, mayBorrow bool, share budgetShare) *WriteOp {
	if len(remaining) == 0 {
		o.budget.releaseShare(share)
		return nil
	}
	defer o.signal()
	if mayBorrow && slices.ContainsFunc(remaining, func(p []byte) bool { return len(p) > maxInlinePart }) {
		b := o.pipe.context.blocks.Get().(*block)
		if len(remaining) == len(o.pieces) { // the first one is head, which the next message overwrites
			b.data = append(b.data, remaining[0]...)
			remaining = remaining[1:]
		}
		o.chargeBlock(b, share)
		b.borrowed = &borrowedWrite{out: o, pieces: slices.Clone(remaining), block: b}
		b.borrowed.init(o.sender, b.borrowed)
		b.borrowed.msg = m // keeps the memory alive
		b.borrowed.expireAt(m.Deadline)
		o.blocks.Push(b)
		return &b.borrowed.WriteOp
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

// writeQueued writes up to maxDirectBlocks queued blocks on the caller's goroutine, so that a message
// needs no switch of goroutines. It stops when the stream would block or another goroutine is writing.
// It leaves the blocks to the run loop, which writes several messages at once, if more is set, if this
// end has received no message since the last write, or if it received several at a time. It does
// nothing if messages are written from their own memory. The caller holds mu, which is released during
// the writes.
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
		switch {
		case err == nil && n == len(b.data), o.stopped != nil:
			o.blockDone(b, o.stopped)
		default:
			b.data = append(b.data[:0], b.data[n:]...)
			o.unfinished = b // the run loop gets an error again
			o.signal()
			return
		}
	}
	o.signal()
}

// tryWrite sends m without blocking if it can be copied at once: all parts are inline, none is to be
// compressed, and the budgets and the quota allow it now. taken reports whether m was sent; m's memory
// may then be reused. If m was not sent, the error is nil unless m cannot be sent at all or the pipe
// has ended.
func (p *nativePipe) tryWrite(m *Message) (taken bool, err error) {
	o := &p.out
	size, err := o.check(m)
	if err != nil || size.compressible.Messages > 0 && p.compresses {
		return false, err
	}
	cost := o.cost(&size)
	if !p.account.TryCharge(0) || !o.budget.tryAcquire(cost) {
		return false, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	defer o.frame.Reset()
	if o.rejection != nil || o.describe(m, &size, nil) > 0 {
		o.budget.release(cost)
		return false, o.rejection
	}
	o.count++
	o.countCompressed(&size, nil)
	o.traffic.add(size.data)
	o.writeOrEnqueue(m, nil, false, o.settleCost(&size, nil))
	o.writeQueued(m.More)
	return true, nil
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
