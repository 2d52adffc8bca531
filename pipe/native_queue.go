package pipe

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"time"
)

// blockSize bounds the bytes of small messages that share one write.
const blockSize = 64 << 10

// block is a queue entry of the run loop: encoded messages that are written together, or the
// remaining bytes of one message, part of which may be borrowed from the message's memory.
type block struct {
	data     []byte
	borrowed *borrowedWrite // follows data; nil if all bytes are in data
	share    budgetShare
}

// blockFor returns a block to which the caller appends n bytes: the last one in the queue if it
// borrows no memory and has space for them, and otherwise a new one, which it adds to the queue.
// The caller holds mu.
func (o *nativeWriter) blockFor(n int) *block {
	if o.blocks.Len() > 0 {
		if b := *o.blocks.At(o.blocks.Len() - 1); b.borrowed == nil && len(b.data)+n <= blockSize {
			return b
		}
	}
	b := o.pipe.context.blocks.Get().(*block)
	o.blocks.Push(b)
	return b
}

// chargeBlock adds the share s of the budgets to b; recycle releases it. It also charges the bytes
// of s to the pipe's account of the quota Limits.UnadmittedBytes, without waiting for the quota.
// The caller holds mu.
func (o *nativeWriter) chargeBlock(b *block, s budgetShare) {
	b.share.add(s)
	o.pipe.account.Add(s.own)
}

// run writes the queued blocks, one after the other, until the writer is stopped or the stream
// fails. It runs on a goroutine of the pipe.
//
// If the stream fails, run writes no further bytes, because a message is incomplete, and calls
// streamFailed. It leaves the block in o.unfinished, and stopWriting releases it with the pipe's
// error. If the writer has been stopped before, run releases the block itself, with the error of
// the stop.
func (o *nativeWriter) run() {
	for b := o.next(); b != nil; b = o.next() {
		err := o.writeBlock(b)
		o.mu.Lock()
		switch {
		case err != nil && o.stopped == nil:
			if b.borrowed != nil {
				b.borrowed.state = opQueued // the run loop no longer uses it
			}
			o.unfinished = b
		case err != nil:
			o.blockDone(b, o.stopped)
		default:
			o.blockDone(b, nil)
		}
		o.mu.Unlock()
		if err != nil {
			o.pipe.streamFailed("message", err)
			return
		}
	}
}

// next blocks until there is a block to write and returns it: o.unfinished or, if no other
// goroutine is writing, the first block of the queue. It sets o.writing, which blockDone clears.
// Once the writer is stopped it returns nil.
func (o *nativeWriter) next() *block {
	for {
		o.mu.Lock()
		b, stopped := o.unfinished, o.stopped != nil
		switch {
		case stopped:
			b = nil
		case b != nil:
			o.unfinished = nil
		case !o.writing && o.blocks.Len() > 0:
			o.writing = true
			b = o.blocks.Pop()
			if b.borrowed != nil {
				b.borrowed.state = opStarted
			}
		}
		o.mu.Unlock()
		if b != nil || stopped {
			return b
		}
		select {
		case <-o.wake:
			if o.batching.Swap(false) {
				runtime.Gosched() // lets other writers add messages to the block
			}
		case <-o.halted:
		}
	}
}

