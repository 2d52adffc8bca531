package dist

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
)

// ID identifies a Context in the group: the upper 16 bits are the rank of the worker that has made it.
type ID uint64

// Context is the part of a distributed graph that is on one worker. Its methods may be called from any
// goroutine.
type Context struct {
	autograd    *Autograd
	id          ID
	creator     agent.Incarnation
	creatorName string

	mu       sync.Mutex
	closed   bool
	sends    map[uint64]*sendNode
	receives map[receiveKey]*autograd.Node     // of messages with Variables that were received
	order    []uint64                          // the numbers of the messages in sends, as they were recorded
	peers    map[agent.Incarnation]contextPeer // other workers that were called with this Context, or have called
	calls    map[agent.CallKey]openCall        // under way
	pass     *pass                             // the one that runs, or waits for gradients
	last     *pass                             // the last one, if it has ended without an error and was begun by another worker
	passes   map[agent.Incarnation]passNumbers // by the worker that has begun them

	gradsMu sync.Mutex                            // not held together with mu
	grads   map[*autograd.Variable]autograd.Value // of leaves; nil once the Context is closed

	end     chan struct{}               // closed when the Context is
	charges map[agent.Incarnation]int64 // bytes of Variables in requests, by the worker that has sent them
	charged agent.Incarnation           // the worker whose request has brought the Context here
	since   time.Time                   // when that was
}

// contextPeer is another worker that takes part in a Context.
type contextPeer struct {
	agent.WorkerInfo
	called bool // by this one
}

// receiveKey identifies a message that was received: by its sender, and the number that it has there.
type receiveKey struct {
	from    agent.Incarnation
	message uint64
}

// passNumbers are the numbers of the last pass that has ended on this worker, with the reason, or nil, and of
// the last one that its origin has ended because it has failed.
type passNumbers struct {
	ended   uint64
	why     error
	aborted uint64
}

// maxOrigins bounds the workers that begin passes in one Context.
const maxOrigins = 1024

// contextKey is the key of the Context in a context.Context.
type contextKey struct{}

// WithContext makes a Context, and returns a context.Context for the calls that belong to it. The
// caller must call Close. The error matches ErrNoAgent, agent.ErrClosed, or ErrNested if ctx has a
// Context already.
func WithContext(ctx context.Context, a *agent.Agent) (context.Context, *Context, error) {
	g, err := Of(a)
	if err != nil {
		return ctx, nil, err
	}
	if c := FromContext(ctx); c != nil {
		return ctx, nil, fmt.Errorf("%w: %d", ErrNested, c.id)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return ctx, nil, agent.ErrClosed
	}
	g.lastContext = (g.lastContext + 1) & maxNumber
	c := g.newContext(ID(uint64(uint16(g.self.Rank))<<rankShift|g.lastContext), g.agent.Incarnation(), g.self.Name)
	return context.WithValue(ctx, contextKey{}, c), c, nil
}

// The numbers of Contexts and messages have the rank of their worker in the upper 16 bits.
const (
	rankShift = 48
	maxNumber = 1<<rankShift - 1
)

// MaxID returns the largest ID that a Context of this worker can have.
func (g *Autograd) MaxID() ID { return ID(uint64(uint16(g.self.Rank))<<rankShift | maxNumber) }

// newContext adds a Context. The caller holds g.mu.
func (g *Autograd) newContext(id ID, creator agent.Incarnation, name string) *Context {
	c := &Context{
		autograd: g, id: id, creator: creator, creatorName: name,
		grads: map[*autograd.Variable]autograd.Value{}, end: make(chan struct{}),
	}
	g.contexts[uint64(id)] = c
	return c
}

// put sets an element of a map, which it makes if it is nil: many maps of a Context stay empty.
func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

// FromContext returns the Context of ctx, or nil if it has none.
func FromContext(ctx context.Context) *Context {
	c, _ := ctx.Value(contextKey{}).(*Context)
	return c
}

// ID returns the number of c.
func (c *Context) ID() ID { return c.id }

// Context returns the Context with that number on the worker of a. The error matches ErrNoContext if
// there is none, or ErrNoAgent.
func (id ID) Context(a *agent.Agent) (*Context, error) {
	g, err := Of(a)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.contexts[uint64(id)]; c != nil {
		return c, nil
	}
	return nil, id.missing()
}

func (id ID) missing() error { return fmt.Errorf("%w with id: %d", ErrNoContext, uint64(id)) }

// In returns a context.Context derived from ctx whose calls belong to c.
func (c *Context) In(ctx context.Context) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// Gradient returns the gradient of x, a leaf of this worker, that the passes so far have accumulated.
// The caller must not change it. The error matches autograd.ErrNoGradient if there is none, or
// ErrNoContext if c is closed or nil.
func (c *Context) Gradient(x *autograd.Variable) (autograd.Value, error) {
	if c == nil {
		return autograd.Value{}, ErrNoContext
	}
	c.gradsMu.Lock()
	defer c.gradsMu.Unlock()
	if c.grads == nil {
		return autograd.Value{}, c.id.missing()
	}
	g, ok := c.grads[x]
	if !ok {
		return autograd.Value{}, fmt.Errorf("dist: %w of %v in the context %d", autograd.ErrNoGradient, x, c.id)
	}
	return g.Shared(), nil
}

// Gradients returns the gradients of all leaves of this worker, in a new map.
func (c *Context) Gradients() map[*autograd.Variable]autograd.Value {
	c.gradsMu.Lock()
	defer c.gradsMu.Unlock()
	all := maps.Clone(c.grads)
	for x, g := range all {
		all[x] = g.Shared()
	}
	return all
}

// Sends returns the nodes of the messages with Variables that this worker has sent within c, in their
// order, for inspection.
func (c *Context) Sends() []*autograd.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*autograd.Node
	for _, n := range c.order {
		if s := c.sends[n]; s != nil {
			all = append(all, s.node)
		}
	}
	return all
}

// Receives returns the nodes of the messages with Variables that this worker has received within c, in
// no order, for inspection.
func (c *Context) Receives() []*autograd.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*autograd.Node
	for _, n := range c.receives {
		all = append(all, n)
	}
	return all
}

// KnownWorkers returns the names of the workers that this one has called within c, in order.
func (c *Context) KnownWorkers() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for _, w := range c.peers {
		if w.called {
			names = append(names, w.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Close ends c on all workers: its graph and its gradients are dropped, and a pass that runs fails. The
// other workers get a message in the background. It does nothing if c is closed.
func (c *Context) Close() error {
	c.autograd.remove(c, c.autograd.agent.Incarnation())
	return nil
}

// check returns an error that matches ErrNoContext if c is closed. The caller holds c.mu.
func (c *Context) check() error {
	if c.closed {
		return c.id.missing()
	}
	return nil
}

// meet records that another worker takes part, which this one calls if called is set. The caller holds
// c.mu.
func (c *Context) meet(p peer, called bool) {
	if p.incarnation != c.autograd.agent.Incarnation() {
		put(&c.peers, p.incarnation, contextPeer{p.WorkerInfo, called || c.peers[p.incarnation].called})
	}
}

// accumulate adds grad to the gradient of the leaf x.
func (c *Context) accumulate(ctx context.Context, x *autograd.Variable, grad autograd.Value) error {
	c.gradsMu.Lock()
	defer c.gradsMu.Unlock()
	if c.grads == nil {
		return c.id.missing()
	}
	sum, err := autograd.Accumulate(ctx, c.grads[x], grad)
	if err == nil {
		c.grads[x] = sum
	}
	return err
}
