package pipe

import (
	"errors"
	"os"
	"runtime"
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

// borrowedWrite is the operation of a message whose remaining bytes are written from its own
// memory, because they are too many to copy. It is started while the run loop writes it. It is
// guarded by mu of the sender.
type borrowedWrite struct {
	WriteOp
	out      *nativeWriter
	pieces   [][]byte
	block    *block
	recalled bool
}

// cancelLocked implements canceler: it gives the message's memory back early. The message is still
// sent, from a copy of the remaining bytes, so the operation ends without an error and the argument
// is not used. If the run loop is writing the block, it makes the copy a moment later. The caller
// holds mu of the sender.
func (l *borrowedWrite) cancelLocked(error) {
	switch {
	case l.recalled:
	case l.state == opStarted:
		l.recalled = true
		_ = l.out.stream.SetWriteDeadline(time.Unix(1, 0)) // if that fails, so does Write
	default:
		l.block.data, l.block.borrowed = appendAll(l.block.data, l.pieces), nil
		l.complete()
	}
}

// appendAll appends copies of all pieces to data and returns the extended slice.
func appendAll(data []byte, pieces [][]byte) []byte {
	for _, p := range pieces {
		data = append(data, p...)
	}
	return data
}