// writeBlock writes all bytes of b, also those that are borrowed from a message, and returns the
// error of the stream. While it writes, borrowedWrite.cancelLocked may recall the borrowed memory
// by a write deadline in the past. writeBlock then copies the remaining bytes, ends the operation
// of that memory, removes the deadline and continues with the copy. The deadline may also have been
// set for an earlier block; it is then only removed. It locks mu for this.
func (o *nativeWriter) writeBlock(b *block) error {
	data := b.data
	var pieces [][]byte
	if b.borrowed != nil {
		pieces = b.borrowed.pieces
	}
	for {
		n, err := o.stream.Write(data)
		data = data[n:]
		for err == nil && len(pieces) > 0 {
			n, err = o.stream.Write(pieces[0])
			if pieces[0] = pieces[0][n:]; err == nil {
				pieces = pieces[1:]
			}
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		o.mu.Lock()
		_ = o.stream.SetWriteDeadline(time.Time{}) // Write returns the error of a broken stream
		if b.borrowed != nil && b.borrowed.recalled {
			data, pieces = appendAll(data, pieces), nil
			b.borrowed.complete()
			b.borrowed = nil
		}
		o.mu.Unlock()
	}
}

// blockDone releases b, a block that the caller has written or given up, and clears o.writing, so
// that the next block can be taken. If b borrows memory of a message, the operation of that memory
// ends with err. It wakes goroutines that wait until the writer is idle. The caller holds mu.
func (o *nativeWriter) blockDone(b *block, err error) {
	o.writing = false
	o.recycle(b, err)
	o.signalIdle()
}

// recycle releases b's share of the budgets and its bytes of the quota, and returns b to the pool
// of blocks unless it is large. If b borrows memory of a message, the operation of that memory ends
// with err, nil for success. The caller holds mu.
func (o *nativeWriter) recycle(b *block, err error) {
	if b.borrowed != nil {
		b.borrowed.err = err
		b.borrowed.complete()
	}
	o.budget.releaseShare(b.share)
	o.pipe.account.Release(b.share.own)
	if cap(b.data) <= 2*blockSize {
		*b = block{data: b.data[:0]}
		o.pipe.context.blocks.Put(b)
	}
}

// appendAll appends copies of all pieces to data and returns the extended slice.
func appendAll(data []byte, pieces [][]byte) []byte {
	for _, p := range pieces {
		data = append(data, p...)
	}
	return data
}

// writeOrEnqueue writes or enqueues the descriptor and the inline parts of m, which o.frame
// describes. forms has the compressed forms of m's parts, nil if there are none. share is m's share
// of the budgets, which is released when all bytes are written. The caller holds mu, and must then
// call writeQueued.
//
// If o.direct() is false or forms is not nil, it copies all bytes to the queue and returns nil.
// Otherwise it first writes straight from m's memory as much as the stream accepts without
// blocking, unless other bytes are queued. Then it passes the remaining bytes and mayBorrow to
// enqueueRemaining, and returns the result of that.
func (o *nativeWriter) writeOrEnqueue(m *Message, forms *compressedForms, mayBorrow bool, share budgetShare) *WriteOp {
	if forms != nil || !o.direct() {
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
			n, err := o.stream.TryWrite(remaining...)
			remaining = skipBytes(remaining, n)
			if err != nil || len(remaining) == 0 || o.shared == nil || !o.shared.PollWritable() {
				break // writing the rest returns the error again
			}
		}
	}
	op := o.enqueueRemaining(m, remaining, mayBorrow && o.zeroCopy(), share)
	runtime.KeepAlive(m) // a Buffer's owner keeps its memory alive, its segments do not
	clear(o.pieces)
	o.head = kept(o.head)
	return op
}

// zeroCopy reports whether messages are written straight from their own memory: the stream is in
// shared memory, and Options.Checksum is not set.
func (o *nativeWriter) zeroCopy() bool { return o.shared != nil && !o.pipe.context.opts.Checksum }

// directBytes is the size from which the inline parts of a message are written straight from its
// memory, if nothing is queued, to a stream that is not in shared memory. Smaller messages may share a
// write, and more than maxDirectParts parts are copied in less time than the kernel gathers them.
const (
	directBytes    = 16 << 10
	maxDirectParts = 64
)

// direct reports whether the message that o.frame describes is written straight from its own memory,
// as far as the stream accepts it. The caller holds mu.
func (o *nativeWriter) direct() bool {
	switch {
	case o.pipe.context.opts.Checksum:
		return false
	case o.shared != nil:
		return true
	}
	return !o.writing && o.blocks.Len() == 0 &&
		o.frame.EncodedSize()-len(o.frame.Metadata) >= directBytes && // metadata is copied in any case
		len(o.frame.Payloads)+len(o.frame.Tensors) <= maxDirectParts
}

// maxWritePolls bounds how often a message is continued when the stream has room again, so that a
// slow peer does not keep the writer spinning.
const maxWritePolls = 128

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

// enqueueRemaining enqueues the bytes of remaining, pieces of m's frame and memory, for the
// goroutine of run. If mayBorrow is true and a piece is large, the bytes of m's memory are not
// copied, and the result is the operation that ends when this memory may be reused. Otherwise all
// are copied, and the result is nil. share, m's share of the budgets, is released when the bytes
// are written, or at once if remaining is empty. The caller holds mu.
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

// writeQueued writes up to maxDirectBlocks queued blocks on the caller's goroutine, so that a
// message needs no switch of goroutines. It stops when the stream fails or does not accept all
// bytes at once, or when another goroutine is writing. It leaves all blocks to the goroutine of
// run, which writes several messages at once, if more is true, if this end has received no message
// since the last call, or if it received several at a time. It does nothing if no block is queued, or
// if messages are written straight from their own memory to shared memory. It returns no
// error: run gets the error of the stream. The caller holds mu, which is released during the writes.
func (o *nativeWriter) writeQueued(more bool) {
	r := &o.pipe.in.stream
	before := o.answered
	o.answered = r.arrivals.Load()
	if o.zeroCopy() || o.blocks.Len() == 0 {
		return
	}
	if o.answered == before || r.arrivedInBatch.Load() || more {
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

// tryWrite writes or enqueues m without blocking, if m can be copied now: all parts are inline,
// none is to be compressed, and the budgets and the quota allow it. taken is true if m was
// accepted; its memory may then be reused. If taken is false and err is nil, send may still accept
// m. err is not nil if m cannot be sent at all or the pipe accepts no further messages.
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
