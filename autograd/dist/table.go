package dist

import (
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// contextFor returns the Context with that number of the given creator, for a request of the worker from.
// It adds the Context if there is none. The error matches ErrNoContext if it has ended, or
// agent.ErrOverloaded if too many have come from that worker.
func (g *Autograd) contextFor(id ID, creator agent.Incarnation, name []byte, from peer) (*Context, error) {
	g.mu.Lock()
	c := g.contexts[uint64(id)]
	var err error
	switch {
	case c != nil && c.creator != creator:
		err = id.missing()
	case c != nil:
	case g.closed:
		err = agent.ErrClosed
	case creator == g.agent.Incarnation() || g.ended.has(id, creator):
		err = id.missing() // it was closed
	default:
		if err = g.charge(from, 1, 0); err == nil {
			c = g.newContext(id, creator, string(name))
			c.charged, c.since = from.incarnation, time.Now()
		}
	}
	g.mu.Unlock()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.check(); err != nil {
		return nil, err
	}
	c.meet(from, false)
	return c, nil
}

// usage is the Contexts and bytes that the requests of another worker take here.
type usage struct {
	contexts int
	bytes    int64 // of Variables
}

// charge counts what a request of the worker from brings. The error matches agent.ErrOverloaded. The
// caller holds g.mu.
func (g *Autograd) charge(from peer, contexts int, bytes int64) error {
	u := g.usages[from.incarnation]
	u.contexts += contexts
	u.bytes += bytes
	if u.contexts > g.options.MaxContexts || u.bytes > g.options.MaxBytes {
		return fmt.Errorf("%w: %s has %d autograd contexts with %d bytes on %s", agent.ErrOverloaded, from.Name, u.contexts, u.bytes, g.self.Name)
	}
	g.usages[from.incarnation] = u
	return nil
}

// discharge is the opposite of charge.
func (g *Autograd) discharge(from agent.Incarnation, contexts int, bytes int64) {
	u := g.usages[from]
	u.contexts -= contexts
	u.bytes -= bytes
	if u == (usage{}) {
		delete(g.usages, from)
	} else {
		g.usages[from] = u
	}
}

// remove ends c on this worker, and sends that to the workers that take part in it, except one, in the
// background. No message brings c back.
func (g *Autograd) remove(c *Context, except agent.Incarnation) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	close(c.end)
	p, peers, charges := c.pass, c.peers, c.charges
	c.sends, c.receives, c.order, c.peers, c.last = nil, nil, nil, nil, nil
	c.mu.Unlock()
	c.gradsMu.Lock()
	c.grads = nil
	c.gradsMu.Unlock()
	if p != nil {
		p.fail(c.id.missing())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.contexts[uint64(c.id)] == c {
		delete(g.contexts, uint64(c.id))
	}
	if c.creator != g.agent.Incarnation() {
		g.ended.add(c.id, c.creator)
		g.discharge(c.charged, 1, 0)
	}
	for from, bytes := range charges {
		g.discharge(from, 0, bytes)
	}
	for incarnation, w := range peers {
		if incarnation == except {
			continue
		}
		if u := g.cleanupFor(peer{w.WorkerInfo, incarnation}); u != nil {
			u.contexts = append(u.contexts, cleanedContext{ID: c.id, Creator: c.creator})
		}
	}
}
