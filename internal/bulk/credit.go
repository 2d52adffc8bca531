package bulk

import (
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
)

// maxCredit bounds the credit that a peer can grant.
const maxCredit = 1 << 30

// credit has the bytes that the peer has granted to this end for eager transfers. It is guarded by
// Mover.mu.
type credit struct {
	granted  int           // by the first HandleCredit
	queue    creditQueue   // of Sends
	lent     int           // bytes of Sends that have begun, which the peer has not returned
	returned chan struct{} // made by Returned, closed when lent is 0
}

// CanSendEager reports whether SendEager may be called for a transfer of n bytes, after others for which it has not been
// called yet: the peer has granted that much, and few transfers wait.
func (m *Mover) CanSendEager(n, others int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return n <= m.credit.granted && m.credit.queue.waiting.Len()+others < native.MaxWaiting
}

// Credit returns the number of bytes of eager transfers that would begin at once.
func (m *Mover) Credit() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.credit.queue.waiting.Len() > 0 {
		return 0
	}
	return m.credit.queue.free
}

// SendEager is Send of the lane with that number, for a transfer that begins once the peer has returned
// enough credit, or supplies its memory (READY). The peer must call Expect for such transfers in the
// order of these calls. Each ends at the peer too: if it is aborted, a discarded chunk follows.
func (m *Mover) SendEager(number uint16, id uint64, src device.Buffer, done func(error)) {
	l := m.Lane(number).(*lane)
	l.begin(&m.out, id, src, done, true)
}

// claimCredit lets op, an eager Send, begin, or wait until there is credit. The caller holds mu.
func (m *Mover) claimCredit(op *transferOp) {
	n := op.Buf.Len()
	if op.peerReady = m.credit.queue.claim(creditClaim{length: n, op: op}); op.peerReady {
		m.credit.lent += n
	}
}

// beginSends lets the Sends begin for which there is credit now. The caller holds mu.
func (m *Mover) beginSends() {
	for {
		claim, ok := m.credit.queue.next()
		if !ok {
			return
		}
		op := claim.op
		m.credit.lent += claim.length
		if op.peerReady = true; op.memoryReady {
			m.queue(op)
		}
	}
}

// stopWaiting takes the eager Send with that key out of those that wait for credit, because READY has come. It is
// not eager any more. If it was cancelled, a discarded chunk answers READY. The caller holds mu.
func (m *Mover) stopWaiting(key transferKey) {
	var op *transferOp
	if !m.credit.queue.waiting.Remove(func(c creditClaim) bool { op = c.op; return op.key() == key }) {
		return
	}
	if op.eager = false; op.void {
		m.queue(op)
	}
	m.beginSends()
}

// HandleCredit records that the peer grants n bytes or, from the second call on, returns them. If n
// is more than this end can have, the error matches channel.ErrProtocol.
func (m *Mover) HandleCredit(n uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &m.credit
	limit := maxCredit
	if c.granted > 0 {
		limit = c.lent
	}
	if n > uint64(limit) {
		return fmt.Errorf("%w: credit of %d bytes, at most %d", channel.ErrProtocol, n, limit)
	}
	if c.granted > 0 {
		c.lent -= int(n)
	} else {
		c.granted = int(n)
	}
	c.queue.free += int(n)
	m.beginSends()
	m.signalReturned()
	return nil
}

// Returned returns a channel that is closed once the peer has returned the bytes of all eager transfers that have
// begun, so that it has read or dropped them. The caller must begin no more.
func (m *Mover) Returned() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.credit.returned == nil {
		m.credit.returned = make(chan struct{})
		m.signalReturned()
	}
	return m.credit.returned
}

// Lent reports whether the peer has not returned all bytes of eager transfers.
func (m *Mover) Lent() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.credit.lent > 0
}

// ForgetCredit ends the use of credit, because the peer has closed its end and returns nothing.
func (m *Mover) ForgetCredit() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.credit.granted, m.credit.queue, m.credit.lent = 0, creditQueue{}, 0
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
// sent. If op waits for credit, the chunk waits in its place. The caller holds mu.
func (m *Mover) endEager(op *transferOp) {
	if op.moved == op.Buf.Len() || m.ended {
		return
	}
	t := transfer.Transfer{ID: op.ID, Buf: device.Bytes(voidBody)}
	void := &transferOp{Transfer: t, lane: op.lane, memoryReady: true, eager: true, void: true}
	if op.peerReady {
		m.queue(void)
		return
	}
	for i := range m.credit.queue.waiting.Len() {
		if c := m.credit.queue.waiting.At(i); c.op == op {
			c.op = void
		}
	}
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
	queue   creditQueue // of arrivals
	spent   int         // bytes of arrivals, and owed
	owed    int         // bytes of arrivals that have ended, to be returned
	prompt  bool        // the peer has asked for them
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

// giveBack returns the bytes that are owed to the peer. The caller holds mu, then calls Config.Credit with the result
// if that is not 0, and holds Mover.sending for both.
func (m *Mover) giveBack() int {
	c := &m.checked
	n := c.owed
	c.owed = 0
	c.spent -= n
	c.queue.free += n
	m.beginArrivals()
	return n
}

// beginArrivals records that the transfers begin for which the peer has credit now. The caller holds mu.
func (m *Mover) beginArrivals() {
	for {
		claim, ok := m.checked.queue.next()
		if !ok {
			return
		}
		a := claim.arrival
		a.waiting, a.charged = false, claim.length
		m.checked.spent += claim.length
	}
}

// Grant grants the peer n bytes of credit for eager transfers, which bounds the memory for bytes
// that arrive before they are wanted. It is called at most once, with n of at least
// native.MinEager.
func (m *Mover) Grant(n int) {
	m.mu.Lock()
	m.checked.granted, m.checked.queue.free = n, n
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

// returnCredit returns bytes of eager transfers that have ended to the peer, unless these are few and no transfer that
// waits could begin with them. The caller does not hold mu.
func (m *Mover) returnCredit() {
	m.sending.Lock()
	defer m.sending.Unlock()
	m.mu.Lock()
	n := 0
	if c := &m.checked; c.prompt || c.owed >= c.granted/4 || c.queue.beginsWith(c.owed) {
		n = m.giveBack()
	}
	m.mu.Unlock()
	if n > 0 {
		m.cfg.Credit(n)
	}
}

// request makes the peer send op, a Recv whose memory is ready, if it waits for credit. If the bytes
// that are owed do not suffice for it, the peer gets READY, and op is not eager any more. The caller
// does not hold mu.
func (m *Mover) request(op *transferOp) {
	m.sending.Lock()
	defer m.sending.Unlock()
	m.mu.Lock()
	waits := func() bool { return op.arrival != nil && op.arrival.waiting && m.in.has(op) }
	n, ready := 0, false
	if waits() {
		n = m.giveBack()
	}
	if waits() {
		a := op.arrival
		m.checked.queue.waiting.Remove(func(c creditClaim) bool { return c.arrival == a })
		delete(m.arrivals, a.key)
		op.arrival, ready = nil, true
		m.beginArrivals()
	}
	m.mu.Unlock()
	if n > 0 {
		m.cfg.Credit(n)
	}
	if ready {
		m.cfg.Ready(op.lane.number, op.ID)
	}
}
