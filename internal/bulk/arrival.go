package bulk

import (
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
)

// stageAfter is how long bytes without memory stay in the connection. It is far more than a
// reader needs from one message to the next, and less than the time after which a system ends a
// connection that accepts nothing.
const stageAfter = 100 * time.Millisecond

// arrival is an eager transfer of the peer. It exists from its first chunk or from Expect, whichever
// comes first, until its last chunk has come, it is expected, and its bytes were received or dropped.
// It is guarded by Mover.mu.
type arrival struct {
	key      transferKey
	length   int         // 0 until Expect
	charged  int         // bytes of the credit: those of its chunks, also of one that is being read, or length
	moved    int         // bytes of its chunks so far
	op       *transferOp // the Recv, nil if there is none
	received bool        // the Recv has completed
	dropped  bool        // the bytes are not wanted
	voided   bool        // the peer has aborted it
	waiting  bool        // the peer does not have credit for it yet

	// buf[from:to] has the bytes that were staged and are not in the memory of op. The reader may be
	// writing to buf[to:].
	buf      []byte
	from, to int
}

// Expect announces an eager transfer of the peer of length bytes, with that id on that lane, in the order of
// the peer's calls of SendEager. Its bytes are kept until Recv, or until Abort of the lane drops them. The error matches
// channel.ErrProtocol: the length is not that of an eager transfer, the peer has not been granted that much
// credit, or bytes have come before that it must not have sent.
func (m *Mover) Expect(number uint16, id uint64, length int) error {
	err := m.expect(transferKey{number, id}, length)
	m.returnCredit()
	return err
}

func (m *Mover) expect(key transferKey, length int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return nil // the pipe ends too
	}
	if length < native.MinEager || length > native.MaxEager {
		return fmt.Errorf("%w: an eager transfer of %d bytes, want %d..%d", channel.ErrProtocol, length, native.MinEager, native.MaxEager)
	}
	a := m.arrivalOf(key)
	switch {
	case a.length > 0:
		return fmt.Errorf("%w: transfer %d of lane %d is announced twice", channel.ErrProtocol, key.id, key.lane)
	case a.charged > length:
		return fmt.Errorf("%w: %w", channel.ErrProtocol, &channel.LengthError{Want: int64(length), Got: int64(a.charged)})
	}
	if length > m.checked.granted {
		return m.checked.use(length)
	}
	a.length = length
	if m.checked.queue.claim(creditClaim{length: length, arrival: a}) {
		return m.charge(a, length)
	}
	if a.waiting = true; m.checked.queue.waiting.Len() > native.MaxWaiting {
		return fmt.Errorf("%w: more than %d eager transfers wait for credit", channel.ErrProtocol, native.MaxWaiting)
	}
	return a.checkCredit()
}

// checkCredit returns an error that matches channel.ErrProtocol if bytes of a have come, although the peer had no credit for
// them. The caller holds mu.
func (a *arrival) checkCredit() error {
	if a.waiting && a.charged > 0 {
		return fmt.Errorf("%w: bytes of transfer %d of lane %d before there was credit for them", channel.ErrProtocol, a.key.id, a.key.lane)
	}
	return nil
}

// arrivalOf returns the arrival with that key, a new one if there is none. The caller holds mu.
func (m *Mover) arrivalOf(key transferKey) *arrival {
	a := m.arrivals[key]
	if a == nil {
		a = &arrival{key: key}
		if m.arrivals == nil {
			m.arrivals = make(map[transferKey]*arrival)
		}
		m.arrivals[key] = a
	}
	return a
}

// charge raises the bytes that a takes from the credit to n. The caller holds mu.
func (m *Mover) charge(a *arrival, n int) error {
	err := m.checked.use(max(n-a.charged, 0))
	if err == nil {
		a.charged = max(n, a.charged)
	}
	return err
}

// arrive returns the arrival to which the eager chunk h belongs. An error means that the chunk is
// longer than its transfer or than the credit, or that the Mover has ended.
func (m *Mover) arrive(h native.ChunkHeader) (*arrival, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return nil, m.lifecycle.Err()
	}
	a := m.arrivalOf(transferKey{h.Lane, h.ID})
	n, limit := a.moved+h.Length, native.MaxEager
	if a.length > 0 {
		limit = a.length
	}
	switch {
	case a.length == 0 && m.checked.queue.waiting.Len() > 0: // those that wait precede it
		return nil, fmt.Errorf("%w: transfer %d of lane %d begins before those that wait for credit", channel.ErrProtocol, h.ID, h.Lane)
	case a.voided:
		return nil, fmt.Errorf("%w: a chunk after the end of transfer %d of lane %d", channel.ErrProtocol, h.ID, h.Lane)
	case n > limit:
		return nil, fmt.Errorf("%w: %w", channel.ErrProtocol, &channel.LengthError{Want: int64(limit), Got: int64(n)})
	}
	// A transfer that is not expected yet counts as the smallest one at least, so that the peer
	// cannot begin many.
	if err := m.charge(a, max(n, native.MinEager)); err != nil {
		return a, err
	}
	return a, a.checkCredit()
}

// place is where the bytes of an eager chunk go.
type place int

const (
	placeUnknown place = iota
	placeMemory        // the memory of a Recv
	placeStaging
	placeNowhere
)

// placeOf returns where the next bytes of a go: placeUnknown while they can stay in the connection,
// which ends when late is true. With placeMemory the Recv is active. The caller holds mu.
func (m *Mover) placeOf(a *arrival, late bool) place {
	switch {
	case a.dropped:
		return placeNowhere
	case a.op != nil && a.op.memoryReady:
		a.op.active = true
		return placeMemory
	case late, a.to > a.from, m.othersWait():
		return placeStaging
	}
	return placeUnknown
}

