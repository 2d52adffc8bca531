package pipe

import (
	"errors"
	"os"
	"runtime"
	"time"
)

// blockSize is how many bytes of small messages share one write.
const blockSize = 64 << 10

// block is some messages as they travel, and what they take of the budgets; or one
// message, or what is left of it, in memory that is lent.
type block struct {
	data []byte
	loan *loan // what follows data, nil if nothing
	room share
}

// blockFor finds room for n bytes behind what waits to be written.
func (o *nativeOutbox) blockFor(n int) *block {
	if o.blocks.Len() > 0 {
		if b := *o.blocks.At(o.blocks.Len() - 1); b.loan == nil && len(b.data)+n <= blockSize {
			return b
		}
	}
	b := o.pipe.context.blocks.Get().(*block)
	o.blocks.Push(b)
	return b
}

// queue has a block take a share of the budgets for bytes that were copied. A peer that is
// not admitted and does not take them in is charged for them; send waits while the quota
// is exceeded.
func (o *nativeOutbox) queue(b *block, s share) {
	b.room.add(s)
	o.pipe.account.Add(s.own)
}

func (o *nativeOutbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// run writes the blocks, in order.
func (o *nativeOutbox) run() {
	for b := o.next(); b != nil; b = o.next() {
		err := o.writeBlock(b)
		o.wrote(b, err)
		if err != nil {
			o.pipe.sessionEnded("message", err)
			return
		}
	}
}

// next waits for a block. It returns nil when there will be none.
func (o *nativeOutbox) next() *block {
	for {
		if b, stopped := o.take(); b != nil || stopped {
			return b
		}
		select {
		case <-o.wake:
			o.gather()
		case <-o.halted:
		}
	}
}

// gather lets others run first who are about to write, where messages are to leave
// together.
func (o *nativeOutbox) gather() {
	if o.gathering.Swap(false) {
		runtime.Gosched()
	}
}

func (o *nativeOutbox) take() (b *block, stopped bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped != nil {
		return nil, true
	}
	if b := o.rest; b != nil {
		o.rest = nil
		return b, false
	}
	if o.writing || o.blocks.Len() == 0 {
		return nil, false
	}
	o.writing = true
	b = o.blocks.Pop()
	if b.loan != nil {
		b.loan.begun = true
	}
	return b, false
}

// writeBlock writes a block. A deadline of the stream is how a loan is called back,
// be it one that is through by now.
func (o *nativeOutbox) writeBlock(b *block) error {
	data, pieces := b.data, b.lent()
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
		data, pieces = o.returned(b, data, pieces)
	}
}

// returned gives a loan back that was called back: what is left of it is copied.
func (o *nativeOutbox) returned(b *block, data []byte, pieces [][]byte) (rest []byte, lent [][]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = o.stream.SetWriteDeadline(time.Time{}) // who cannot is told by Write
	if b.loan == nil || !b.loan.recalled {
		return data, pieces
	}
	rest = joined(data, pieces)
	b.loan.end()
	b.loan = nil
	return rest, nil
}

// wrote is the end of a block that was written. One that could not be waits for stop,
// which knows why; nothing is written behind a part of it.
func (o *nativeOutbox) wrote(b *block, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil && o.stopped == nil {
		if b.loan != nil {
			b.loan.begun = false // nobody touches it any more
		}
		o.rest = b
		return
	}
	o.writing = false
	if err != nil {
		err = o.stopped
	}
	o.recycle(b, err)
	o.settle()
}

// recycle gives a block and its share of the budgets back. A loan within it ends with
// err.
func (o *nativeOutbox) recycle(b *block, err error) {
	if b.loan != nil {
		b.loan.err = err
		b.loan.end()
	}
	o.room.giveBack(b.room)
	o.pipe.account.Release(b.room.own)
	if cap(b.data) <= 2*blockSize {
		*b = block{data: b.data[:0]}
		o.pipe.context.blocks.Put(b)
	}
}
