package dist

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
)

// pass is the part of a pass that one worker executes. Gradients come to it by Feed of the local graph:
// at its roots, and at the send nodes of messages.
//
// The pass as a whole is quiet when no worker computes and no message with gradients is under way. Its
// origin learns that by the algorithm of Dijkstra and Scholten: the first message that comes to a worker
// at rest is answered only when the worker is at rest again, and all messages that it has sent since
// are answered; others are answered at once, or soon. Answers also have the number of send nodes that still
// wait.
type pass struct {
	context *Context
	number  uint64
	origin  agent.Incarnation
	options PassOptions
	ctx     context.Context // ends with the pass
	stop    context.CancelCauseFunc

	mu      sync.Mutex
	graph   *autograd.Pass
	sends   map[uint64]*sendNode      // that wait for gradients
	fed     []feed                    // to be given to graph
	running bool                      // a goroutine computes
	open    int                       // messages with gradients that were sent and are not answered
	waiting []answer                  // to these messages, of which some may have come
	awaited peer                      // the worker whose answer is awaited next
	driver  chan struct{}             // wakes the goroutine in awaitRest, which computes; its capacity is 1; nil if there is none
	parent  func(passReport, error)   // answers the message that has ended the last rest; nil at rest
	owed    []func(passReport, error) // answer other messages, see engage
	overdue *time.Timer               // gives these answers
	told    int                       // the number of waiting send nodes in the last report
	round   int                       // of the last request to settle
	reports waits                     // what other workers have reported, to be passed on
	err     error                     // why the pass has failed
}

// feed is gradients for a node of the local graph: a root, or the send node of a message.
type feed struct {
	node    *autograd.Node
	message uint64 // 0 for a root
	grads   []autograd.Value
}

// answer is the awaited answer of a worker to a message with gradients.
type answer struct {
	*agent.Future[passReport]
	from peer
}

// passContext is the context of computations: it ends with the pass, and has the values of the context
// of Backward, or of the handler that computes.
type passContext struct {
	context.Context
	pass   *pass
	values context.Context
}

// passKey is the key of the pass in a passContext.
type passKey struct{}

func passOf(ctx context.Context) *pass {
	p, _ := ctx.Value(passKey{}).(*pass)
	return p
}

// Value implements context.Context.
func (c *passContext) Value(key any) any {
	switch key.(type) {
	case passKey:
		return c.pass
	case contextKey:
		return c.pass.context
	}
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
}

// with returns a passContext with the values of ctx. It has the engine of ctx or, if ctx has none, that
// of Options.
func (p *pass) with(ctx context.Context) context.Context {
	var c context.Context = &passContext{Context: p.ctx, pass: p, values: ctx}
	if e := p.context.autograd.options.Engine; e != nil && autograd.EngineOf(ctx) == defaultEngine {
		c = autograd.WithEngine(c, e)
	}
	return c
}

// defaultEngine is the engine of a context that has none.
var defaultEngine = autograd.EngineOf(context.Background())

// newPass begins the part of a pass in c on this worker, whose graph has the send nodes of c and roots.
// The caller holds c.mu.
func (c *Context) newPass(number uint64, origin agent.Incarnation, o PassOptions, roots []feed) *pass {
	p := &pass{context: c, number: number, origin: origin, options: o, sends: map[uint64]*sendNode{}}
	p.ctx, p.stop = context.WithCancelCause(c.autograd.base)
	p.graph = autograd.NewPass(o.RetainGraph, c.accumulate)
	for _, f := range roots {
		p.graph.Add(f.node)
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
	answers := p.end(err)
	c.mu.Unlock()
	for _, answer := range answers {
		answer(passReport{}, err)
	}
}

// end ends the pass on this worker, with err or, if err is nil, because it has nothing to do any more:
// the Context is free for another one. It returns the functions that the caller calls with the error. The
// caller holds the lock of the Context.
func (p *pass) end(err error) (answers []func(passReport, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return nil
	}
	p.waiting = nil
	if p.err = err; err != nil {
		if p.parent != nil {
			answers = append(answers, p.parent)
		}
		answers = append(answers, p.owed...)
		p.parent, p.owed, p.fed = nil, nil, nil
	}
	p.stop(err)
	c := p.context
	if c.pass == p {
		c.pass, c.last = nil, nil
		if err == nil && p.origin != c.autograd.agent.Incarnation() {
			c.last = p // other workers may ask for its nodes
		}
	}
	n := c.passes[p.origin]
	if p.number >= n.ended {
		n.ended, n.why = p.number, err
	}
	put(&c.passes, p.origin, n)
	return answers
}

// maxOwed bounds how long an answer is owed: a computation may wait for memory that the answer releases.
const maxOwed = 5 * time.Millisecond

// engage feeds gradients that a message has brought, or the roots. The caller then has them computed, by
// wakeDriver or run. answer is called when the worker is at rest again. If it is not at rest now, answer is
// called at once, and by the origin after the computation or maxOwed: what follows from the gradients then
// leaves before the answer, so that the worker to which both go is not at rest in between. The error of answer
// is that of the pass, or matches ErrNoSend if a send node has its gradients already.
func (p *pass) engage(fed []feed, answer func(passReport, error)) {
	p.mu.Lock()
	err := p.err
	for _, f := range fed {
		if err == nil && f.message != 0 && p.sends[f.message] == nil {
			err = nodeError(p.context.autograd.self, fmt.Errorf("%w: %d: it has its gradients", ErrNoSend, f.message))
		}
	}
	if err != nil {
		p.mu.Unlock()
		answer(passReport{}, err)
		return
	}
	switch {
	case p.parent == nil:
		p.parent, answer = answer, nil
	case p.origin == p.context.autograd.agent.Incarnation():
		if p.overdue == nil {
			p.overdue = time.AfterFunc(maxOwed, p.answerOwed)
		} else if len(p.owed) == 0 {
			p.overdue.Reset(maxOwed)
		}
		p.owed, answer = append(p.owed, answer), nil
	}
	for _, f := range fed {
		delete(p.sends, f.message)
		p.fed = append(p.fed, f)
	}
	p.mu.Unlock()
	if answer != nil {
		answer(passReport{}, nil)
	}
}

// answerOwed gives the answers that are owed.
func (p *pass) answerOwed() {
	p.mu.Lock()
	owed := p.owed
	p.owed = nil
	if p.overdue != nil {
		p.overdue.Stop()
	}
	p.mu.Unlock()
	for _, answer := range owed {
		answer(passReport{}, nil)
	}
}

// wakeDriver wakes the goroutine that waits in awaitRest and computes. It returns false if there is none.
func (p *pass) wakeDriver() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.driver == nil {
		return false
	}
	select {
	case p.driver <- struct{}{}:
	default: // it has a token already
	}
	return true
}

