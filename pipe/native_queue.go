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

// blockFor returns a block of the queue to which n bytes are to be appended: the last one if they
// fit in it, and otherwise a new one. The caller holds mu.
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

// chargeBlock moves the share s of the budgets to b, which releases it when it is written, and
// counts its bytes in the account of an unadmitted peer. It does not wait for the quota; send does.
func (o *nativeWriter) chargeBlock(b *block, s budgetShare) {
	b.share.add(s)
	o.pipe.account.Add(s.own)
}

// run writes blocks, one after the other, until the writer is stopped or the stream fails. It runs on a
// goroutine of the pipe.
//
// After an error no further bytes may be written, because a message is incomplete. The block stays in
// unfinished until stopWriting releases it with the pipe's error. If the writer is stopped already, run
// releases the block with the error of the stop.
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

// next waits for a block to write and takes it: an unfinished one, or the first of the queue if no
// other goroutine is writing. writing is then set until blockDone. It returns nil once the writer is
// stopped.
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

// writeBlock writes a block and returns the error of the stream. borrowedWrite.cancelLocked sets a
// write deadline in the past so that borrowed memory is released. writeBlock then ends the operation of
// that memory and continues with a copy of the bytes. The deadline may also have been set for an
// earlier block.
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

// blockDone releases a block for which writing was set. If the block borrows memory, the operation of
// that memory ends with err. The caller holds mu.
func (o *nativeWriter) blockDone(b *block, err error) {
	o.writing = false
	o.recycle(b, err)
	o.signalIdle()
}

// recycle releases a block, its share of the budgets and its bytes in the account. If the block borrows
// memory, the operation of that memory ends with err. The caller holds mu.
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

// cancelLocked implements canceler. It releases the message's memory early; the message is still
// sent, from a copy of the remaining bytes, and the operation ends without an error.
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