// othersWait reports whether the memory of some Recv is waiting for bytes of the stream. The caller
// holds mu.
func (m *Mover) othersWait() bool {
	for _, op := range m.in.ops {
		if op.memoryReady {
			return true
		}
	}
	return false
}

// signalReader wakes the reader if it waits in awaitPlace. The caller holds mu.
func (m *Mover) signalReader() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// check returns nil if a Recv of n bytes can receive a. The caller holds Mover.mu.
func (a *arrival) check(n int) error {
	switch {
	case a.dropped || a.op != nil || a.received:
		return fmt.Errorf("%w: it was dropped", channel.ErrAborted)
	case n != a.length:
		return &channel.LengthError{Want: int64(n), Got: int64(a.length)}
	}
	return nil
}

// stagingBuffer returns the memory for the next n bytes of a. The caller holds mu.
func (a *arrival) stagingBuffer(n int) []byte {
	if end := a.to + n; end > len(a.buf) {
		size := a.length
		if size == 0 {
			size = min(max(end, 2*len(a.buf)), native.MaxEager)
		}
		buf := make([]byte, size)
		copy(buf[a.from:], a.buf[a.from:a.to])
		a.buf = buf
	}
	return a.buf[a.to:][:n]
}

// supply moves the staged bytes of op's arrival to the memory of op, a Recv, which may be written
// to. It reports true if op has ended, and its error; the caller must then complete op. The caller
// holds mu.
func (m *Mover) supply(op *transferOp) (ended bool, err error) {
	a := op.arrival
	for _, p := range op.next(a.to - a.from).AppendSegments(nil) {
		a.from += copy(p, a.buf[a.from:a.to])
		op.moved += len(p)
	}
	if a.voided {
		err = m.wrapError(channel.ErrAborted)
	} else if op.moved < op.Buf.Len() {
		return false, nil
	}
	m.in.remove(op)
	a.received = true
	m.settle(a)
	return true, err
}

// drop makes the mover drop the bytes of a, also those that will come. The caller holds mu.
func (m *Mover) drop(a *arrival) {
	a.dropped, a.op, a.buf = true, nil, nil
	a.from, a.to = 0, 0
	m.settle(a)
	m.signalReader()
}

// settle forgets a if nothing is left to do, and counts its bytes as those that the peer gets back.
// The caller holds mu and then calls returnCredit without it.
func (m *Mover) settle(a *arrival) {
	ended := a.length > 0 && (a.voided || a.moved == a.length)
	if ended && (a.received || a.dropped) && m.arrivals[a.key] == a {
		delete(m.arrivals, a.key)
		m.checked.owed += a.charged
	}
}

// chunkArrived records that the next n bytes of a have been read: to the memory of op, a Recv, to
// staged, memory of stagingBuffer, or nowhere if both are nil. If void is true, they are not valid
// and a has ended.
func (m *Mover) chunkArrived(a *arrival, op *transferOp, staged []byte, n int, void bool) {
	m.mu.Lock()
	a.moved += n
	done, ended := op, false
	var err error
	switch {
	case void:
		a.voided = true
	case op != nil:
		ended = m.advance(&m.in, op, n)
		a.received = a.received || ended
	case staged != nil && !a.dropped:
		a.to += n
	}
	if waiting := a.op; !ended && waiting != nil && waiting.memoryReady && (void || staged != nil) {
		done = waiting
		ended, err = m.supply(waiting)
	}
	m.settle(a)
	m.mu.Unlock()
	if ended {
		m.complete(done, err)
	}
	m.returnCredit()
}

// eagerChunk reads the bytes and the trailer of the eager chunk h: to the memory of the Recv, or to
// a staging buffer if none comes or if others wait for bytes that follow. The error ends the Mover.
func (r *reader) eagerChunk(h native.ChunkHeader) error {
	a, err := r.m.arrive(h)
	if err != nil {
		return err
	}
	op, staged, err := r.awaitPlace(a, h.Length)
	if err != nil {
		return err
	}
	t, _, err := r.rest(op, staged, h)
	if err != nil {
		return err
	}
	r.m.chunkArrived(a, op, staged, h.Length, t.Discarded)
	return nil
}

// awaitPlace waits until it is known where the next n bytes of a go: to the memory of op, which is
// then active, to staged, or nowhere if both are nil. The error is that of the Mover, if it has
// ended.
func (r *reader) awaitPlace(a *arrival, n int) (op *transferOp, staged []byte, err error) {
	var timeout <-chan time.Time
	late := false
	for {
		r.m.mu.Lock()
		where := r.m.placeOf(a, late)
		switch where {
		case placeMemory:
			op = a.op
		case placeStaging:
			staged = a.stagingBuffer(n)
		}
		r.m.mu.Unlock()
		if where != placeUnknown {
			return op, staged, nil
		}
		if timeout == nil {
			timeout = r.startTimer()
			defer r.timer.Stop()
		}
		select {
		case <-r.m.changed:
		case <-timeout:
			late = true
		case <-r.m.lifecycle.Context().Done():
			return nil, nil, r.m.lifecycle.Err()
		}
	}
}

// startTimer returns a channel that receives a value after stageAfter.
func (r *reader) startTimer() <-chan time.Time {
	if r.timer == nil {
		r.timer = time.NewTimer(stageAfter)
	} else {
		r.timer.Reset(stageAfter)
	}
	return r.timer.C
}
