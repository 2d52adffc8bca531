package pipe

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/internal/budget"
)

// room is what the messages under way of one pipe may take: of its own budget
// and of that of all pipes of the context.
type room struct {
	own    *budget.Budget
	shared *budget.Budget
}

func newRoom(c *Context) room {
	return room{own: budget.New(c.limits.PipeBytesInFlight), shared: c.inFlight}
}

// acquire takes n bytes, waiting until they are free, ctx ends or stop is
// closed. It reports false if it took nothing.
func (r *room) acquire(ctx context.Context, stop <-chan struct{}, n int) bool {
	if !r.own.Acquire(ctx, stop, n) {
		return false
	}
	if !r.shared.Acquire(ctx, stop, r.sharedCost(n)) {
		r.own.Release(n)
		return false
	}
	return true
}

// tryAcquire is acquire that takes nothing where it would have to wait.
func (r *room) tryAcquire(n int) bool {
	if !r.own.TryAcquire(n) {
		return false
	}
	if !r.shared.TryAcquire(r.sharedCost(n)) {
		r.own.Release(n)
		return false
	}
	return true
}

func (r *room) release(n int) { r.giveBack(r.shareOf(n)) }

// share is what a message, or several, or a part of one, has of the budgets.
type share struct{ own, shared int }

// shareOf is what acquire takes for n bytes.
func (r *room) shareOf(n int) share { return share{n, r.sharedCost(n)} }

func (r *room) giveBack(s share) {
	if s == (share{}) {
		return
	}
	r.shared.Release(s.shared)
	r.own.Release(s.own)
}

func (s *share) add(other share) {
	s.own += other.own
	s.shared += other.shared
}

// split is what n bytes of s have, and the rest.
func (s share) split(n int) (part, rest share) {
	part = share{min(n, s.own), min(n, s.shared)}
	return part, share{s.own - part.own, s.shared - part.shared}
}

// sharedCost is what a message takes of the context's budget. A very large one
// counts as half of it: were it to wait for all, one pipe whose peer does not
// read could hold it up, and behind it everybody.
func (r *room) sharedCost(n int) int { return min(n, r.shared.Size()/2) }

// windowBudget is a budget for the windows of sessions, which go on without what
// they do not get: not even the first has more than there is.
type windowBudget struct{ *budget.Budget }

// Acquire implements [transport.Budget].
func (b windowBudget) Acquire(n int) bool { return n <= b.Size() && b.TryAcquire(n) }
