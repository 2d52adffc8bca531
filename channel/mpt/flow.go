package mpt

import (
	"github.com/tensorpipe-go/tensorpipe/channel"
)

const (
	// minStripe is the smallest slice, but for the last of a tensor. A tensor of
	// less than two is not cut. It is part of the native dialect.
	minStripe = 512 << 10

	// NativeBytes is the size from which tensors move on lanes in the native
	// dialect; smaller ones take the pipe's own way for host memory.
	NativeBytes = 2 * minStripe

	// maxSlice is the largest one: what a mover writes with one system call.
	maxSlice = 4 << 20

	// turns is in how many slices per lane a tensor is cut, so that a lane which
	// is slow has few of them at the end.
	turns = 4

	// ahead is for how many slices a lane is asked at a time: while one moves the
	// word for the next is under way.
	ahead = 2

	// maxOffers bounds the offers that wait for a Recv.
	maxOffers = 1 << 16
)

// offer tells the peer of a Send, now that its memory may be read. The caller
// holds mu.
func (e *nativeEnd) offer(j *job) {
	j.offered, j.way = true, wayLanes
	if !e.onLanes(e.role) {
		j.way = wayHost
		e.moveWhole(&e.sends, j)
	}
	e.say(word{kind: wordOffer, id: j.ID, way: j.way})
}

// match lets a Recv begin if the peer has made its offer. The caller holds mu.
func (e *nativeEnd) match(j *job) {
	if w, ok := e.offers[j.ID]; ok {
		delete(e.offers, j.ID)
		e.accept(j, w)
	}
}

// accept begins a Recv. The caller holds mu.
func (e *nativeEnd) accept(j *job, w way) {
	j.offered, j.way = true, w
	if w == wayHost {
		e.moveWhole(&e.recvs, j)
		return
	}
	e.due.Push(j)
	e.order()
}

// order asks for slices of the oldest tensor, as long as there are lanes that
// have not enough to do. The caller holds mu.
func (e *nativeEnd) order() {
	for e.due.Len() > 0 {
		l := e.idlest()
		if l.ordered == ahead {
			return
		}
		j := e.due.Front()
		length := min(e.sliceOf(j), j.Buf.Len()-j.cut)
		e.say(word{kind: wordOrder, id: j.ID, offset: uint64(j.cut), length: uint64(length), count: l.number})
		l.ordered++
		e.move(&e.recvs, j, e.slice(&e.recvs, l, length))
		if j.cut == j.Buf.Len() {
			e.due.Pop()
		}
	}
}

// idlest is the lane that was asked for the least. There is one where tensors are
// offered on lanes.
func (e *nativeEnd) idlest() *lane {
	best := e.lanes[0]
	for _, l := range e.lanes {
		if l.ordered < best.ordered {
			best = l
		}
	}
	return best
}

// sliceOf is the size of j's slices, whole pages.
func (e *nativeEnd) sliceOf(j *job) int {
	const page = 64 << 10
	n := j.Buf.Len() / (turns * len(e.lanes))
	n = (n + page - 1) / page * page
	return max(min(n, maxSlice), e.factory.stripe)
}

// slice is the next one of a side.
func (e *nativeEnd) slice(s *side, l *lane, length int) *slice {
	sl := &slice{on: l.channel, lane: l, id: s.next, length: length}
	s.next++
	return sl
}

// offered takes in an offer of the peer.
func (e *nativeEnd) offered(w word) error {
	j := e.recvs.jobs[w.id]
	switch _, twice := e.offers[w.id]; {
	case twice || j != nil && j.offered:
		return protocolError("transfer %d is offered twice", w.id)
	case w.way == wayLanes && !e.onLanes(1-e.role):
		return protocolError("transfer %d is offered on lanes, of which there are none", w.id)
	case len(e.offers) == maxOffers:
		return protocolError("more than %d offers that nobody takes", maxOffers)
	}
	e.want()
	if j != nil && j.ready {
		e.accept(j, w.way)
	} else {
		e.offers[w.id] = w.way
	}
	return nil
}

// withdrawn takes in that there is nothing more to come of a transfer.
func (e *nativeEnd) withdrawn(w word) {
	delete(e.offers, w.id)
	if j := e.recvs.jobs[w.id]; j != nil && j.offered {
		e.giveUp(&e.recvs, j, e.explain(channel.ErrAborted))
	}
}

// ordered takes in that the peer's memory waits for a slice. A transfer that is
// unknown was given up, and the peer will hear of it.
func (e *nativeEnd) ordered(w word) error {
	if w.count >= len(e.lanes) {
		return protocolError("an order on lane %d of %d", w.count, len(e.lanes))
	}
	l := e.lanes[w.count]
	sl := e.slice(&e.sends, l, int(w.length))
	j := e.sends.jobs[w.id]
	if j == nil {
		return nil
	}
	left := uint64(j.Buf.Len() - j.cut)
	switch {
	case j.way != wayLanes || w.offset != uint64(j.cut):
		return protocolError("an order of transfer %d from byte %d, where %d would be next", w.id, w.offset, j.cut)
	case w.length == 0 || w.length > left || w.length < uint64(e.factory.stripe) && w.length < left:
		return protocolError("an order of %d bytes of transfer %d, of which %d are left", w.length, w.id, left)
	}
	e.move(&e.sends, j, sl)
	l.mover.TakeReady(0, sl.id)
	return nil
}
