package dist

import (
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// contextFor returns the Context with that number of the given creator, which it adds if there is
// none. The error matches ErrNoContext if it has ended, or agent.ErrOverloaded if the creator has too
// many.
func (g *Autograd) contextFor(id ID, creatorID agent.Incarnation, name string) (*Context, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.contexts[uint64(id)]; c != nil {
		if c.creator != creatorID {
			return nil, id.missing()
		}
		return c, nil
	}
	switch {
	case g.closed:
		return nil, agent.ErrClosed
	case creatorID == g.agent.Incarnation() || g.ended.has(id, creatorID):
		return nil, id.missing() // it was closed
	}
	p := g.creators[creatorID]
	if p == nil {
		p = &creator{}
		g.creators[creatorID] = p
	}
	if p.contexts >= g.options.MaxContexts {
		return nil, fmt.Errorf("%w: %s has %d autograd contexts on %s", agent.ErrOverloaded, name, p.contexts, g.self.Name)
	}
	p.contexts++
	return g.newContext(id, creatorID, name), nil
}

// charge counts bytes of Variables that c keeps. The error matches agent.ErrOverloaded.
func (g *Autograd) charge(c *Context, bytes int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.creators[c.creator]
	if p == nil {
		return nil // its own
	}
	if p.bytes+bytes > g.options.MaxBytes {
		return fmt.Errorf("%w: the autograd contexts of %s have %d bytes on %s", agent.ErrOverloaded, c.creatorName, p.bytes, g.self.Name)
	}
	p.bytes += bytes
	return nil
}

// remove ends c on this worker because of why, and has the workers told that it has called with c. No
// message brings c back.
func (g *Autograd) remove(c *Context, why error) {
	c.mu.Lock()
	if c.closed != nil {
		c.mu.Unlock()
		return
	}
	c.closed = why
	p, known := c.pass, c.known
	bytes := c.bytes
	c.sends, c.receives, c.order, c.grads, c.known = nil, nil, nil, nil, nil
	c.mu.Unlock()
	if p != nil {
		p.fail(c.id.missing())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.contexts[uint64(c.id)] == c {
		delete(g.contexts, uint64(c.id))
	}
	g.ended.add(c.id, c.creator)
	if p := g.creators[c.creator]; p != nil {
		p.contexts--
		if p.bytes -= bytes; p.contexts == 0 {
			if p.lost != nil {
				p.lost.Stop()
			}
			delete(g.creators, c.creator)
		}
	}
	for incarnation, w := range known {
		if u := g.cleanupFor(peer{w, incarnation}); u != nil {
			u.contexts = append(u.contexts, cleanedContext{ID: c.id, Creator: c.creator})
		}
	}
}

// maxEnded bounds the ended Contexts that a worker remembers. Beyond it the oldest are forgotten.
const maxEnded = 1 << 16

// endedContexts are Contexts that have ended, so that a late message does not bring them back. The zero
// value is empty.
type endedContexts struct {
	known map[cleanedContext]struct{}
	order fifo.Queue[cleanedContext]
}

func (e *endedContexts) has(id ID, creator agent.Incarnation) bool {
	_, ok := e.known[cleanedContext{ID: id, Creator: creator}]
	return ok
}

// add adds a Context, and reports whether it was not there.
func (e *endedContexts) add(id ID, creator agent.Incarnation) bool {
	if e.has(id, creator) {
		return false
	}
	if e.known == nil {
		e.known = map[cleanedContext]struct{}{}
	}
	if e.order.Len() >= maxEnded {
		delete(e.known, e.order.Pop())
	}
	c := cleanedContext{ID: id, Creator: creator}
	e.known[c] = struct{}{}
	e.order.Push(c)
	return true
}

// memberChanged ends the Contexts of a worker that has left, was removed, or has restarted, and those of
// one that cannot be reached for some time.
func (g *Autograd) memberChanged(e agent.MemberEvent) {
	switch e.Kind {
	case agent.MemberLeft, agent.MemberRemoved:
		g.removeOf(func(c *Context) bool { return c.creator == e.Incarnation }, e)
	case agent.MemberRestarted:
		g.removeOf(func(c *Context) bool { return c.creatorName == e.Worker.Name && c.creator != e.Incarnation }, e)
	case agent.MemberLost:
		g.mu.Lock()
		defer g.mu.Unlock()
		if p := g.creators[e.Incarnation]; p != nil && p.lost == nil && !g.closed {
			p.lost = time.AfterFunc(g.options.LostAfter, func() {
				g.removeOf(func(c *Context) bool { return c.creator == e.Incarnation }, e)
			})
		}
	case agent.MemberJoined:
		g.mu.Lock()
		defer g.mu.Unlock()
		if p := g.creators[e.Incarnation]; p != nil && p.lost != nil {
			p.lost.Stop()
			p.lost = nil
		}
	}
}

// removeOf ends the Contexts that match selects, because of e.
func (g *Autograd) removeOf(match func(*Context) bool, e agent.MemberEvent) {
	for _, c := range g.all() {
		if match(c) {
			g.log.Info("an autograd context has ended with its worker", "context", uint64(c.id), "event", e.String())
			g.remove(c, ErrNoContext)
		}
	}
}
