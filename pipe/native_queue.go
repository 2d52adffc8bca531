package pipe

import (
	"errors"
	"math"
	"net"
	"os"
	"runtime"
	"slices"
	"time"
)

// blockSize bounds the bytes of small messages that share one write.
const blockSize = 64 << 10

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

// run writes the queued blocks in order until the writer is stopped or the stream fails. It runs on a
// goroutine of the pipe.
//
// If the stream fails, run writes no further bytes, because a message is incomplete, and calls
// streamFailed. It leaves the blocks in o.unfinished, and stopWriting releases them with the pipe's
// error. If the writer has been stopped before, run releases the blocks itself, with the error of
// the stop.
func (o *nativeWriter) run() {
	for blocks := o.next(); len(blocks) > 0; blocks = o.next() {
		written, err := o.writeBlocks(blocks)
		o.mu.Lock()
		for _, b := range blocks[:written] {
			o.recycle(b, nil)
		}
		switch blocks = blocks[written:]; {
		case err == nil:
			o.blocksDone(nil)
		case o.stopped != nil:
			o.blocksDone(o.stopped, blocks...)
		default:
			for _, b := range blocks {
				if b.borrowed != nil {
					b.borrowed.state = opQueued // the run loop no longer uses it
				}
			}
			o.unfinished = append(o.unfinished, blocks...)
			o.writing = len(o.unfinished) > 0
		}
		clear(o.turn)
		o.mu.Unlock()
		if err != nil {
			o.pipe.streamFailed("message", err)
			return
		}
	}
}

// turnBytes bounds the bytes of blocks that are written by one call, except for one long block. The
// operations of their messages end together.
const turnBytes = 256 << 10

