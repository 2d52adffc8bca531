package dist

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// cleanedContext is a Context that has ended.
type cleanedContext struct {
	_       struct{} `tensorpipe:"dist.cleaned"`
	ID      ID
	Creator agent.Incarnation
}

// cleanup is the ended Contexts and failed passes of which another worker does not know yet. At most one
// message is under way to each worker; the rest gathers until its answer.
type cleanup struct {
	to       peer
	contexts []cleanedContext
	passes   []passID
}

// cleanupRequest lists Contexts that have ended, and passes that have failed. Owner is the receiver's
// incarnation.
type cleanupRequest struct {
	_        struct{} `tensorpipe:"dist.cleanup"`
	Owner    agent.Incarnation
	Contexts []cleanedContext
	Passes   []passID
}

var cleanupMessage = agent.NewMessageType[cleanupRequest, agent.None]("dist.cleanup")

const (
	// gatherTime is how long the first clean-up for a worker waits for others, so that a program that
	// makes and closes Contexts in a loop does not send a message for each.
	gatherTime = 5 * time.Millisecond

	// retryDelay is the time before a lost message is sent again, which doubles each time up to
	// maxRetryDelay.
	retryDelay    = 50 * time.Millisecond
	maxRetryDelay = 5 * time.Second

	// cleanupTimeout is the time limit of a message.
	cleanupTimeout = 5 * time.Second

	// maxCleaned bounds the Contexts, and the passes, in one message.
	maxCleaned = 1024
)

// cleanupFor returns the cleanup for the worker to, to which the caller adds, or nil if the agent is
// closed. The caller holds g.mu.
func (g *Autograd) cleanupFor(to peer) *cleanup {
	if g.closed {
		return nil
	}
	u := g.cleanups[to.incarnation]
	if u == nil {
		u = &cleanup{to: to}
		g.cleanups[to.incarnation] = u
		g.work.Go(func() { g.runCleanup(u) })
	}
	return u
}

// abort sends the failure of a pass to the workers that take part in c, except one, in the background.
func (g *Autograd) abort(c *Context, id passID, except agent.Incarnation) {
	c.mu.Lock()
	peers := maps.Clone(c.peers)
	c.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	for incarnation, w := range peers {
		if incarnation == except {
			continue
		}
		if u := g.cleanupFor(peer{w.WorkerInfo, incarnation}); u != nil {
			u.passes = append(u.passes, id)
		}
	}
}

// runCleanup sends the cleanup of one worker, until there is no more. A message that is
// lost is sent again, unless the worker is gone.
func (g *Autograd) runCleanup(u *cleanup) {
	for {
		g.pause(gatherTime)
		g.mu.Lock()
		n, k := min(len(u.contexts), maxCleaned), min(len(u.passes), maxCleaned)
		ended, passes := u.contexts[:n:n], u.passes[:k:k]
		u.contexts, u.passes = u.contexts[n:], u.passes[k:]
		if n == 0 && k == 0 {
			delete(g.cleanups, u.to.incarnation)
			close(g.changed)
			g.changed = make(chan struct{})
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		err := g.persist(u.to, func(ctx context.Context) error {
			_, err := cleanupMessage.Call(ctx, g.agent, agent.To(u.to.Name), "", cleanupRequest{Owner: u.to.incarnation, Contexts: ended, Passes: passes}, agent.WithBackground(), agent.WithTimeout(cleanupTimeout))
			return err
		})
		if err != nil && g.base.Err() == nil {
			g.log.Info("could not release autograd contexts", "worker", u.to.Name, "contexts", n, "error", err)
		}
	}
}

// persist calls send until it succeeds, with pauses, and returns nil. It gives up, and returns the error
// of send, once the worker to is gone, cannot be reached for Options.LostAfter, or the agent is closed.
func (g *Autograd) persist(to peer, send func(context.Context) error) error {
	begun := time.Now()
	for delay := retryDelay; ; delay = min(2*delay, maxRetryDelay) {
		err := send(g.base)
		switch {
		case err == nil:
			return nil
		case g.base.Err() != nil, isGone(err), errors.Is(err, agent.ErrClosed), time.Since(begun) > g.options.LostAfter:
			return err
		}
		g.log.Debug("message about autograd contexts lost", "worker", to.Name, "error", err)
		g.pause(delay)
	}
}

// pause waits for d, or until the agent is closed.
func (g *Autograd) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-g.base.Done():
	}
}

// serveCleanup ends the Contexts of a request, and passes it on to the other workers that take part in
// them.
func (g *Autograd) serveCleanup(_ context.Context, q *agent.Request, args *cleanupRequest) {
	if args.Owner != g.agent.Incarnation() {
		_ = q.Reply(&agent.None{}) // an earlier process was meant
		return
	}
	for _, e := range args.Contexts {
		g.mu.Lock()
		g.ended.add(e.ID, e.Creator)
		c := g.contexts[uint64(e.ID)]
		g.mu.Unlock()
		if c != nil && c.creator == e.Creator {
			g.remove(c, q.Incarnation())
		}
	}
	for _, id := range args.Passes {
		g.failPass(id, q.Incarnation())
	}
	_ = q.Reply(&agent.None{})
}

// failPass ends a pass that has failed at its origin, and passes that on, unless it is known. from is the
// worker that has sent the failure.
func (g *Autograd) failPass(id passID, from agent.Incarnation) {
	c := g.context(id)
	if c == nil {
		return
	}
	c.mu.Lock()
	n, ok := c.passes[id.Origin]
	if c.closed || id.Number <= n.aborted || !ok && len(c.passes) >= maxOrigins {
		c.mu.Unlock()
		return
	}
	if n.aborted = id.Number; n.ended < id.Number {
		n.ended, n.why = id.Number, nil
	}
	put(&c.passes, id.Origin, n)
	p := c.pass
	c.mu.Unlock()
	if p != nil && p.origin == id.Origin && p.number <= id.Number {
		p.fail(fmt.Errorf("%w: at its origin", ErrFailed))
	}
	g.abort(c, id, from)
}
