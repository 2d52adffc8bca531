package dist

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// passID names a pass in a message. Creator is that of the Context, and Origin the incarnation of the
// worker that has begun the pass.
type passID struct {
	_       struct{} `tensorpipe:"dist.pass"`
	Context ID
	Creator agent.Incarnation
	Number  uint64
	Origin  agent.Incarnation
	Retain  bool
	Zero    bool
}

func (p *pass) id() passID {
	c := p.context
	return passID{Context: c.id, Creator: c.creator, Number: p.number, Origin: p.origin, Retain: p.options.RetainGraph, Zero: p.options.UnusedZero}
}

// gradients is the message by which a receive node returns gradients to the send node of a message.
type gradients struct {
	_       struct{} `tensorpipe:"dist.gradients"`
	Pass    passID
	Message uint64
	Grads   []gradient // none if no gradient comes to the receive node
}

// gradient is a dense or a sparse gradient.
type gradient struct {
	_      struct{} `tensorpipe:"dist.gradient"`
	Dense  *tensor.Tensor
	Sparse *tensor.Sparse
}

var gradientsMessage = agent.NewMessageType[gradients, passReport]("dist.backward")

// send sends the gradients grads of the receive node n back to the worker from, to the send node of the
// message with that number, in a call with opts. It does not wait for the answer.
func (p *pass) send(ctx context.Context, n *autograd.Node, from peer, message uint64, grads []autograd.Value, opts ...agent.CallOption) error {
	c := p.context
	args := gradients{Pass: p.id(), Message: message}
	var err error
	if args.Grads, err = encodeGradients(ctx, n, grads); err != nil {
		return err
	}
	f := gradientsMessage.Go(p.ctx, c.autograd.agent, agent.To(from.Name), "", args, opts...)
	p.mu.Lock()
	p.open++
	p.waiting = append(p.waiting, answer{f, from})
	p.mu.Unlock()
	f.Observe(func() {
		report, err := f.Result()
		p.answered(report, err)
	})
	return nil
}

// encodeGradients returns the gradients of the results of n for a message: all, or none if none comes.
func encodeGradients(ctx context.Context, n *autograd.Node, grads []autograd.Value) ([]gradient, error) {
	missing := 0
	for _, g := range grads {
		if g.IsZero() {
			missing++
		}
	}
	if missing == len(grads) {
		return nil, nil
	}
	all := make([]gradient, len(grads))
	for i, g := range grads {
		if g.IsZero() {
			var err error
			if g, err = n.Zeros(ctx, i); err != nil {
				return nil, err
			}
		}
		all[i] = gradient{Dense: g.Tensor(), Sparse: g.Sparse()}
	}
	return all, nil
}

// values returns the gradients in a message for the node n, which own their memory. The error matches
// agent.ErrProtocol.
func (m *gradients) values(n *autograd.Node) ([]autograd.Value, error) {
	all := make([]autograd.Value, n.Outputs())
	if len(m.Grads) == 0 {
		return all, nil
	}
	if len(m.Grads) != len(all) {
		return nil, fmt.Errorf("%w: %d gradients for a message with %d Variables", agent.ErrProtocol, len(m.Grads), len(all))
	}
	for i, g := range m.Grads {
		switch {
		case g.Dense != nil:
			all[i] = autograd.Owned(autograd.Dense(g.Dense))
		case g.Sparse != nil:
			all[i] = autograd.Owned(autograd.Sparse(g.Sparse))
		}
		if !all[i].IsZero() && !n.Fits(i, all[i]) {
			return nil, fmt.Errorf("%w: gradient %d of a message is %v", agent.ErrProtocol, i, all[i])
		}
	}
	return all, nil
}

// gradientsHandler serves messages with gradients.
type gradientsHandler struct{ autograd *Autograd }

type gradientsTask struct {
	autograd *Autograd
	gradients
}

// Open implements agent.Handler.
func (h gradientsHandler) Open(q *agent.Request) (agent.Task, error) {
	t := &gradientsTask{autograd: h.autograd}
	return t, q.Decode(&t.gradients)
}

