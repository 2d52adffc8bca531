package autograd

// step is a node in a pass.
type step struct {
	node  *Node
	waits int     // gradients that are still to come: those of edges to the node, and those to be fed
	grads []Value // of the results of its operator, summed so far
	one   [1]Value
}

// stepTable has the steps of a pass, by their nodes. It is a hash table whose hashes are the numbers of
// the nodes: those of one graph follow each other, so that there are few collisions.
type stepTable struct {
	slots  []*step // a power of two
	n      int
	unused []step // memory of further steps

	firstSlots [16]*step // memory of small graphs
	firstSteps [8]step
}

// find returns the step of n, or nil if there is none.
func (t *stepTable) find(n *Node) *step {
	if len(t.slots) == 0 {
		return nil
	}
	mask := uint64(len(t.slots) - 1)
	for i := n.number; ; i++ {
		if s := t.slots[i&mask]; s == nil || s.node == n {
			return s
		}
	}
}

// add adds a step for n, which has none.
func (t *stepTable) add(n *Node) *step {
	if 2*t.n >= len(t.slots) {
		old := t.slots
		if t.slots = t.firstSlots[:]; old != nil {
			t.slots = make([]*step, 2*len(old))
		}
		for _, s := range old {
			if s != nil {
				t.insert(s)
			}
		}
	}
	if len(t.unused) == 0 {
		if t.unused = t.firstSteps[:]; t.n > 0 {
			t.unused = make([]step, min(t.n, 256))
		}
	}
	s := &t.unused[0]
	t.unused = t.unused[1:]
	s.node = n
	if s.grads = s.one[:]; n.outputs != 1 {
		s.grads = make([]Value, n.outputs)
	}
	t.insert(s)
	t.n++
	return s
}

// insert stores s in an empty slot.
func (t *stepTable) insert(s *step) {
	mask := uint64(len(t.slots) - 1)
	i := s.node.number
	for t.slots[i&mask] != nil {
		i++
	}
	t.slots[i&mask] = s
}

// Add adds n, and all nodes to which gradients go from it, to the pass. n waits for one call of Feed
// more. All nodes must be added before Run. Nothing is added for nil.
func (p *Pass) Add(n *Node) {
	if n != nil {
		p.step(n).waits++
	}
}

// Has reports whether n is part of the pass.
func (p *Pass) Has(n *Node) bool { return n != nil && p.steps.find(n) != nil }

// Open returns the number of nodes that are not executed.
func (p *Pass) Open() int { return p.open }

// step returns the step of n, which it adds with all that follow if there is none.
func (p *Pass) step(n *Node) *step {
	if s := p.steps.find(n); s != nil {
		return s
	}
	first := p.steps.add(n)
	p.open++
	for pending := append(make([]*step, 0, 16), first); len(pending) > 0; {
		last := len(pending) - 1
		n := pending[last].node
		pending = pending[:last]
		for _, edge := range n.edges {
			if edge.Node == nil {
				continue
			}
			s := p.steps.find(edge.Node)
			if s == nil {
				s = p.steps.add(edge.Node)
				p.open++
				pending = append(pending, s)
			}
			s.waits++
		}
	}
	return first
}
