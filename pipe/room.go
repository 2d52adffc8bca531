package pipe

import "context"

// room is what the messages under way of one pipe may take: of its own budget
// and of that of all pipes of the context.
type room struct {
	own    *budget
	shared *budget
}

func newRoom(c *Context) room {
	return room{own: newBudget(c.limits.PipeBytesInFlight), shared: c.inFlight}
}

// acquire takes n bytes, waiting until they are free, ctx ends or stop is
// closed. It reports false if it took nothing.
func (r *room) acquire(ctx context.Context, stop <-chan struct{}, n int) bool {
	if !r.own.acquire(ctx, stop, n) {
		return false
	}
	if !r.shared.acquire(ctx, stop, r.sharedCost(n)) {
		r.own.release(n)
		return false
	}
	return true
}

func (r *room) release(n int) {
	r.shared.release(r.sharedCost(n))
	r.own.release(n)
}

// sharedCost is what a message takes of the context's budget. A very large one
// counts as half of it: were it to wait for all, one pipe whose peer does not
// read could hold it up, and behind it everybody.
func (r *room) sharedCost(n int) int { return min(n, r.shared.size/2) }