// next blocks until there are blocks to write and returns them: those of o.unfinished or, if no other
// goroutine is writing, the first ones of the queue: one if the stream does not gather, or is in shared
// memory, where one call is not faster. It sets o.writing, which blocksDone clears. Once the writer is
// stopped it returns none. The result is valid until the next call.
func (o *nativeWriter) next() []*block {
	for {
		o.mu.Lock()
		stopped := o.stopped != nil
		o.turn = o.turn[:0]
		if !stopped && (len(o.unfinished) > 0 || !o.writing) {
			o.takeTurn()
		}
		o.mu.Unlock()
		if len(o.turn) > 0 || stopped {
			return o.turn
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

// takeTurn moves blocks to o.turn, and sets o.writing if there are any. The caller holds mu.
func (o *nativeWriter) takeTurn() {
	o.turn = append(o.turn, o.unfinished...)
	clear(o.unfinished)
	o.unfinished = o.unfinished[:0]
	size := 0
	for _, b := range o.turn {
		size += b.size()
	}
	for o.blocks.Len() > 0 && (len(o.turn) == 0 || o.gatherer != nil && o.shared == nil) {
		b := *o.blocks.At(0)
		if size += b.size(); size > turnBytes && len(o.turn) > 0 {
			break
		}
		if b.borrowed != nil {
			b.borrowed.state = opStarted
		}
		o.turn = append(o.turn, o.blocks.Pop())
	}
	o.writing = len(o.turn) > 0
}

// writeBlocks writes blocks, also the bytes that are borrowed from messages. It returns the number of
// blocks that were written completely: all if the stream does not fail, with whose error it returns
// otherwise. While it writes, borrowedWrite.cancelLocked may recall the borrowed memory of a message by
// a write deadline in the past. writeBlocks then copies the remaining bytes of that message, ends the
// operation of its memory, removes the deadline and continues with the copy. The deadline may also
// have been set for an earlier block; it is then only removed. It locks mu for this.
func (o *nativeWriter) writeBlocks(blocks []*block) (written int, err error) {
	for {
		pieces := o.gathered[:0]
		for _, b := range blocks[written:] {
			pieces = b.appendPieces(pieces)
		}
		o.gathered = pieces
		n, err := o.writePieces(pieces)
		clear(o.gathered)
		if err == nil {
			return len(blocks), nil
		}
		o.mu.Lock()
		for written < len(blocks) && n >= blocks[written].size() {
			n -= blocks[written].size()
			blocks[written].endBorrow(nil)
			written++
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			o.mu.Unlock()
			return written, err
		}
		_ = o.stream.SetWriteDeadline(time.Time{}) // a write returns the error of a broken stream
		for _, b := range blocks[written:] {
			b.skip(n)
			n = 0
			if b.borrowed != nil && b.borrowed.recalled {
				b.copyBorrowed()
			}
		}
		o.mu.Unlock()
	}
}

// writePieces writes pieces in order, by one call if the stream gathers, and returns the number of
// bytes written and the error of the stream. It may change the elements of pieces.
func (o *nativeWriter) writePieces(pieces net.Buffers) (n int, err error) {
	if o.gatherer != nil {
		written, err := o.gatherer.WriteBuffers(&pieces)
		return int(written), err
	}
	for _, p := range pieces {
		k, err := o.stream.Write(p)
		if n += k; err != nil {
			return n, err
		}
	}
	return n, nil
}

// blocksDone releases blocks that the caller has written or given up, and clears o.writing, so that the
// next ones can be taken. If a block borrows memory of a message, the operation of that memory ends
// with err. It wakes goroutines that wait until the writer is idle. The caller holds mu.
func (o *nativeWriter) blocksDone(err error, blocks ...*block) {
	o.writing = false
	for _, b := range blocks {
		o.recycle(b, err)
	}
	o.signalIdle()
}

// recycle releases b's share of the budgets and its bytes of the quota, and returns b to the pool
// of blocks unless it is large. If b borrows memory of a message, the operation of that memory ends
// with err, nil for success. The caller holds mu.
func (o *nativeWriter) recycle(b *block, err error) {
	b.endBorrow(err)
	o.budget.releaseShare(b.share)
	o.pipe.account.Release(b.share.own)
	if cap(b.data) <= 2*blockSize {
		*b = block{data: b.data[:0]}
		o.pipe.context.blocks.Put(b)
	}
}

// writeOrEnqueue writes or enqueues the descriptor and the inline parts of m, which o.frame
// describes. forms has the compressed forms of m's parts, nil if there are none. share is m's share
// of the budgets, which is released when all bytes are written. The caller holds mu, and must then
// call writeQueued.
//
// If o.direct() is false or forms is not nil, it copies all bytes to the queue and returns nil.
// Otherwise it first writes straight from m's memory as much as the stream accepts without
// blocking, unless other bytes are queued. Then it passes the remaining bytes and borrowFrom to
// enqueueRemaining, and returns the result of that.
func (o *nativeWriter) writeOrEnqueue(m *Message, forms *compressedForms, borrowFrom int, share budgetShare) *WriteOp {
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
	op := o.enqueueRemaining(m, remaining, borrowFrom, share)
	runtime.KeepAlive(m) // a Buffer's owner keeps its memory alive, its segments do not
	clear(o.pieces)
	o.head = kept(o.head)
	return op
}

// zeroCopy reports whether messages are written straight from their own memory: the stream is in
// shared memory, and Options.Checksum is not set.
func (o *nativeWriter) zeroCopy() bool { return o.shared != nil && !o.pipe.context.opts.Checksum }

// borrowFrom returns the size from which a piece of memory that cannot be sent at once is borrowed until
// it is, and not copied. In shared memory only those are that are too many to copy. Over TCP Write
// does not wait for the peer, so it borrows nothing.
func (o *nativeWriter) borrowFrom(async bool) int {
	switch {
	case o.gatherer == nil || o.pipe.context.opts.Checksum:
		return neverBorrow
	case o.shared != nil:
		return maxInlinePart + 1
	case async:
		return directBytes
	}
	return neverBorrow
}

// neverBorrow is longer than any piece.
const neverBorrow = math.MaxInt

// directBytes is the size from which the inline parts of a message are written straight from its
// memory, or borrowed, for a stream that is not in shared memory. Smaller messages may share a write, and more than maxDirectParts parts are copied in less time than the kernel gathers them.
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
	return (o.gatherer != nil || !o.writing && o.blocks.Len() == 0) &&
		o.frame.EncodedSize()-len(o.frame.Metadata) >= directBytes && // metadata is copied in any case
		len(o.frame.Payloads)+len(o.frame.Tensors) <= maxDirectParts
}

// maxWritePolls bounds how often a message is continued when the stream has room again, so that a
// slow peer does not keep the writer spinning.
const maxWritePolls = 128

// enqueueRemaining enqueues the bytes of remaining, pieces of m's frame and memory, for the
// goroutine of run. If a piece has borrowFrom bytes or more, the bytes of m's memory are not copied, and
// the result is the operation that ends when this memory may be reused. Otherwise all are copied, and
// the result is nil. share, m's share of the budgets, is released when the bytes
// are written, or at once if remaining is empty. The caller holds mu.
func (o *nativeWriter) enqueueRemaining(m *Message, remaining [][]byte, borrowFrom int, share budgetShare) *WriteOp {
	if len(remaining) == 0 {
		o.budget.releaseShare(share)
		return nil
	}
	defer o.signal()
	if slices.ContainsFunc(remaining, func(p []byte) bool { return len(p) >= borrowFrom }) {
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
		if (*o.blocks.At(0)).borrowed != nil {
			break
		}
		b := o.blocks.Pop()
		o.writing = true
		o.mu.Unlock()
		o.directBuf[0] = b.data
		n, err := o.stream.TryWrite(o.directBuf[:]...)
		o.mu.Lock()
		switch {
		case err == nil && n == len(b.data), o.stopped != nil:
			o.blocksDone(o.stopped, b)
		default:
			b.data = append(b.data[:0], b.data[n:]...)
			o.unfinished = append(o.unfinished, b) // the run loop gets an error again
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
	o.writeOrEnqueue(m, nil, neverBorrow, o.settleCost(&size, nil))
	o.writeQueued(m.More)
	return true, nil
}
