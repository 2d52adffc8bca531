package autograd

import (
	"context"
	"fmt"
)

// Pass is one computation of gradients through a graph: it executes each node once, when the
// gradients of all its results are known. Backward makes one; package dist feeds one with gradients
// that come from other processes. It must not be used concurrently.
type Pass struct {
	retain     bool
	accumulate func(ctx context.Context, x *Variable, grad Value) error
	steps      map[*Node]*step
	ready      []*step
	open       int
	slab       []step  // unused memory of steps
	out        []Value // memory of the results of a node
}

// step is a node in a pass.
type step struct {
	node  *Node
	waits int     // gradients that are still to come: those of edges to the node, and those to be fed
	grads []Value // of the results of its operator, summed so far
	one   [1]Value
}

// NewPass returns a Pass. It calls accumulate for each leaf to which a gradient comes; if the Value was
// made by Owned, or its memory belongs to nothing else, Accumulate may keep it without a copy. Unless
// retain is set, the nodes drop the tensors that they have saved when they are executed.
func NewPass(retain bool, accumulate func(ctx context.Context, x *Variable, grad Value) error) *Pass {
	return &Pass{retain: retain, accumulate: accumulate, steps: map[*Node]*step{}}
}

// Add adds n, and all nodes to which gradients go from it, to the pass. n waits for one call of Feed
// more. All nodes must be added before Run.
func (p *Pass) Add(n *Node) {
	p.step(n).waits++
}

// Has reports whether n is part of the pass.
func (p *Pass) Has(n *Node) bool { return p.steps[n] != nil }

// Open returns the number of nodes that are not executed.
func (p *Pass) Open() int { return p.open }

// step returns the step of n, which it adds with all that follow if there is none.
func (p *Pass) step(n *Node) *step {
	if s := p.steps[n]; s != nil {
		return s
	}
	first := p.newStep(n)
	for pending := []*step{first}; len(pending) > 0; {
		last := len(pending) - 1
		n := pending[last].node
		pending = pending[:last]
		for _, edge := range n.edges {
			if edge.Node == nil {
				continue
			}
			s := p.steps[edge.Node]
			if s == nil {
				s = p.newStep(edge.Node)
				pending = append(pending, s)
			}
			s.waits++
		}
	}
	return first
}

// newStep adds a step for n.
func (p *Pass) newStep(n *Node) *step {
	if len(p.slab) == 0 {
		p.slab = make([]step, min(max(8, len(p.steps)), 256))
	}
	s := &p.slab[0]
	p.slab = p.slab[1:]
	s.node = n
	if s.grads = s.one[:]; n.outputs != 1 {
		s.grads = make([]Value, n.outputs)
	}
	p.steps[n] = s
	p.open++
	return s
}

// Feed adds grads to the gradients of the results of n, which Add has added: one for each, of which
// some may be zero Values. The error is a *GradientError, or one of adding gradients.
func (p *Pass) Feed(ctx context.Context, n *Node, grads ...Value) error {
	s := p.steps[n]
	if s == nil || len(grads) != len(s.grads) {
		return opError(n.name, fmt.Errorf("%w: %d gradients were fed, want %d", ErrNoGradient, len(grads), n.outputs))
	}
	for i, g := range grads {
		if err := p.add(ctx, s, i, g); err != nil {
			return err
		}
	}
	p.arrived(s)
	return nil
}

// add adds g to the gradient of a result of a node.
func (p *Pass) add(ctx context.Context, s *step, output int, g Value) error {
	if g.IsZero() {
		return nil
	}
	g, err := s.node.form(output).fit(ctx, g)
	if err == nil {
		s.grads[output], err = s.grads[output].sum(ctx, g)
	}
	return opError(s.node.name, err)
}

// arrived records that one of the gradients has come for which s waits.
func (p *Pass) arrived(s *step) {
	if s.waits--; s.waits == 0 {
		p.ready = append(p.ready, s)
	}
}

// Run executes all nodes that can be executed, until there are none. Others may remain, which wait for
// Feed. The error is the first of a node, an *OpError, or that of ctx; the pass must not be used after
// it.
func (p *Pass) Run(ctx context.Context) error {
	ctx = NoGrad(ctx)
	for len(p.ready) > 0 {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		last := len(p.ready) - 1
		s := p.ready[last]
		p.ready = p.ready[:last]
		if err := p.execute(ctx, s); err != nil {
			return err
		}
		p.open--
	}
	return nil
}

// execute executes a node.
func (p *Pass) execute(ctx context.Context, s *step) error {
	n, grads := s.node, s.grads
	s.grads = nil
	backward, hooks, err := n.start()
	if err != nil {
		return opError(n.name, err)
	}
	for _, h := range hooks.pre {
		if g := grads[h.output]; !g.IsZero() {
			if grads[h.output], err = h.f(ctx, g.Shared()); err != nil {
				return opError(n.name, err)
			}
			grads[h.output].unique = false
		}
	}
	out := p.out[:0]
	for range n.edges {
		out = append(out, Value{})
	}
	p.out = out
	switch {
	case n.leaf != nil:
		if g := grads[0]; !g.IsZero() {
			if len(hooks.post) > 0 {
				g.unique = false
			}
			err = p.accumulate(ctx, n.leaf, g)
		}
	case n.takesAll || anyGradient(grads):
		err = p.computeGradients(ctx, n, backward, grads, out)
	}
	for _, f := range hooks.post {
		if err == nil {
			err = f(ctx, out, grads)
		}
	}
	if err != nil {
		return opError(n.name, err)
	}
	for i, edge := range n.edges {
		if edge.Node == nil {
			continue
		}
		next := p.steps[edge.Node]
		g := out[i]
		g.unique = g.unique && len(hooks.post) == 0
		if err := p.add(ctx, next, edge.Output, g); err != nil {
			return err
		}
		p.arrived(next)
	}
	clear(out)
	if !p.retain {
		n.release()
	}
	return nil
}

func anyGradient(grads []Value) bool {
	for _, g := range grads {
		if !g.IsZero() {
			return true
		}
	}
	return false
}

// computeGradients calls backward, and finds out whether others hold the memory of its results.
func (p *Pass) computeGradients(ctx context.Context, n *Node, backward backwardFunc, grads, out []Value) error {
	if !n.takesAll {
		for i, g := range grads {
			if g.IsZero() {
				z, err := n.form(i).zeros(ctx)
				if err != nil {
					return err
				}
				grads[i] = z
			}
		}
	}
	if err := backward(ctx, grads, out); err != nil {
		return err
	}
	for i := range out {
		out[i].unique = true
		for _, g := range grads {
			if out[i].sharesMemory(g) {
				out[i].unique = out[i].unique && g.unique
			}
		}
		for k := range i {
			if out[i].sharesMemory(out[k]) {
				out[i].unique, out[k].unique = false, false
			}
		}
	}
	return nil
}
