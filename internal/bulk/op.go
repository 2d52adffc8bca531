package bulk

import (
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
)

// transferKey identifies a transfer within one direction.
type transferKey struct {
	lane uint16
	id   uint64
}

// transferOp is one Send or Recv. Fields that are not constant are guarded by Mover.mu.
type transferOp struct {
	transfer.Transfer // constant
	lane              *lane
	moved             int      // bytes in valid chunks so far
	memoryReady       bool     // the work of the memory's stream has completed
	peerReady         bool     // of a Send: the peer has sent READY, or there is credit for it
	active            bool     // the reader, or the writer, is using its memory
	eager             bool     // of a Send: it begins when there is credit; constant once peerReady
	void              bool     // of a Send: it is only the discarded chunk that ends an eager one; constant
	inTurn            bool     // of a Send: a chunk of it is being written
	arrival           *arrival // of a Recv: the eager transfer that it receives, if it is one
	cause             error    // why it was cancelled while its memory was in use
}

func (op *transferOp) key() transferKey { return transferKey{op.lane.number, op.ID} }

// next returns the part of op's memory whose bytes have not moved yet, at most its first limit
// bytes. The result refers to that memory.
func (op *transferOp) next(limit int) device.Buffer {
	return op.Buf.Slice(op.moved, min(limit, op.Buf.Len()-op.moved))
}

// direction holds the transfers of one direction. It is guarded by Mover.mu.
type direction struct {
	// ops are the transfers that have neither completed nor been cancelled.
	ops map[transferKey]*transferOp

	// setDeadline sets the deadline of the system calls that access the memory; nil if such calls do
	// not block.
	setDeadline func(time.Time) error
}

// pastDeadline is a deadline that interrupts a system call at once.
var pastDeadline = time.Unix(1, 0)

func (s *direction) add(op *transferOp) {
	if s.ops == nil {
		s.ops = make(map[transferKey]*transferOp)
	}
	s.ops[op.key()] = op
}

// has reports whether op is a transfer of s that has neither completed nor been cancelled. The
// caller holds Mover.mu.
func (s *direction) has(op *transferOp) bool { return s.ops[op.key()] == op }

// remove takes op out of s. It returns true if op was in s, so that the caller must complete it,
// and false if op had completed or been cancelled before. The caller holds Mover.mu.
func (s *direction) remove(op *transferOp) bool {
	alive := s.has(op)
	if alive {
		delete(s.ops, op.key())
	}
	return alive
}

// cancel takes op, which is in s, out of s, with cause as the error of the transfer, and ends the
// wait for its memory. It returns true if the caller must complete op with cause. It returns false
// if the reader or the writer is using the memory of op: cancel has interrupted its system call, if
// that can block, and that goroutine will complete op. The caller holds Mover.mu.
func (s *direction) cancel(op *transferOp, cause error) (free bool) {
	delete(s.ops, op.key())
	op.CancelWait()
	if !op.active {
		return true
	}
	op.cause = cause
	if s.setDeadline != nil {
		_ = s.setDeadline(pastDeadline) // fails only if the stream is closed, which interrupts too
	}
	return false
}

// releaseActive records that its caller, the reader or the writer, has stopped using the memory of
// op. If op was cancelled during that use it returns the cause, with which the caller must complete
// op, and removes the deadline that cancel has set. Otherwise it returns nil. The caller holds
// Mover.mu.
func (s *direction) releaseActive(op *transferOp) (cause error) {
	if op.cause != nil && s.setDeadline != nil {
		_ = s.setDeadline(time.Time{})
	}
	op.active = false
	return op.cause
}

// waitReady blocks until the memory of op, a transfer of direction s, is valid on its stream. Then
// op proceeds: for a Recv, waitReady sends READY, unless the peer sends eagerly, and opens the bulk
// stream; it queues a Send if the peer has sent READY. If the work on the memory's stream failed, it completes op with the error.
// If op was cancelled, or the Mover has ended, it does nothing. Each such wait has its own
// goroutine, because the work on one stream may depend on the outcome of any other transfer.
func (m *Mover) waitReady(s *direction, op *transferOp) {
	err := op.WaitReady()
	if err != nil {
		err = m.wrapError(err)
	}
	m.mu.Lock()
	alive := s.has(op) && m.lifecycle.Err() == nil // else it was cancelled, or the Mover has ended
	ended, eager := err != nil, op.arrival != nil
	switch {
	case !alive:
	case err != nil:
		s.remove(op)
		if op.arrival != nil {
			m.drop(op.arrival)
		} else if op.eager {
			m.endEager(op)
		}
	default:
		op.memoryReady = true
		if op.arrival != nil {
			m.signalReader()
			ended, err = m.supply(op)
		} else if s == &m.in {
			m.open()
			m.signalReader()
		} else if op.peerReady {
			m.queue(op)
		}
	}
	m.mu.Unlock()
	switch {
	case !alive:
	case ended:
		m.complete(op, err)
		m.returnCredit()
	case s == &m.in && !eager:
		m.cfg.Ready(op.lane.number, op.ID)
	case s == &m.in:
		m.request(op)
	}
}

