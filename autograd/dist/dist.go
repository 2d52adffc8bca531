package dist

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// Options configures distributed autograd on a worker. Zero fields stand for the defaults.
type Options struct {
	// Engine is that of the contexts of requests to this worker, for functions, operators and optimizers
	// here, and computes gradients, unless Backward is called here with a context that has an engine. See
	// autograd.WithEngine. It needs the kernels of the devices that this worker uses. Default: that of
	// package autograd.
	Engine *ops.Engine

	// MaxContexts bounds the Contexts that requests of one other worker may bring here, and MaxBytes
	// the bytes of the Variables in its requests, until their Contexts end. Beyond them requests fail
	// with agent.ErrOverloaded. Defaults 4096 and 4 GiB.
	MaxContexts int
	MaxBytes    int64

	// LostAfter is how long a worker that cannot be reached may have Contexts here. Default 30 s.
	LostAfter time.Duration
}

// Autograd adds distributed autograd to an agent: list it in agent.Config.Extensions. It serves one
// agent.
type Autograd struct {
	options Options
	agent   *agent.Agent
	self    agent.WorkerInfo
	log     logger

	steps sync.Mutex // of optimizers

	lastMessage atomic.Uint64 // the number of the last message that was recorded
	lastPass    atomic.Uint64 // and of the last pass that was begun

	gradientTraffic traffic

	mu          sync.Mutex
	closed      bool
	lastContext uint64
	contexts    map[uint64]*Context
	usages      map[agent.Incarnation]usage // by the workers whose requests have brought it
	ended       endedContexts
	cleanups    map[agent.Incarnation]*cleanup
	changed     chan struct{} // closed when the next clean-up has ended

	base    context.Context
	stop    context.CancelFunc
	unwatch func()
	work    sync.WaitGroup
}

type logger interface {
	Debug(msg string, args ...any)
	Info(msg string, args ...any)
	Warn(msg string, args ...any)
}

// autogradKey is the key of the extension.
type autogradKey struct{}

// New returns distributed autograd for a worker, for agent.Config.Extensions.
func New(o Options) *Autograd {
	o.MaxContexts = cmp.Or(max(o.MaxContexts, 0), 4096)
	o.MaxBytes = cmp.Or(max(o.MaxBytes, 0), 4<<30)
	o.LostAfter = cmp.Or(max(o.LostAfter, 0), 30*time.Second)
	return &Autograd{
		options: o, contexts: map[uint64]*Context{}, usages: map[agent.Incarnation]usage{},
		cleanups: map[agent.Incarnation]*cleanup{}, changed: make(chan struct{}),
		lastContext: rand.Uint64N(1 << 47),
	}
}

// Of returns distributed autograd of the agent a. The error matches ErrNoAgent if it has none.
func Of(a *agent.Agent) (*Autograd, error) {
	if a != nil {
		if g, ok := a.Extension(autogradKey{}).(*Autograd); ok {
			return g, nil
		}
	}
	return nil, ErrNoAgent
}

// Key implements agent.Extension.
func (g *Autograd) Key() any { return autogradKey{} }

// Configure implements agent.Extension.
func (g *Autograd) Configure(c *agent.Config) error {
	if g.log != nil {
		return fmt.Errorf("%w: an Autograd serves one agent", agent.ErrConfig)
	}
	g.log = c.Logger.With("worker", c.Name)
	for typ, h := range g.handlers() {
		if _, taken := c.Handlers[typ]; taken {
			return fmt.Errorf("%w: handler of type %s: it belongs to package dist", agent.ErrConfig, typ)
		}
		c.Handlers[typ] = h
	}
	for name, err := range registered {
		if err := c.Registry.RegisterError(name, err); err != nil {
			return err
		}
	}
	if err := codec.Hook(c.Registry, "autograd.Variable", encodeVariable, decodeVariable); err != nil {
		return err
	}
	for name, sample := range map[string]any{"dist.NodeError": &NodeError{}, "dist.SGD": SGD{}, "dist.Adam": Adam{}, "dist.Adagrad": Adagrad{}, "autograd.Variables": []*autograd.Variable(nil)} {
		if err := c.Registry.Register(name, sample); err != nil {
			return err
		}
	}
	operators, err := differentiable(c.Operators)
	if err != nil {
		return err
	}
	c.Operators = operators
	if err := addMethods(c); err != nil {
		return err
	}
	c.Funcs = append(c.Funcs, newStepper.Serve(makeStepper))
	c.Interceptors = append(c.Interceptors, agent.Interceptor{
		Encoding: g.encoding, Encoded: g.encoded, Received: g.received, Decoded: g.decoded,
	})
	return nil
}

// Start implements agent.Extension.
func (g *Autograd) Start(a *agent.Agent) error {
	g.agent, g.self = a, a.Self()
	g.lastMessage.Store(rand.Uint64N(1 << 47))
	ctx, stop := context.WithCancel(context.Background())
	g.base, g.stop = ctx, stop
	g.unwatch = a.Watch(g.memberChanged)
	g.work.Go(g.checkContexts)
	return nil
}

// Drain implements agent.Extension: it waits until the clean-up of closed Contexts has reached the
// other workers.
func (g *Autograd) Drain(ctx context.Context) error {
	for {
		g.mu.Lock()
		n, changed := len(g.cleanups), g.changed
		g.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("dist: %d workers have not been told which contexts are closed: %w", n, context.Cause(ctx))
		}
	}
}

// Close implements agent.Extension: it ends all Contexts on this worker.
func (g *Autograd) Close() error {
	g.unwatch()
	g.mu.Lock()
	g.closed = true
	var all []*Context
	for _, c := range g.contexts {
		all = append(all, c)
	}
	g.mu.Unlock()
	for _, c := range all {
		g.remove(c, g.agent.Incarnation())
	}
	g.stop()
	g.work.Wait()
	return nil
}

// Metrics implements agent.Extension. The first two names are PyTorch's.
func (g *Autograd) Metrics() map[string]int64 {
	m := map[string]int64{"num_autograd_contexts": 0, "num_current_backward_passes": 0, "dist.send_nodes": 0, "dist.receive_nodes": 0}
	for _, c := range g.all() {
		c.mu.Lock()
		m["num_autograd_contexts"]++
		if c.pass != nil {
			m["num_current_backward_passes"]++
		}
		m["dist.send_nodes"] += int64(len(c.sends))
		m["dist.receive_nodes"] += int64(len(c.receives))
		c.mu.Unlock()
	}
	return m
}

// Dump implements agent.Extension.
func (g *Autograd) Dump(w io.Writer) error {
	for _, c := range g.all() {
		c.gradsMu.Lock()
		grads := len(c.grads)
		c.gradsMu.Unlock()
		c.mu.Lock()
		_, err := fmt.Fprintf(w, "autograd context %v of %s: %d send nodes, %d receive nodes, %d gradients, %d calls under way, pass: %v\n",
			c.id, c.creatorName, len(c.sends), len(c.receives), grads, len(c.calls), c.pass != nil)
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// all returns all Contexts on this worker.
func (g *Autograd) all() []*Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]*Context, 0, len(g.contexts))
	for _, c := range g.contexts {
		all = append(all, c)
	}
	return all
}