// run computes with the values of ctx until there is nothing to compute, unless another goroutine does. If the worker is at
// rest then, it answers its parent.
func (p *pass) run(ctx context.Context) {
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
		p.compute(p.with(ctx), fed)
		p.answerOwed()
		p.mu.Lock()
	}
	p.running = false
	p.mu.Unlock()
	p.answerOwed() // also without a computation
	p.rest()
}

// compute feeds gradients to the local graph, and executes all nodes that have their gradients. If that fails
// the pass does, with an *agent.PanicError if a function of the application panics or ends the goroutine.
func (p *pass) compute(ctx context.Context, fed []feed) {
	err := errGoexit // unless execute returns, or panics
	defer func() {
		if v := recover(); v != nil {
			err = &agent.PanicError{Value: fmt.Sprint(v), Stack: string(debug.Stack())}
		}
		if err != nil {
			p.fail(nodeError(p.context.autograd.self, err))
		}
	}()
	err = p.execute(ctx, fed)
}

var errGoexit error = &agent.PanicError{Value: "runtime.Goexit"}

func (p *pass) execute(ctx context.Context, fed []feed) error {
	for _, f := range fed {
		for i := range f.grads { // a device map may send tensors of several devices to one
			var err error
			if f.grads[i], err = f.node.OnDevice(ctx, i, f.grads[i]); err != nil {
				return err
			}
		}
		if err := p.graph.Feed(ctx, f.node, f.grads...); err != nil {
			return err
		}
	}
	return p.graph.Run(ctx)
}

// rest answers the parent if the worker is at rest.
func (p *pass) rest() {
	p.mu.Lock()
	if p.running || p.open > 0 || len(p.fed) > 0 || p.parent == nil || p.err != nil {
		p.mu.Unlock()
		return
	}
	report := p.takeReport()
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

// takeReport returns what this worker has to report. The caller holds p.mu.
func (p *pass) takeReport() passReport {
	if now := len(p.sends); now != p.told {
		g := p.context.autograd
		p.reports.change(passChange{Worker: g.self.Name, Incarnation: g.agent.Incarnation(), Waiting: now - p.told})
		p.told = now
	}
	report := p.reports.report()
	clear(p.reports)
	return report
}

// answered records the answer to a message with gradients.
func (p *pass) answered(report passReport, err error) {
	p.mu.Lock()
	p.open--
	if err == nil {
		err = p.reports.add(report)
	}
	p.mu.Unlock()
	if err != nil {
		p.fail(nodeError(p.context.autograd.self, err))
		return
	}
	p.rest()
	p.mu.Lock()
	before := p.awaited
	p.mu.Unlock()
	if p.awaitNext() != before {
		p.wakeDriver()
	}
}

// awaitNext sets p.awaited to a worker whose answer is awaited, or to the zero peer if there is none, and
// returns it.
func (p *pass) awaitNext() peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.waiting) > 0 && p.waiting[0].IsDone() {
		p.waiting = p.waiting[1:]
	}
	p.awaited = peer{}
	if len(p.waiting) > 0 {
		p.awaited = p.waiting[0].from
	}
	return p.awaited
}
