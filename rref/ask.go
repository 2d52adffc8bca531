package rref

import (
	"context"
	"slices"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// askQueue is the children about which their receivers are asked, by the time at which that is due.
type askQueue struct {
	now   fifo.Queue[forkID] // at the next tick
	later fifo.Queue[laterAsk]
}

// laterAsk is a child about which its receiver is asked a lease after it was sent.
type laterAsk struct {
	id  forkID
	due time.Time
}

func (q *askQueue) len() int { return q.now.Len() + q.later.Len() }

// take removes a child that is due, and returns it and true. It returns false if there is none. If all
// is set, all children are due.
func (q *askQueue) take(now time.Time, all bool) (id forkID, ok bool) {
	switch {
	case q.now.Len() > 0:
		return q.now.Pop(), true
	case q.later.Len() > 0 && (all || !now.Before(q.later.Front().due)):
		return q.later.Pop().id, true
	}
	return id, false
}

// askLater asks the receiver of the child after delay, which is 0 or a lease, or when this worker
// drains, unless it accepts the reference before that.
func (r *Refs) askLater(id forkID, delay time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.children[id] == nil || r.closed {
		return
	}
	if delay == 0 {
		r.asks.now.Push(id)
	} else {
		r.asks.later.Push(laterAsk{id, time.Now().Add(delay)})
	}
	if r.runClock(); r.draining {
		r.askDue(time.Now())
	}
}

// maxAsked bounds the children about which one message asks.
const maxAsked = 1024

// askDue asks the receivers of the children that are due, all if this worker drains, without waiting.
// The caller holds r.mu.
func (r *Refs) askDue(now time.Time) {
	byReceiver := map[worker][]forkID{}
	for id, ok := r.asks.take(now, r.draining); ok; id, ok = r.asks.take(now, r.draining) {
		ch := r.children[id]
		switch {
		case ch == nil: // it was accepted
		case ch.fork != nil && ch.fork.holder != nil && r.forks[id] != ch.fork: // the receiver has deleted it
			delete(r.children, id)
			r.notify()
		default:
			byReceiver[ch.to] = append(byReceiver[ch.to], id)
		}
	}
	if r.closed {
		return
	}
	for to, all := range byReceiver {
		for ids := range slices.Chunk(all, maxAsked) {
			r.work.Go(func() { r.ask(to, ids) })
		}
	}
}

// ask asks the receiver of the children with these ids which of them it has. The receiver refuses the
// others from then on. If it does not answer for two leases, it has lost them.
func (r *Refs) ask(to worker, ids []forkID) {
	var has []bool
	err := r.persist(to, func(ctx context.Context) (err error) {
		has, err = askMessage.Call(ctx, r.agent, agent.To(to.Name), "", forkList{Owner: to.Incarnation, IDs: ids}, r.background()...)
		return err
	})
	for i, id := range ids {
		if err == nil && len(has) == len(ids) && has[i] {
			r.accepted(id)
		} else {
			r.neverArrived(id)
		}
	}
}
