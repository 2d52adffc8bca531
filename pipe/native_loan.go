package pipe

import (
	"slices"
	"time"
)

// loan is the memory of a message that is being written from where it lies: too much
// to be copied because the stream has no room just now. It is guarded by
// nativeOutbox.mu.
type loan struct {
	watchedOp
	msg      *Message // whose memory it is
	pieces   [][]byte
	block    *block
	begun    bool // the run loop writes it
	recalled bool
}

// lend leaves to the run loop what is left of a message, the last of o.pieces.
func (o *nativeOutbox) lend(m *Message, left [][]byte, room share) *watchedOp {
	b := o.pipe.context.blocks.Get().(*block)
	if len(left) == len(o.pieces) { // the first is the head, which is overwritten
		b.data = append(b.data, left[0]...)
		left = left[1:]
	}
	o.queue(b, room)
	b.loan = &loan{msg: m, pieces: slices.Clone(left), block: b}
	b.loan.init(o, b.loan)
	b.loan.expireAt(m.Deadline)
	o.blocks.Push(b)
	return &b.loan.watchedOp
}

// lent is the memory that follows the block's own, for the run loop.
func (b *block) lent() [][]byte {
	if b.loan == nil {
		return nil
	}
	return b.loan.pieces
}

// cancel implements canceler: the message leaves all the same, from a copy, as if it
// had been copied at once.
func (l *loan) cancel(error) {
	l.out.mu.Lock()
	defer l.out.mu.Unlock()
	switch {
	case l.ended || l.recalled:
	case l.begun:
		l.recalled = true
		_ = l.out.stream.SetWriteDeadline(time.Unix(1, 0)) // who cannot is ended by Write
	default:
		l.block.data, l.block.loan = joined(l.block.data, l.pieces), nil
		l.end()
	}
}

// joined is data and the pieces behind it.
func joined(data []byte, pieces [][]byte) []byte {
	for _, p := range pieces {
		data = append(data, p...)
	}
	return data
}
