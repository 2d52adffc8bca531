package autograd

import (
	"context"
	"fmt"
	"slices"
)

// Pass is one computation of gradients through a graph: it executes each node once, when the
// gradients of all its results are known. Backward makes one; package dist feeds one with gradients
// that come from other processes. A Pass must not be used concurrently; several may execute the nodes
// of one graph at the same time.
type Pass struct {
	retain     bool
	accumulate func(ctx context.Context, x *Variable, grad Value) error
	steps      stepTable
	ready      []*step
	open       int
	out        []Value // memory of the results of a node

	firstReady [4]*step // memory of ready and out in small graphs
	firstOut   [4]Value
}

// NewPass returns a Pass. It calls accumulate for each leaf to which a gradient comes; if the Value was
// made by Owned, or its memory belongs to nothing else, Accumulate may keep it without a copy. Without
// accumulate the leaves get the gradients, see Variable.Grad. Unless retain is set, the nodes drop the
// tensors that they have saved when they are executed.
func NewPass(retain bool, accumulate func(ctx context.Context, x *Variable, grad Value) error) *Pass {
	if accumulate == nil {
		accumulate = addToLeaf
	}
	p := &Pass{retain: retain, accumulate: accumulate}
	p.ready, p.out = p.firstReady[:0], p.firstOut[:0]
	return p
}

// Feed adds grads to the gradients of the results of n, which Add has added: one for each, of which
// some may be zero Values. The error is a *GradientError, or one of adding gradients.
func (p *Pass) Feed(ctx context.Context, n *Node, grads ...Value) error {
	if !p.Has(n) {
		return opError("backward", fmt.Errorf("%w: the node is not part of the pass", ErrNoGradient))
	}
	s := p.steps.find(n)
	if s.waits == 0 || len(grads) != n.outputs {
		err := fmt.Errorf("%w: it waits for %d times %d gradients, not for %d",
			ErrNoGradient, s.waits, n.outputs, len(grads))
		return opError(n.name, err)
	}
	for i, g := range grads {
		if err := p.add(ctx, s, i, g); err != nil {
			return opError(n.name, err)
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
	return err
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
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		last := len(p.ready) - 1
		s := p.ready[last]
		p.ready[last], p.ready = nil, p.ready[:last]
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
	if err := callHooks(ctx, n, hooks.pre, grads); err != nil {
		return opError(n.name, err)
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
		err = computeGradients(ctx, n, backward, grads, out, len(hooks.post) > 0)
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
		next := p.steps.find(edge.Node)
		g := out[i]
		g.unique = g.unique && len(hooks.post) == 0
		if err := p.add(ctx, next, edge.Output, g); err != nil {
			return opError(n.name, fmt.Errorf("an invalid gradient at index %d: %w", i, err))
		}
		p.arrived(next)
	}
	clear(out)
	if !p.retain {
		n.release()
	}
	return nil
}

// callHooks replaces grads by the results of the hooks for them.
func callHooks(ctx context.Context, n *Node, hooks []outputHook, grads []Value) error {
	for _, h := range hooks {
		g := grads[h.output]
		if g.IsZero() {
			continue
		}
		after, err := h.f(ctx, g.Shared())
		if err != nil {
			return err
		}
		if !after.IsZero() && !slices.Equal(after.Shape(), g.Shape()) {
			err := &GradientError{Got: after.Shape(), Want: g.Shape()}
			return fmt.Errorf("a hook has changed the size of the value: %w", err)
		}
		if after, err = n.form(h.output).fit(ctx, after); err != nil {
			return err
		}
		grads[h.output] = after.Shared()
	}
	return nil
}

// anyGradient reports whether one of grads is not the zero Value.
func anyGradient(grads []Value) bool {
	for _, g := range grads {
		if !g.IsZero() {
			return true
		}
	}
	return false
}

// computeGradients calls backward, and finds out whether others hold the memory of its results. isShown
// is set if hooks see grads afterwards.
func computeGradients(ctx context.Context, n *Node, backward backwardFunc, grads, out []Value, isShown bool) error {
	for i, g := range grads {
		var err error
		switch {
		case g.IsZero() && !n.takesAll:
			grads[i], err = n.form(i).zeros(ctx)
		case g.sparse != nil && !n.takesSparse:
			grads[i].dense, err = engineOf(ctx).ToDense(ctx, g.sparse)
			grads[i].sparse, grads[i].unique = nil, true
		}
		if err != nil {
			return err
		}
	}
	for i := range grads {
		grads[i].unique = grads[i].unique && !isShown // backward may change it
	}
	if err := backward(ctx, grads, out); err != nil {
		return err
	}
	for i := range out {
		out[i].unique = out[i].unique || !n.isCustom
		for _, g := range grads {
			if out[i].sharesMemory(g) {
				out[i].unique = g.unique
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
