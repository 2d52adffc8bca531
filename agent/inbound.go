package agent

import (
	"context"
	"fmt"
)

// What a caller may have here is bounded at the caller, by the room that this end has
// said it has. What is bounded here as well is for a caller that does not keep to that,
// or that has given up calls whose handlers go on all the same.
const (
	slack       = 2 // times the room
	nestedSlack = 8 // times the room, with the calls that handlers make
)

// fits reports whether there is room for a request. The caller holds mu.
func (c *conn) fits(r *Request) bool {
	factor := slack
	if r.flags&nested != 0 {
		factor = nestedSlack
	}
	return len(c.serving) == 0 || c.taken+r.weight <= factor*c.agent.limits.CallBytes
}

// openLarge opens a request for which memory must be found first. Until there is
// some, its tensors stay where they are, at the caller. Calls that handlers make do
// not wait: handlers that hold memory may be waiting for them.
func (c *conn) openLarge(r *Request) {
	n := r.arrival.incoming.Descriptor().Bytes()
	if err := c.takeLarge(r, n); err != nil {
		r.drop()
		c.refuse(r, err, nil)
		return
	}
	own := &shift{conn: c, over: true}
	c.open(r, own)
	if own.next != nil {
		own.next.seeTo()
	}
}

// takeLarge takes memory for a large request.
func (c *conn) takeLarge(r *Request, n int) error {
	if r.flags&nested == 0 {
		if !c.large.Acquire(r, c.down, n) {
			return gone(r)
		}
		r.large = n
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nestedLarge > 0 && n > nestedSlack*c.agent.limits.LargeBytes-c.nestedLarge {
		return fmt.Errorf("%w: %d bytes in large calls of handlers", ErrOverloaded, c.nestedLarge)
	}
	r.nestedLarge = n
	c.nestedLarge += n
	return nil
}

// gone is why nobody waits for a request any more.
func gone(r *Request) error {
	if err := context.Cause(r); err != nil {
		return err
	}
	return ErrCallerGone
}
