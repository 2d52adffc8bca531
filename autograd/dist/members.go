package dist

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// A worker learns from a clean-up message that a Context has ended. The worker that should send that
// message may have died, or may have ended its attempts. So each worker also asks the creators of
// Contexts, from time to time, whether they still exist.

// memberChanged ends the Contexts of a worker that has left, was removed, or has restarted, and the
// passes of one that is gone or cannot be reached: their messages may be lost.
func (g *Autograd) memberChanged(e agent.MemberEvent) {
	gone := func(i agent.Incarnation, _ string) bool { return i == e.Incarnation }
	switch e.Kind {
	case agent.MemberLeft, agent.MemberRemoved, agent.MemberLost:
	case agent.MemberRestarted:
		gone = func(i agent.Incarnation, name string) bool { return name == e.Worker.Name && i != e.Incarnation }
	default:
		return
	}
	for _, c := range g.all() {
		if e.Kind != agent.MemberLost && gone(c.creator, c.creatorName) {
			g.log.Info("an autograd context has ended with its worker", "context", uint64(c.id), "event", e.String())
			g.remove(c, e.Incarnation)
			continue
		}
		c.mu.Lock()
		p := c.pass
		ends := p != nil && p.origin != g.agent.Incarnation() && gone(p.origin, c.peers[p.origin].Name)
		c.mu.Unlock()
		if ends {
			p.fail(fmt.Errorf("%w: its origin: %s", ErrFailed, e))
		}
	}
}

type (
	// aliveRequest asks the creator of Contexts which of them have ended.
	aliveRequest struct {
		_        struct{} `tensorpipe:"dist.alive"`
		Creator  agent.Incarnation
		Contexts []ID
	}

	aliveReply struct {
		_     struct{} `tensorpipe:"dist.aliveReply"`
		Ended []ID
	}
)

var aliveMessage = agent.NewMessageType[aliveRequest, aliveReply]("dist.alive")

// serveAlive replies to an aliveRequest.
func (g *Autograd) serveAlive(_ context.Context, q *agent.Request, r *aliveRequest) {
	var reply aliveReply
	g.mu.Lock()
	for _, id := range r.Contexts {
		if c := g.contexts[uint64(id)]; c == nil || c.creator != r.Creator {
			reply.Ended = append(reply.Ended, id)
		}
	}
	g.mu.Unlock()
	_ = q.Reply(&reply)
}

// checksPerLimit is how often in Options.LostAfter a worker asks about the Contexts of others.
const checksPerLimit = 4

// creator is a worker whose Contexts are here for some time.
type creator struct {
	name     string
	contexts map[ID]*Context
}

// checkContexts asks the creators of Contexts that are here for some time which of them have ended, until
// the agent is closed. If a creator does not answer for Options.LostAfter, its Contexts end.
func (g *Autograd) checkContexts() {
	period := max(g.options.LostAfter/checksPerLimit, time.Millisecond)
	silent := map[agent.Incarnation]time.Time{} // the time of the first request without an answer
	for g.pause(period); g.base.Err() == nil; g.pause(period) {
		old := map[agent.Incarnation]*creator{}
		for _, c := range g.all() {
			if c.creator == g.agent.Incarnation() || time.Since(c.since) < period {
				continue
			}
			if old[c.creator] == nil {
				old[c.creator] = &creator{c.creatorName, map[ID]*Context{}}
			}
			if all := old[c.creator].contexts; len(all) < maxCleaned {
				all[c.id] = c
			}
		}
		for incarnation := range silent {
			if old[incarnation] == nil {
				delete(silent, incarnation)
			}
		}
		for incarnation, u := range old {
			g.checkCreator(incarnation, u, silent, period)
		}
	}
}

// checkCreator asks one creator, and ends those of its Contexts that have ended there, or all if it is
// gone. silent has the creators that do not answer.
func (g *Autograd) checkCreator(incarnation agent.Incarnation, u *creator, silent map[agent.Incarnation]time.Time, limit time.Duration) {
	request := aliveRequest{Creator: incarnation}
	for id := range u.contexts {
		request.Contexts = append(request.Contexts, id)
	}
	if silent[incarnation].IsZero() {
		silent[incarnation] = time.Now()
	}
	reply, err := aliveMessage.Call(g.base, g.agent, agent.To(u.name), "", request, agent.WithBackground(), agent.WithTimeout(min(limit, cleanupTimeout)))
	switch {
	case g.base.Err() != nil:
	case err == nil:
		delete(silent, incarnation)
		for _, id := range reply.Ended {
			if c := u.contexts[id]; c != nil {
				g.remove(c, incarnation)
			}
		}
	case isGone(err) || time.Since(silent[incarnation]) >= g.options.LostAfter:
		g.log.Info("autograd contexts have ended with their worker", "worker", u.name, "contexts", len(u.contexts), "error", err)
		for _, c := range u.contexts {
			g.remove(c, incarnation)
		}
	}
}

// isGone reports whether err is that of a call of a worker that cannot come back.
func isGone(err error) bool {
	for _, gone := range []error{agent.ErrNoWorker, agent.ErrRestarted, agent.ErrRemoved, agent.ErrNoFunction} {
		if errors.Is(err, gone) {
			return true
		}
	}
	return false
}
