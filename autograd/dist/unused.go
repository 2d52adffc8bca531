package dist

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
)

// When a pass is quiet and send nodes still wait, each worker that has some asks the receivers of the
// messages for their receive nodes. One that the pass has reached may still get gradients. One that it
// has not reached never will: the message is unused. A receiver that does not know a message has not
// got it: its send node is dropped.

// The states of receive nodes.
const (
	nodeUnknown   = iota // there is no such node
	nodeReached          // it is part of the pass
	nodeUnreached        // nothing that the pass executes leads to it
)

type (
	// settleReply is the report of a worker whose send nodes were settled, and the messages that are
	// unused.
	settleReply struct {
		_      struct{} `tensorpipe:"dist.settleReply"`
		Report passReport
		Unused []string
	}

	// findRequest asks for the receive nodes of messages.
	findRequest struct {
		_        struct{} `tensorpipe:"dist.findRequest"`
		Pass     passID
		Messages []uint64
	}

	// findReply has the state of each node.
	findReply struct {
		_      struct{} `tensorpipe:"dist.findReply"`
		Report passReport
		States []int
	}
)

var (
	settleMessage = agent.NewMessageType[passID, settleReply]("dist.settle")
	findMessage   = agent.NewMessageType[findRequest, findReply]("dist.find")
)

// settleAll has all workers with waiting send nodes find out whether gradients can still come for them,
// and waits until the pass is quiet again.
func (p *pass) settleAll(ctx context.Context, w waits) error {
	var unused []string
	for _, incarnation := range slices.Collect(maps.Keys(w)) {
		worker := w[incarnation]
		if worker.n == 0 {
			continue
		}
		var reply settleReply
		var err error
		if incarnation == p.origin {
			reply, err = p.settle(ctx)
		} else {
			reply, err = settleMessage.Call(ctx, p.context.autograd.agent, agent.To(worker.name), "", p.id())
		}
		if err != nil {
			return nodeError(p.context.autograd.self, err)
		}
		w.add(reply.Report)
		unused = append(unused, reply.Unused...)
	}
	if len(unused) > 0 {
		slices.Sort(unused)
		return fmt.Errorf("%w: %s", ErrUnused, strings.Join(unused, ", "))
	}
	return nil
}

// settle drops the send nodes of this worker for which no gradients can come, or gives them zeros, and
// waits until the worker is at rest again.
func (p *pass) settle(ctx context.Context) (reply settleReply, err error) {
	byPeer := map[peer][]uint64{}
	p.mu.Lock()
	for n, s := range p.sends {
		byPeer[s.to] = append(byPeer[s.to], n)
	}
	p.mu.Unlock()
	w := waits{}
	var fed []feed
	for to, messages := range byPeer {
		slices.Sort(messages)
		found, err := p.find(ctx, to, messages)
		if err != nil {
			return reply, err
		}
		w.add(found.Report)
		for i, state := range found.States {
			if state == nodeReached {
				continue
			}
			s, err := p.waitingSend(messages[i])
			if err != nil {
				continue // gradients have come meanwhile
			}
			grads := make([]autograd.Value, s.node.Outputs())
			if state == nodeUnreached {
				if !p.options.UnusedZero {
					reply.Unused = append(reply.Unused, fmt.Sprintf("%s, sent by %s", s.text, p.context.autograd.self.Name))
					continue
				}
				for k := range grads {
					if grads[k], err = s.node.Zeros(ctx, k); err != nil {
						return reply, err
					}
				}
			}
			fed = append(fed, feed{s.node, messages[i], grads})
		}
	}
	if len(reply.Unused) == 0 {
		err = p.awaitRest(ctx, fed, w)
	}
	for incarnation, worker := range w {
		if worker.n != 0 {
			reply.Report.Changes = append(reply.Report.Changes, passChange{Worker: worker.name, Incarnation: incarnation, Waiting: worker.n})
		}
	}
	return reply, err
}

// find asks a worker for the receive nodes of messages.
func (p *pass) find(ctx context.Context, to peer, messages []uint64) (findReply, error) {
	g := p.context.autograd
	request := findRequest{Pass: p.id(), Messages: messages}
	if to.incarnation == g.agent.Incarnation() {
		return g.findNodes(request)
	}
	reply, err := findMessage.Call(ctx, g.agent, agent.To(to.Name), "", request)
	if err == nil && len(reply.States) != len(messages) {
		err = fmt.Errorf("%w: %d states of %d messages", agent.ErrProtocol, len(reply.States), len(messages))
	}
	return reply, err
}

// findNodes returns the states of the receive nodes of messages on this worker, which takes part in the
// pass from then on.
func (g *Autograd) findNodes(r findRequest) (reply findReply, err error) {
	p, err := g.passOrLast(r.Pass)
	if err != nil {
		return reply, err
	}
	reply.States = make([]int, len(r.Messages))
	c := p.context
	c.mu.Lock()
	receives := make([]*receiveNode, len(r.Messages))
	for i, n := range r.Messages {
		receives[i] = c.receives[n]
	}
	c.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, n := range receives {
		switch {
		case n == nil:
		case p.graph.Has(n.node):
			reply.States[i] = nodeReached
		default:
			reply.States[i] = nodeUnreached
		}
	}
	if now := len(p.sends); now != p.told && p.parent == nil {
		reply.Report.Changes = append(reply.Report.Changes, passChange{Worker: g.self.Name, Incarnation: g.agent.Incarnation(), Waiting: now - p.told})
		p.told = now
	}
	return reply, nil
}

// passOrLast returns the pass that id names, also if it has ended on this worker.
func (g *Autograd) passOrLast(id passID) (*pass, error) {
	g.mu.Lock()
	c := g.contexts[uint64(id.Context)]
	g.mu.Unlock()
	if c != nil {
		c.mu.Lock()
		last := c.last
		c.mu.Unlock()
		if last != nil && last.number == id.Number && last.origin == id.Origin && last.failure() == nil {
			return last, nil
		}
	}
	return g.passFor(id)
}

// serveFind replies to a findRequest.
func (g *Autograd) serveFind(_ context.Context, q *agent.Request, r *findRequest) {
	reply, err := g.findNodes(*r)
	if err != nil {
		_ = q.Fail(nodeError(g.self, err))
		return
	}
	_ = q.Reply(&reply)
}

// serveSettle settles the send nodes of this worker that wait in a pass.
func (g *Autograd) serveSettle(ctx context.Context, q *agent.Request, id *passID) {
	p, err := g.passFor(*id)
	var reply settleReply
	if err == nil {
		reply, err = p.settle(ctx)
	}
	if err != nil {
		_ = q.Fail(nodeError(g.self, err))
		return
	}
	_ = q.Reply(&reply)
}
