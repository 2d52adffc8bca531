package dist

import (
	"context"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
)

// pass is the part of a pass that one worker executes. Gradients come to it by Feed of the local graph:
// at its roots, and at the send nodes of messages.
//
// The pass as a whole is quiet when no worker computes and no message with gradients is under way. Its
// origin learns that by the algorithm of Dijkstra and Scholten: the first message that comes to a worker
// at rest is answered only when the worker is at rest again, and all messages that it has sent meanwhile
// are answered; others are answered at once. Answers also tell how many send nodes still wait.
type pass struct {
	context *Context
	number  uint64
	origin  agent.Incarnation
	options PassOptions
	ctx     context.Context // of the computations
	stop    context.CancelCauseFunc

	mu      sync.Mutex
	graph   *autograd.Pass
	sends   map[uint64]*sendNode // that wait for gradients
	fed     []feed               // to be given to graph
	running bool                 // a goroutine computes
	open    int                  // messages with gradients that were sent and are not answered
	waiting []*agent.Future[passReport]
	parent  func(passReport, error) // answers the message that has ended the last rest; nil at rest
	told    int                     // the number of waiting send nodes in the last report
	report  passReport              // what other workers have reported, to be passed on
	err     error                   // why the pass has failed
}

// feed is gradients for a node of the local graph: a root, or the send node of a message.
type feed struct {
	node    *autograd.Node
	message uint64 // 0 for a root
	grads   []autograd.Value
}

// passReport is by how much the number of send nodes that wait has changed on each worker.
type passReport struct {
	_       struct{} `tensorpipe:"dist.report"`
	Changes []passChange
}

type passChange struct {
	_           struct{} `tensorpipe:"dist.change"`
	Worker      string
	Incarnation agent.Incarnation
	Waiting     int
}

// passKey is the key of the pass in the context.Context of its computations.
type passKey struct{}

func passOf(ctx context.Context) *pass {
	p, _ := ctx.Value(passKey{}).(*pass)
	return p
}

// newPass begins the part of a pass in c on this worker, whose graph has the send nodes of c and roots.
// The caller holds c.mu.
func (c *Context) newPass(number uint64, origin agent.Incarnation, o PassOptions, roots []*autograd.Node) *pass {
	p := &pass{context: c, number: number, origin: origin, options: o, sends: map[uint64]*sendNode{}}
	ctx, stop := context.WithCancelCause(c.autograd.base)
	if e := c.autograd.options.Engine; e != nil {
		ctx = autograd.WithEngine(ctx, e)
	}
	p.ctx, p.stop = context.WithValue(c.In(ctx), passKey{}, p), stop
	p.graph = autograd.NewPass(o.RetainGraph, c.accumulate)
	for _, n := range roots {
		p.graph.Add(n)
	}
	for _, number := range c.order {
		if s := c.sends[number]; s != nil {
			p.sends[number] = s
			p.graph.Add(s.node)
		}
	}
	c.pass = p
	return p
}

// fail ends the pass on this worker with err, unless it has ended before.
func (p *pass) fail(err error) {
	c := p.context
	c.mu.Lock()
	parent := p.end(err)
	c.mu.Unlock()
	if parent != nil {
		parent(passReport{}, err)
	}
}

// end ends the pass on this worker, with err or, if err is nil, because it has nothing to do any more:
// the Context is free for another one. It returns what is to be called with the error, or nil. The
// caller holds the lock of the Context.
func (p *pass) end(err error) (parent func(passReport, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return nil
	}
	if p.err = err; err != nil {
		parent, p.parent, p.fed = p.parent, nil, nil
	}
	p.stop(err)
	c := p.context
	if c.pass == p {
		c.pass, c.last = nil, p
	}
	if c.ended == nil {
		c.ended = map[agent.Incarnation]uint64{}
	}
	c.ended[p.origin] = max(c.ended[p.origin], p.number)
	return parent
}

// failure returns why the pass has failed, or nil.
func (p *pass) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// engage feeds gradients that a message has brought. answer is called when the worker is at rest again,
// or at once if it is not at rest now.
func (p *pass) engage(fed []feed, answer func(passReport, error)) {
	p.mu.Lock()
	if err := p.err; err != nil {
		p.mu.Unlock()
		answer(passReport{}, err)
		return
	}
	busy := p.parent != nil
	if !busy {
		p.parent = answer
	}
	for _, f := range fed {
		if f.message != 0 {
			if p.sends[f.message] == nil {
				continue // it has got its gradients meanwhile
			}
			delete(p.sends, f.message)
		}
		p.fed = append(p.fed, f)
	}
	p.mu.Unlock()
	if busy {
		answer(passReport{}, nil)
	}
	p.run()
}

// run computes until there is nothing to compute, unless another goroutine does. If the worker is at
// rest then, it answers its parent.
func (p *pass) run() {
	p.mu.Lock()
	if p.running {
		p.mu.Unlock()
		return
	}
	p.running = true
	for len(p.fed) > 0 && p.err == nil {
		fed := p.fed
		p.fed = nil
		p.mu.Unlock()
		err := p.compute(fed)
		if err != nil {
			p.fail(nodeError(p.context.autograd.self, err))
		}
		p.mu.Lock()
	}
	p.running = false
	p.mu.Unlock()
	p.rest()
}

// compute feeds gradients to the local graph, and executes what it can.
func (p *pass) compute(fed []feed) error {
	for _, f := range fed {
		if err := p.graph.Feed(p.ctx, f.node, f.grads...); err != nil {
			return err
		}
	}
	return p.graph.Run(p.ctx)
}

// rest answers the parent if the worker is at rest.
func (p *pass) rest() {
	p.mu.Lock()
	if p.running || p.open > 0 || len(p.fed) > 0 || p.parent == nil || p.err != nil {
		p.mu.Unlock()
		return
	}
	report := p.report
	p.report = passReport{}
	if now := len(p.sends); now != p.told {
		g := p.context.autograd
		report.Changes = append(report.Changes, passChange{Worker: g.self.Name, Incarnation: g.agent.Incarnation(), Waiting: now - p.told})
		p.told = now
	}
	parent, done := p.parent, len(p.sends) == 0 && p.origin != p.context.autograd.agent.Incarnation()
	p.parent = nil
	p.mu.Unlock()
	if done {
		p.context.mu.Lock()
		p.end(nil)
		p.context.mu.Unlock()
	}
	parent(report, nil)
}

// answered records the answer to a message with gradients.
func (p *pass) answered(report passReport, err error) {
	p.mu.Lock()
	p.open--
	p.report.Changes = append(p.report.Changes, report.Changes...)
	p.mu.Unlock()
	if err != nil {
		p.fail(nodeError(p.context.autograd.self, err))
		return
	}
	p.rest()
}

// nextAnswer returns a message with gradients whose answer is awaited, or nil.
func (p *pass) nextAnswer() *agent.Future[passReport] {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.waiting) > 0 {
		f := p.waiting[0]
		p.waiting = p.waiting[1:]
		if !f.IsDone() {
			return f
		}
	}
	return nil
}