// Short implements agent.ShortTask: at the origin of a pass, the goroutine that waits for it computes.
func (t *gradientsTask) Short() bool { return t.Pass.Origin == t.autograd.agent.Incarnation() }

// Run implements agent.Task: it feeds gradients to the send node of a message.
func (t *gradientsTask) Run(ctx context.Context, q *agent.Request) {
	g, m := t.autograd, &t.gradients
	g.gradientTraffic.add(m.Grads)
	p, fed, err := g.feedOf(m, q.Incarnation())
	switch {
	case err != nil:
		_ = q.Fail(nodeError(g.self, err))
	case p == nil:
		_ = q.Reply(&passReport{})
	default:
		p.engage([]feed{fed}, func(report passReport, err error) {
			if err != nil {
				_ = q.Fail(err)
				return
			}
			_ = q.Reply(&report)
		})
		switch {
		case p.wakeDriver():
		case t.Short():
			go p.run(ctx)
		default:
			p.run(ctx)
		}
	}
}

// feedOf returns the pass of a message of the worker from, and the gradients for it. The pass is nil if
// there is nothing to do: the call has failed here, and no gradient comes. The error is one of joinPass, or
// matches ErrNoSend or agent.ErrProtocol.
func (g *Autograd) feedOf(m *gradients, from agent.Incarnation) (*pass, feed, error) {
	c := g.context(m.Pass)
	if c == nil {
		return nil, feed{}, m.Pass.Context.missing()
	}
	s := c.sendFor(m)
	if s == nil || s.to.incarnation != from {
		if len(m.Grads) == 0 {
			return nil, feed{}, nil
		}
		return nil, feed{}, fmt.Errorf("%w: %d", ErrNoSend, m.Message)
	}
	grads, err := m.values(s.node)
	if err != nil {
		return nil, feed{}, err
	}
	p, err := c.joinPass(m.Pass)
	return p, feed{node: s.node, message: m.Message, grads: grads}, err
}

// context returns the Context of a pass, or nil if there is none.
func (g *Autograd) context(id passID) *Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.contexts[uint64(id.Context)]; c != nil && c.creator == id.Creator {
		return c
	}
	return nil
}

// sendFor returns the send node of a message, nil if there is none. A node that was dropped after the pass had
// begun here takes part in the pass.
func (c *Context) sendFor(m *gradients) *sendNode {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sends[m.Message]
	if p := c.pass; s == nil && p != nil && p.origin == m.Pass.Origin && p.number == m.Pass.Number {
		s = p.waitingSend(m.Message)
	}
	return s
}

// joinPass returns the pass that id names, which it begins on this worker if there is none. The error is that
// of the pass if it was the last one and has failed, or matches ErrNoContext, ErrFailed if the pass has ended,
// ErrRunning if another one runs, or agent.ErrOverloaded if too many workers have begun passes.
func (c *Context) joinPass(id passID) (*pass, error) {
	c.mu.Lock()
	p := c.pass
	c.mu.Unlock()
	if p != nil && p.origin == id.Origin && p.number < id.Number {
		p.fail(ErrFailed) // its origin has begun another one since
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.check(); err != nil {
		return nil, err
	}
	if p := c.pass; p != nil {
		switch {
		case p.origin != id.Origin:
			return nil, fmt.Errorf("%w: another pass runs in the context %d", ErrRunning, uint64(id.Context))
		case p.number == id.Number:
			return p, nil
		}
	}
	n, ok := c.passes[id.Origin]
	switch {
	case id.Number == n.ended && n.why != nil:
		return nil, n.why
	case id.Number <= n.ended, id.Origin == c.autograd.agent.Incarnation(), c.pass != nil:
		return nil, fmt.Errorf("%w: it has ended", ErrFailed)
	case !ok && len(c.passes) >= maxOrigins:
		return nil, fmt.Errorf("%w: %d workers have begun passes in the context %d", agent.ErrOverloaded, len(c.passes), uint64(id.Context))
	}
	return c.newPass(id.Number, id.Origin, PassOptions{RetainGraph: id.Retain, UnusedZero: id.Zero}, nil), nil
}
