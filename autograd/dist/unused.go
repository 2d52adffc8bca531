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
	// settleRequest has a worker settle its send nodes. Round is larger in each request of a pass.
	settleRequest struct {
		_     struct{} `tensorpipe:"dist.settleRequest"`
		Pass  passID
		Round int
	}

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
	settleMessage = agent.NewMessageType[settleRequest, settleReply]("dist.settle")
	findMessage   = agent.NewMessageType[findRequest, findReply]("dist.find")
)

// settleAll has all workers with waiting send nodes find out whether gradients can still come for them,
// and waits until the pass is quiet again. It reports whether it has changed w. round is larger in each call.
func (p *pass) settleAll(ctx context.Context, w waits, round int) (changed bool, err error) {
	before := w.clone()
	var unused []string
	for _, incarnation := range slices.Collect(maps.Keys(w)) {
		worker := w[incarnation]
		if worker.n == 0 {
			continue
		}
		var reply settleReply
		if incarnation == p.origin {
			reply, err = p.settle(ctx)
		} else {
			reply, err = p.callSettle(ctx, worker.name, round)
		}
		if err == nil {
			err = w.add(reply.Report)
		}
		if err != nil {
			return false, nodeError(p.context.autograd.self, err)
		}
		unused = append(unused, reply.Unused...)
	}
	if len(unused) > 0 {
		slices.Sort(unused)
		return false, fmt.Errorf("%w: %s", ErrUnused, strings.Join(unused, ", "))
	}
	return !w.equal(before), nil
}

// callSettle has another worker settle its send nodes. It ends with the pass.
func (p *pass) callSettle(ctx context.Context, worker string, round int) (settleReply, error) {
	f := settleMessage.Go(p.ctx, p.context.autograd.agent, agent.To(worker), "", settleRequest{Pass: p.id(), Round: round})
	return f.Wait(context.WithoutCancel(ctx))
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
		if err := w.add(found.Report); err != nil {
			return reply, err
		}
		for i, state := range found.States {
			if state == nodeReached {
				continue
			}
			s := p.waitingSend(messages[i])
			if s == nil {
				continue // gradients have come since
			}
			grads := make([]autograd.Value, s.node.Outputs())
			if state == nodeUnreached {
				if !p.options.UnusedZero {
					reply.Unused = append(reply.Unused, fmt.Sprintf("%s, sent by %s", s, p.context.autograd.self.Name))
					continue
				}
				for k := range grads {
					if grads[k], err = s.node.Zeros(p.with(ctx), k); err != nil {
						return reply, err
					}
				}
			}
			fed = append(fed, feed{node: s.node, message: messages[i], grads: grads})
		}
	}
	if len(reply.Unused) == 0 {
		err = p.awaitRest(ctx, fed, w)
	}
	reply.Report = w.report()
	return reply, err
}

// waitingSend returns the send node of the message with that number, or nil if it waits for no gradients.
func (p *pass) waitingSend(message uint64) *sendNode {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sends[message]
}

// find asks a worker for the receive nodes of messages.
func (p *pass) find(ctx context.Context, to peer, messages []uint64) (findReply, error) {
	g := p.context.autograd
	request := findRequest{Pass: p.id(), Messages: messages}
	if to.incarnation == g.agent.Incarnation() {
		return g.findNodes(request, to.incarnation)
	}
	reply, err := findMessage.Go(p.ctx, g.agent, agent.To(to.Name), "", request).Wait(context.WithoutCancel(ctx))
	if err == nil && len(reply.States) != len(messages) {
		err = fmt.Errorf("%w: %d states of %d messages", agent.ErrProtocol, len(reply.States), len(messages))
	}
	return reply, err
}

// findNodes returns the states of the receive nodes of messages of the worker from on this worker, which
// takes part in the pass from then on if it has send nodes.
func (g *Autograd) findNodes(r findRequest, from agent.Incarnation) (reply findReply, err error) {
	c := g.context(r.Pass)
	if c == nil {
		return reply, r.Pass.Context.missing()
	}
	p, err := c.passForFind(r.Pass)
	if err != nil {
		return reply, err
	}
	reply.States = make([]int, len(r.Messages))
	receives := make([]*autograd.Node, len(r.Messages))
	c.mu.Lock()
	for i, n := range r.Messages {
		receives[i] = c.receives[receiveKey{from, n}]
	}
	c.mu.Unlock()
	for i, n := range receives {
		switch {
		case n == nil:
		case p != nil && p.graph.Has(n):
			reply.States[i] = nodeReached
		default:
			reply.States[i] = nodeUnreached
		}
	}
	if p != nil {
		p.mu.Lock()
		if p.parent == nil {
			p.told = len(p.sends)
		}
		// A number, and not a change, since the request may come twice, and one of the replies is lost.
		reply.Report.Changes = []passChange{{Worker: g.self.Name, Incarnation: g.agent.Incarnation(), Waiting: p.told, Absolute: true}}
		p.mu.Unlock()
	}
	return reply, nil
}

// passForFind returns the pass that id names, also if it has ended on this worker, or nil if this worker
// has no send nodes. The error is one of joinPass.
func (c *Context) passForFind(id passID) (*pass, error) {
	c.mu.Lock()
	last, aborted, none := c.last, c.passes[id.Origin].aborted, len(c.sends) == 0 && c.pass == nil
	c.mu.Unlock()
	switch {
	case id.Number <= aborted:
		return nil, fmt.Errorf("%w: it has ended", ErrFailed)
	case last != nil && last.number == id.Number && last.origin == id.Origin:
		return last, nil
	case none:
		return nil, nil
	}
	return c.joinPass(id)
}

// running returns the pass that id names, which must not have ended. The error is one of joinPass.
func (g *Autograd) running(id passID) (*pass, error) {
	c := g.context(id)
	if c == nil {
		return nil, id.Context.missing()
	}
	return c.joinPass(id)
}

// serveFind replies to a findRequest.
func (g *Autograd) serveFind(_ context.Context, q *agent.Request, r *findRequest) {
	reply, err := g.findNodes(*r, q.Incarnation())
	if err != nil {
		_ = q.Fail(nodeError(g.self, err))
		return
	}
	_ = q.Reply(&reply)
}

// serveSettle settles the send nodes of this worker that wait in a pass.
func (g *Autograd) serveSettle(ctx context.Context, q *agent.Request, r *settleRequest) {
	var reply settleReply
	p, err := g.running(r.Pass)
	if err == nil {
		err = p.beginRound(r.Round)
	}
	if err == nil {
		reply, err = p.settle(ctx)
	}
	if err != nil {
		_ = q.Fail(nodeError(g.self, err))
		return
	}
	_ = q.Reply(&reply)
}

// beginRound records that a request to settle has come. The error matches ErrRepeated if it came before: the
// reply to the first one has the changes.
func (p *pass) beginRound(round int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if round <= p.round {
		return fmt.Errorf("%w: round %d of a pass", ErrRepeated, round)
	}
	p.round = round
	return nil
}
