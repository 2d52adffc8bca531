package mpt

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
)

// job is a large transfer. What is not constant is guarded by nativeEnd.mu.
type job struct {
	transfer.Transfer // constant
	ready             bool
	offered           bool // of a Send: to the peer; of a Recv: by the peer
	way               way  // on which, once it was offered
	cut               int  // bytes that have been given to slices
	moved             int  // bytes in slices that are through
	slices            []*slice
	cause             error // of a job that is being given up
}

// slice is a part of a job on its way.
type slice struct {
	on     channel.Channel
	lane   *lane // nil if it is on nativeEnd.host
	id     uint64
	length int
}

// side is the jobs of one direction.
type side struct {
	begin func(channel.Channel, uint64, device.Buffer, func(error))
	jobs  map[uint64]*job // those that are neither through nor given up
	next  uint64          // id of the next slice on a lane
}

// newSide is that of what sender sends. The ids of its slices are like none in
// the other direction.
func newSide(sender channel.Role, begin func(channel.Channel, uint64, device.Buffer, func(error))) side {
	return side{begin: begin, jobs: make(map[uint64]*job), next: uint64(sender) << 63}
}

// begin makes a job, and lets it proceed when its memory can be used.
func (e *nativeEnd) begin(s *side, id uint64, buf device.Buffer, done func(error), proceed func(*job)) {
	t, fault := transfer.New(e.life.Context(), id, buf, done)
	j := &job{Transfer: t}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.refuse(s, j, fault); err != nil {
		j.GiveUp()
		e.life.Later(done, err)
		return
	}
	s.jobs[id] = j
	e.want()
	if j.ready = j.Ready(); j.ready {
		proceed(j)
	} else {
		e.life.Go(func() { e.proceedLater(s, j, proceed) })
	}
}

// proceedLater waits for the stream on which the memory is valid.
func (e *nativeEnd) proceedLater(s *side, j *job, proceed func(*job)) {
	fault := j.WaitReady()
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.jobs[j.ID] != j {
		return
	}
	if fault != nil {
		e.giveUp(s, j, e.explain(fault))
		return
	}
	j.ready = true
	proceed(j)
}

// move sets the next length bytes of j going. The caller holds mu.
func (e *nativeEnd) move(s *side, j *job, sl *slice) {
	part := j.Buf.Slice(j.cut, sl.length).WithStream(nil)
	j.cut += sl.length
	if sl.lane != nil {
		sl.lane.moving++
		e.moved = true
	}
	j.slices = append(j.slices, sl)
	s.begin(sl.on, sl.id, part, func(err error) { e.sliceDone(s, j, sl, err) })
}

// moveWhole sets all of j going by the pipe's own means.
func (e *nativeEnd) moveWhole(s *side, j *job) {
	e.move(s, j, &slice{on: e.host, id: j.ID, length: j.Buf.Len()})
}

// sliceDone notes that a slice is through, and finishes the job behind its last.
func (e *nativeEnd) sliceDone(s *side, j *job, sl *slice, err error) {
	if over, outcome := e.settle(s, j, sl, err); over {
		j.Done(outcome)
	}
}

func (e *nativeEnd) settle(s *side, j *job, sl *slice, err error) (over bool, outcome error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.Index(j.slices, sl)
	j.slices = slices.Delete(j.slices, i, i+1)
	defer e.settleDown()
	if sl.lane != nil {
		sl.lane.moving--
		if e.parted != nil && sl.lane.moving == 0 {
			e.leave(sl.lane)
		}
	}
	if sl.lane != nil && s == &e.recvs {
		sl.lane.ordered--
		defer e.order()
	}
	if err == nil {
		j.moved += sl.length
	} else if j.cause == nil {
		j.cause = err
		e.forget(s, j)
	}
	if len(j.slices) > 0 || j.cause == nil && j.moved < j.Buf.Len() {
		return false, nil
	}
	if s.jobs[j.ID] == j {
		delete(s.jobs, j.ID)
	}
	return true, j.cause
}

// giveUp ends j because of cause, at once or when its slices have let go of
// the memory. The caller holds mu.
func (e *nativeEnd) giveUp(s *side, j *job, cause error) {
	j.cause = cause
	e.forget(s, j)
	if len(j.slices) == 0 {
		e.life.Later(j.Done, cause)
	}
}

// forget takes j out and ends its slices. The caller holds mu.
func (e *nativeEnd) forget(s *side, j *job) {
	if s.jobs[j.ID] == j {
		delete(s.jobs, j.ID)
	}
	j.GiveUp()
	e.due.Remove(func(other *job) bool { return other == j })
	for _, sl := range j.slices {
		sl.on.Abort(sl.id, j.cause)
	}
	if s == &e.sends && j.offered {
		e.say(word{kind: wordWithdraw, id: j.ID})
	}
	e.settleDown()
}
