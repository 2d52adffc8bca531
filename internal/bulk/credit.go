package bulk

import (
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
)

// maxCredit bounds the credit that a peer can grant.
const maxCredit = 1 << 30

// credit has the bytes that the peer has granted to this end for eager transfers. It is guarded by
// Mover.mu.
type credit struct {
	granted  bool
	free     int           // bytes that can be reserved
	lent     int           // reserved bytes that the peer has not returned
	returned chan struct{} // made by Returned, closed when lent is 0
}

// Reserve takes n bytes of the credit that the peer has granted, and reports whether they were
// there. The caller must then call SendEager for a transfer of n bytes.
func (m *Mover) Reserve(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &m.credit
	if n > c.free || m.ended {
		return false
	}
	c.free -= n
	c.lent += n
	return true
}

// Credit returns the number of bytes that Reserve can take.
func (m *Mover) Credit() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.credit.free
}

// SendEager is Send of the lane with that number, for a transfer that does not wait for the peer's
// READY. The caller has reserved the bytes of src. Such a transfer ends at the peer too: if it is
// aborted, a discarded chunk follows.
func (m *Mover) SendEager(number uint16, id uint64, src device.Buffer, done func(error)) {
	l := m.Lane(number).(*lane)
	l.begin(&m.out, id, src, done, true)
}

// HandleCredit records that the peer grants n bytes or, from the second call on, returns them. If n
// is more than this end can have, the error matches channel.ErrProtocol.
func (m *Mover) HandleCredit(n uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &m.credit
	limit := maxCredit
	if c.granted {
		limit = c.lent
	}
	if n > uint64(limit) {
		return fmt.Errorf("%w: credit of %d bytes, at most %d", channel.ErrProtocol, n, limit)
	}
	if c.granted {
		c.lent -= int(n)
	}
	c.granted = true
	c.free += int(n)
	m.signalReturned()
	return nil
}

// Returned returns a channel that is closed once the peer has returned all bytes that were reserved,
// so that it has read or dropped all eager transfers. The caller must reserve no more.
func (m *Mover) Returned() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.credit.returned == nil {
		m.credit.returned = make(chan struct{})
		m.signalReturned()
	}
	return m.credit.returned
}

// Lent reports whether the peer has not returned all bytes that were reserved.
func (m *Mover) Lent() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.credit.lent > 0
}

// ForgetCredit ends the use of credit, because the peer has closed its end and returns nothing.
func (m *Mover) ForgetCredit() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.credit.free, m.credit.lent = 0, 0
	m.signalReturned()
}

// signalReturned closes the channel of Returned if all bytes are returned. The caller holds mu.
func (m *Mover) signalReturned() {
	if c := &m.credit; c.returned != nil && c.lent == 0 && !isClosed(c.returned) {
		close(c.returned)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// LaneOf returns the number of c and true if c is a lane of m.
func (m *Mover) LaneOf(c channel.Channel) (number uint16, ok bool) {
	l, ok := c.(*lane)
	if !ok || l.m != m {
		return 0, false
	}
	return l.number, true
}

// voidBody is the body of the chunk with which an aborted eager transfer ends.
var voidBody = make([]byte, 1)

// endEager queues a discarded chunk that ends op, a cancelled eager Send, unless all its bytes were
// sent. The caller holds mu.
func (m *Mover) endEager(op *transferOp) {
	if op.moved == op.Buf.Len() || m.ended {
		return
	}
	t := transfer.Transfer{ID: op.ID, Buf: device.Bytes(voidBody)}
	m.queue(&transferOp{Transfer: t, lane: op.lane, eager: true, void: true})
}

// leaveTurn records that no chunk of op, a Send, is being written any more. The caller holds mu.
func (m *Mover) leaveTurn(op *transferOp) {
	op.inTurn = false
	if op.eager && !op.void && !m.out.has(op) {
		m.endEager(op)
	}
}

// checkedCredit is the credit that this end has granted, and the part that the peer has used. It is
// guarded by Mover.mu.
type checkedCredit struct {
	granted int
	spent   int  // bytes of arrivals, and owed
	owed    int  // bytes of arrivals that have ended, to be returned
	prompt  bool // the peer has asked for them
}

// use spends n bytes of the credit. If the peer does not have them, the error matches
// channel.ErrProtocol.
func (c *checkedCredit) use(n int) error {
	if n > c.granted-c.spent {
		return fmt.Errorf("%w: eager transfers of %d bytes, with a credit of %d", channel.ErrProtocol, c.spent+n, c.granted)
	}
	c.spent += n
	return nil
}

// takeOwed returns the number of bytes that are to be returned to the peer now, 0 if none.
func (c *checkedCredit) takeOwed() int {
	n := c.owed
	if !c.prompt && n < c.granted/4 {
		return 0
	}
	c.owed = 0
	c.spent -= n
	return n
}

// Grant grants the peer n bytes of credit for eager transfers, which bounds the memory for bytes
// that arrive before they are wanted. It is called at most once, with n of at least
// native.MinEager.
func (m *Mover) Grant(n int) {
	m.mu.Lock()
	m.checked.granted = n
	m.mu.Unlock()
	m.cfg.Credit(n)
}

// HandleWantCredit makes the mover return bytes of eager transfers as soon as they have ended.
func (m *Mover) HandleWantCredit() {
	m.mu.Lock()
	m.checked.prompt = true
	m.mu.Unlock()
	m.returnCredit()
}

// returnCredit returns bytes of eager transfers that have ended to the peer, unless these are few.
// The caller does not hold mu.
func (m *Mover) returnCredit() {
	m.mu.Lock()
	n := m.checked.takeOwed()
	m.mu.Unlock()
	if n > 0 {
		m.cfg.Credit(n)
	}
}
