package dist

import (
	"context"
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/autograd"
)

// PassOptions are the options of a pass.
type PassOptions struct {
	// RetainGraph keeps the tensors that the graph has saved, on all workers, for another pass.
	RetainGraph bool

	// UnusedZero gives zeros as gradients of messages that the roots do not depend on, in place of the
	// error ErrUnused.
	UnusedZero bool
}

// Backward computes the gradients of roots, which must have one element each, for all leaves on all
// workers, and adds them to those in the Contexts there. See BackwardWith.
func (c *Context) Backward(ctx context.Context, roots ...*autograd.Variable) error {
	return c.BackwardWith(ctx, PassOptions{}, roots...)
}

// BackwardWith does what Backward does, with options. It ends with ctx. It first waits for calls that
// create values for references.
//
// The error matches ErrNoContext if c is nil or closed, ErrRoots, ErrRunning if a pass runs in c or a
// call with c is under way, or ErrUnused; or it is a *NodeError that names the worker on which the pass
// has failed. The pass has then ended on all workers, and some gradients may have been added.
func (c *Context) BackwardWith(ctx context.Context, o PassOptions, roots ...*autograd.Variable) error {
	if c == nil {
		return fmt.Errorf("%w: the Context is nil", ErrNoContext)
	}
	fed, err := rootFeeds(ctx, roots)
	if err != nil {
		return err
	}
	if err := c.awaitCreations(ctx); err != nil {
		return err
	}
	p, err := c.beginPass(o, fed)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { p.fail(context.Cause(ctx)) })()
	returned := false
	defer func() {
		if !returned { // a short function that ran here has ended the goroutine
			p.fail(errGoexit)
		}
	}()
	err = p.drive(ctx, fed)
	returned = true
	if err != nil {
		p.fail(err)
		c.mu.Lock()
		n := c.passes[p.origin]
		n.aborted = max(n.aborted, p.number)
		put(&c.passes, p.origin, n)
		c.mu.Unlock()
		c.autograd.abort(c, p.id(), p.origin)
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.err // which may be the reason for err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p.end(nil)
	return nil
}

// rootFeeds returns the gradients of the roots.
func rootFeeds(ctx context.Context, roots []*autograd.Variable) ([]feed, error) {
	if len(roots) == 0 {
		return nil, fmt.Errorf("%w: No tensors provided for gradient computation", ErrRoots)
	}
	var fed []feed
	for _, x := range roots {
		switch {
		case x == nil:
			return nil, fmt.Errorf("%w: a root is nil", ErrRoots)
		case !x.RequiresGrad():
			return nil, fmt.Errorf("%w: requires_grad not set on root %v", ErrRoots, x)
		case x.Tensor() == nil || x.Tensor().Len() != 1:
			return nil, fmt.Errorf("%w: %v is not a scalar, all roots need to be scalar", ErrRoots, x)
		case x.Node() == nil:
			return nil, fmt.Errorf("%w: %v does not have a valid gradient function", ErrRoots, x)
		}
		one, err := autograd.Ones(ctx, x)
		if err != nil {
			return nil, err
		}
		edge := x.Edge()
		grads := make([]autograd.Value, edge.Node.Outputs())
		grads[edge.Output] = one
		fed = append(fed, feed{node: edge.Node, grads: grads})
	}
	return fed, nil
}

// beginPass begins a pass at this worker.
func (c *Context) beginPass(o PassOptions, fed []feed) (*pass, error) {
	g := c.autograd
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.pass != nil {
		return nil, fmt.Errorf("%w: a pass runs in the context %d", ErrRunning, uint64(c.id))
	}
	for _, call := range c.calls {
		return nil, fmt.Errorf("%w: %s is under way", ErrRunning, call)
	}
	return c.newPass(g.lastPass.Add(1), g.agent.Incarnation(), o, fed), nil
}

// maxRounds bounds the rounds of settleAll. Each finds at least one more worker whose send nodes wait, or
// is one of the last two.
const maxRounds = 1024

// drive runs the pass from its origin, until no send node waits on any worker.
func (p *pass) drive(ctx context.Context, fed []feed) error {
	w := waits{}
	if err := p.awaitRest(ctx, fed, w); err != nil {
		return err
	}
	for round := 1; ; round++ {
		n, err := w.sum()
		if err != nil || n == 0 {
			return err
		}
		changed, err := p.settleAll(ctx, w, round)
		if err == nil && (!changed || round > maxRounds) {
			err = fmt.Errorf("%w: %d messages wait for gradients, and all for each other", ErrUnused, n)
		}
		if err != nil {
			return err
		}
	}
}

// awaitRest feeds gradients to the pass on this worker, and computes here until all that follows from them,
// here and on other workers, is done. It adds the reports of the workers to w.
func (p *pass) awaitRest(ctx context.Context, fed []feed, w waits) error {
	wake := make(chan struct{}, 1)
	p.mu.Lock()
	p.driver = wake
	p.mu.Unlock()
	done := future.New[passReport]()
	p.engage(fed, func(report passReport, err error) {
		if err != nil {
			_ = done.Fail(err) // it is called once
		} else {
			_ = done.Set(report)
		}
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	reading := &uncancelled{ctx} // the end of the pass completes it
	for p.run(ctx); !done.IsDone(); p.run(ctx) {
		from := p.awaitNext()
		p.context.autograd.agent.ReadUntil(reading, agent.To(from.Name), wake)
	}
	p.mu.Lock()
	if p.driver == wake {
		p.driver = nil
	}
	p.mu.Unlock()
	p.run(ctx) // with gradients that have come since
	report, err := done.Result()
	if err != nil {
		return err
	}
	return w.add(report)
}

// uncancelled is a context that has the values of another one, and does not end. That of context.WithoutCancel
// allocates for each Value.
type uncancelled struct{ context.Context }

// Deadline implements context.Context.
func (*uncancelled) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (*uncancelled) Done() <-chan struct{} { return nil }

// Err implements context.Context.
func (*uncancelled) Err() error { return nil }