// cancel takes op out of direction s and of the queue of sends, with cause as the error of the
// transfer. It returns true if the caller must complete op with cause. It returns false if the
// reader or the writer is using the memory of op; that goroutine then completes op. The caller
// holds mu.
func (m *Mover) cancel(s *direction, op *transferOp, cause error) (free bool) {
	if s == &m.out && op.memoryReady && op.peerReady {
		m.runnable.Remove(func(other *transferOp) bool { return other == op })
		if m.first == op {
			m.first = nil
		}
	}
	free = s.cancel(op, cause)
	switch {
	case op.eager && !op.inTurn:
		m.endEager(op)
	case op.arrival != nil:
		m.drop(op.arrival)
	}
	return free
}

// cancelAll cancels the transfers of lane l, or of all lanes if l is nil, with cause as their
// error. It returns the transfers that the caller must complete with cause after it has released
// mu. The reader and the writer complete those whose memory they are using. The caller holds mu.
func (m *Mover) cancelAll(l *lane, cause error) (free []*transferOp) {
	for _, s := range []*direction{&m.out, &m.in} {
		for _, op := range s.ops {
			if (l == nil || l == op.lane) && m.cancel(s, op, cause) {
				free = append(free, op)
			}
		}
	}
	for _, a := range m.arrivals {
		if a.length > 0 && (l == nil || l.number == a.key.lane) {
			m.drop(a)
		}
	}
	return free
}

// releaseActive records that its caller, the reader or the writer, does not use the memory of op, a
// transfer of s, any more. If op was cancelled during that use it returns the cause, with which the
// caller must complete op. Otherwise it returns nil. It acquires mu.
func (m *Mover) releaseActive(s *direction, op *transferOp) (cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return s.releaseActive(op)
}

// advance adds n to the bytes that op, a transfer of direction s, has moved. It returns true if
// these were the last; it has then taken op out of s, and the caller must complete op. If op was
// cancelled, advance returns false. The caller holds mu.
func (m *Mover) advance(s *direction, op *transferOp, n int) (all bool) {
	op.moved += n
	if !s.has(op) {
		return false
	}
	all = op.moved == op.Buf.Len()
	if all {
		delete(s.ops, op.key())
	}
	return all
}

// complete calls the done function of op with err, which may be nil, and then counts op as
// finished, which may end Close of its lane. No direction may contain op any more. The caller does
// not hold mu.
func (m *Mover) complete(op *transferOp, err error) {
	op.Done(err)
	m.mu.Lock()
	defer m.mu.Unlock()
	op.lane.running--
	m.completed.Broadcast()
}

// completion is a call of done that waits for the goroutine of completeAsync.
type completion struct {
	op  *transferOp
	err error
}

// completeAsync makes another goroutine call complete for op with err, and does not block. One
// goroutine makes all such calls, because a cancelled message may have thousands of transfers. The
// caller holds mu.
func (m *Mover) completeAsync(op *transferOp, err error) {
	m.completions = append(m.completions, completion{op, err})
	if m.completing {
		return
	}
	m.completing = true
	m.lifecycle.Go(func() {
		for {
			m.mu.Lock()
			batch := m.completions // also those that were added meanwhile
			m.completions = nil
			m.completing = len(batch) > 0
			m.mu.Unlock()
			if len(batch) == 0 {
				return
			}
			for _, c := range batch {
				m.complete(c.op, c.err)
			}
		}
	})
}

// wrapError returns err wrapped in a [*channel.Error] with the channel name "bulk" and the name of
// the peer.
func (m *Mover) wrapError(err error) error {
	return &channel.Error{Channel: "bulk", Peer: m.cfg.Peer, Err: err}
}
