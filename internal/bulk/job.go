package bulk

import (
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
)

// label names a transfer within one direction.
type label struct {
	lane uint16
	id   uint64
}

// job is one Send or Recv. What is not constant is guarded by Mover.mu.
type job struct {
	transfer.Transfer // constant
	lane              *lane
	moved             int   // bytes in valid chunks so far
	ordered           bool  // the memory's stream has come to it
	ready             bool  // of a Send: the peer's memory waits
	cause             error // of a job that was given up while it was held
}

func labelOf(h native.ChunkHeader) label { return label{h.Lane, h.ID} }

func (j *job) label() label { return label{j.lane.number, j.ID} }

// next is the memory of the next bytes, limit at most.
func (j *job) next(limit int) device.Buffer {
	return j.Buf.Slice(j.moved, min(limit, j.Buf.Len()-j.moved))
}

// side is the jobs of one direction. It is guarded by Mover.mu.
type side struct {
	// jobs are those that have neither moved nor been given up.
	jobs map[label]*job

	// held is the job whose memory the reader, or the writer, touches now.
	held *job

	// deadline is that of the system calls that touch the memory; nil where
	// they do not take long.
	deadline func(time.Time) error
}

// past is a deadline that ends a system call at once.
var past = time.Unix(1, 0)

func (s *side) add(j *job) {
	if s.jobs == nil {
		s.jobs = make(map[label]*job)
	}
	s.jobs[j.label()] = j
}

// has reports whether j is neither moved nor given up.
func (s *side) has(j *job) bool { return s.jobs[j.label()] == j }

// remove takes out j, and reports whether it was neither moved nor given up.
func (s *side) remove(j *job) bool {
	alive := s.has(j)
	if alive {
		delete(s.jobs, j.label())
	}
	return alive
}

// giveUp takes out j because of cause. If free is false somebody holds it, who
// is interrupted and will find the cause.
func (s *side) giveUp(j *job, cause error) (free bool) {
	delete(s.jobs, j.label())
	j.GiveUp()
	if s.held != j {
		return true
	}
	j.cause = cause
	if s.deadline != nil {
		_ = s.deadline(past) // of a stream that is closed; that interrupts too
	}
	return false
}

// letGo is the word of the holder that it touches the memory no more. The
// cause is that of a job given up meanwhile, which is now the holder's to
// finish.
func (s *side) letGo() (cause error) {
	cause = s.held.cause
	if cause != nil && s.deadline != nil {
		_ = s.deadline(time.Time{})
	}
	s.held = nil
	return cause
}
