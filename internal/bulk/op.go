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
	moved             int   // bytes in valid chunks so far
	memoryReady       bool  // the work of the memory's stream has completed
	peerReady         bool  // of a Send: the peer has sent READY
	cause             error // why it was cancelled while its memory was in use
}

func (op *transferOp) key() transferKey { return transferKey{op.lane.number, op.ID} }

// next returns the memory of the next bytes of op that have not moved, at most limit.
func (op *transferOp) next(limit int) device.Buffer {
	return op.Buf.Slice(op.moved, min(limit, op.Buf.Len()-op.moved))
}

// direction holds the transfers of one direction. It is guarded by Mover.mu.
type direction struct {
	// ops are the transfers that have neither completed nor been cancelled.
	ops map[transferKey]*transferOp

	// active is the transfer whose memory the reader, or the writer, is using.
	active *transferOp

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

// has reports whether op has neither completed nor been cancelled. The caller holds Mover.mu.
func (s *direction) has(op *transferOp) bool { return s.ops[op.key()] == op }

// remove takes op out of s. It returns true if op had neither completed nor been cancelled, so that
// the caller must complete it. The caller holds Mover.mu.
func (s *direction) remove(op *transferOp) bool {
	alive := s.has(op)
	if alive {
		delete(s.ops, op.key())
	}
	return alive
}

// cancel takes op out of s because of cause. If it returns true the caller must complete op. Otherwise
// the reader or the writer is using the memory: cancel has interrupted it, and it will complete op
// with cause. The caller holds Mover.mu.
func (s *direction) cancel(op *transferOp, cause error) (free bool) {
	delete(s.ops, op.key())
	op.CancelWait()
	if s.active != op {
		return true
	}
	op.cause = cause
	if s.setDeadline != nil {
		_ = s.setDeadline(pastDeadline) // fails only if the stream is closed, which interrupts too
	}
	return false
}

// releaseActive records that the reader, or the writer, which calls it, has stopped using the memory
// of the active transfer. It returns the cause if the transfer was cancelled meanwhile; the caller
// must then complete it. Otherwise it returns nil. The caller holds Mover.mu.
func (s *direction) releaseActive() (cause error) {
	cause = s.active.cause
	if cause != nil && s.setDeadline != nil {
		_ = s.setDeadline(time.Time{})
	}
	s.active = nil
	return cause
}

// waitReady waits until the memory of op is valid on its stream, and then lets op proceed: for a Recv
// it sends READY. If the work of the stream failed it completes op with the error. Each such wait has
// its own goroutine, because the work on one stream may depend on the outcome of any other transfer.
func (m *Mover) waitReady(s *direction, op *transferOp) {
	err := op.WaitReady()
	if err != nil {
		err = m.wrapError(err)
	}
	m.mu.Lock()
	alive := s.has(op) && m.lifecycle.Err() == nil // else it was cancelled, or the Mover has ended
	switch {
	case !alive:
	case err != nil:
		s.remove(op)
	default:
		op.memoryReady = true
		if s == &m.in {
			m.open()
		} else if op.peerReady {
			m.queue(op)
		}
	}
	m.mu.Unlock()
	switch {
	case !alive:
	case err != nil:
		m.complete(op, err)
	case s == &m.in:
		m.cfg.Ready(op.lane.number, op.ID)
	}
}

// cancel takes op out of direction s, and out of runnable, because of cause. It reports whether the
// caller must complete op; otherwise the reader or the writer will. The caller holds mu.
func (m *Mover) cancel(s *direction, op *transferOp, cause error) (free bool) {
	if s == &m.out && op.memoryReady && op.peerReady {
		m.runnable.Remove(func(other *transferOp) bool { return other == op })
	}
	return s.cancel(op, cause)
}

// cancelAll cancels the transfers of lane l, or of all lanes if l is nil, because of cause. It returns
// those that the caller must complete after it has released mu, which it holds now.
func (m *Mover) cancelAll(l *lane, cause error) (free []*transferOp) {
	for _, s := range []*direction{&m.out, &m.in} {
		for _, op := range s.ops {
			if (l == nil || l == op.lane) && m.cancel(s, op, cause) {
				free = append(free, op)
			}
		}
	}
	return free
}

// releaseActive records that the reader or the writer, which calls it, does not use the memory of the
// active transfer of s any more. If the transfer was cancelled it returns the cause, and the caller
// must complete it; otherwise nil.
func (m *Mover) releaseActive(s *direction) (cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return s.releaseActive()
}

// advance adds n to the bytes that op has moved. It returns true if these were the last; op is then
// removed, and the caller must complete it. It does nothing and returns false if op was cancelled. The
// caller holds mu.
func (m *Mover) advance(s *direction, op *transferOp, n int) (all bool) {
	if !s.has(op) {
		return false
	}
	op.moved += n
	all = op.moved == op.Buf.Len()
	if all {
		delete(s.ops, op.key())
	}
	return all
}

// complete calls the done function of op with err, which may be nil. No direction may contain op any
// more. The caller does not hold mu.
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

// completeAsync makes another goroutine call complete for op with err. One goroutine makes all such
// calls, because a cancelled message may have thousands of transfers. The caller holds mu.
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

// wrapError returns err as a [*channel.Error] with the peer and the name bulk.
func (m *Mover) wrapError(err error) error {
	return &channel.Error{Channel: "bulk", Peer: m.cfg.Peer, Err: err}
}
