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
// message with that number. It does not wait for the answer.
func (p *pass) send(ctx context.Context, n *autograd.Node, from peer, message uint64, grads []autograd.Value) error {
	c := p.context
	args := gradients{Pass: p.id(), Message: message}
	var err error
	if args.Grads, err = encodeGradients(ctx, n, grads); err != nil {
		return err
	}
	f := gradientsMessage.Go(c.autograd.base, c.autograd.agent, agent.To(from.Name), "", args)
	p.mu.Lock()
	p.open++
	p.waiting = append(p.waiting, f)
	p.mu.Unlock()
	_ = f.OnDone(func(f *agent.Future[passReport]) { // cannot fail
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

// values returns the gradients in a message for a node with n results, which own their memory.
func (m *gradients) values(n int) ([]autograd.Value, error) {
	all := make([]autograd.Value, n)
	if len(m.Grads) == 0 {
		return all, nil
	}
	if len(m.Grads) != n {
		return nil, fmt.Errorf("%w: %d gradients for a message with %d Variables", agent.ErrProtocol, len(m.Grads), n)
	}
	for i, g := range m.Grads {
		switch {
		case g.Dense != nil:
			all[i] = autograd.Owned(autograd.Dense(g.Dense))
		case g.Sparse != nil:
			all[i] = autograd.Owned(autograd.Sparse(g.Sparse))
		}
	}
	return all, nil
}

// serveGradients feeds gradients to the send node of a message.
func (g *Autograd) serveGradients(_ context.Context, q *agent.Request, m *gradients) {
	g.gradientTraffic.add(m.Grads)
	p, err := g.passFor(m.Pass)
	if err == nil {
		var s *sendNode
		if s, err = p.waitingSend(m.Message); err == nil {
			var grads []autograd.Value
			if grads, err = m.values(s.node.Outputs()); err == nil {
				p.engage([]feed{{s.node, m.Message, grads}}, func(report passReport, err error) {
					if err != nil {
						_ = q.Fail(err)
						return
					}
					_ = q.Reply(&report)
				})
				return
			}
		}
	}
	if len(m.Grads) == 0 { // nothing is lost
		_ = q.Reply(&passReport{})
		return
	}
	_ = q.Fail(nodeError(g.self, err))
}

// waitingSend returns the send node of the message with that number, which waits for gradients. The error
// matches ErrNoSend.
func (p *pass) waitingSend(message uint64) (*sendNode, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.sends[message]; s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("%w: %d", ErrNoSend, message)
}

// passFor returns the pass that a message names, which it begins on this worker if there is none. The
// error matches ErrNoContext, ErrFailed if the pass has ended, or ErrRunning if another one runs.
func (g *Autograd) passFor(id passID) (*pass, error) {
	g.mu.Lock()
	c := g.contexts[uint64(id.Context)]
	g.mu.Unlock()
	if c == nil || c.creator != id.Creator {
		return nil, id.Context.missing()
	}
	answer := func(passReport, error) {}
	defer func() { answer(passReport{}, ErrFailed) }()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.check(); err != nil {
		return nil, err
	}
	if p := c.pass; p != nil {
		switch {
		case p.number == id.Number && p.origin == id.Origin:
			return p, nil
		case p.origin != id.Origin || p.number > id.Number:
			return nil, fmt.Errorf("%w: another pass runs in the context %d", ErrRunning, uint64(id.Context))
		}
		if parent := p.end(ErrFailed); parent != nil { // its origin has begun another one since
			answer = parent
		}
	}
	if id.Number <= c.ended[id.Origin] {
		return nil, fmt.Errorf("%w: it has ended", ErrFailed)
	}
	return c.newPass(id.Number, id.Origin, PassOptions{RetainGraph: id.Retain, UnusedZero: id.Zero}, nil), nil
}
