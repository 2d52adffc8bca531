package rref

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// Options configures the references of a worker. Zero fields stand for the defaults.
type Options struct {
	// Lease is the time for which a worker waits for another one that should have done something
	// about a reference, such as to send the creation that a use has overtaken. An owner drops the
	// references of a worker of which it has heard nothing for so long. It must be equal on all
	// workers. Default 30 s.
	Lease time.Duration

	// Methods are the methods of values that other workers may call. There are no others.
	Methods Methods

	// MaxReferences bounds the references that one other worker has to values of this one, and
	// MaxPending the messages of one worker that wait for a reference which is not known yet. Beyond
	// them requests fail with agent.ErrOverloaded. Defaults 1<<20 and 1<<10.
	MaxReferences int
	MaxPending    int

	// IgnoreLeaks makes Shutdown succeed if other workers still have references to values of this
	// one when all have released theirs.
	IgnoreLeaks bool

	// KeepAtShutdown makes Shutdown leave the references of this worker as they are, in place of
	// releasing them. Those that the application has not released are leaks for their owners.
	KeepAtShutdown bool
}

// Refs adds remote references to an agent: list it in agent.Config.Extensions. It serves one agent.
type Refs struct {
	options Options
	agent   *agent.Agent
	self    worker
	log     logger
	config  *agent.Config

	mu       sync.Mutex
	closed   bool
	lastID   uint64
	values   map[*value]struct{}
	forks    map[forkID]*fork
	holders  map[[16]byte]*holder     // workers that have references to values of this one, by incarnation
	epochs   map[uint64]*holder       // the same, by the epochs of their leases
	awaited  map[forkID][]*awaiting   // requests that have overtaken the fork that they name
	cores    map[forkID]*core         // the references of this worker to values of others
	owners   map[[16]byte]*ownerState // their owners
	children map[forkID]*child        // references that were sent and are not known to have arrived
	arriving map[forkID]*core         // references that a kept reply has brought and that are not accepted yet
	refused  refusedForks
	asks     askQueue
	changed  chan struct{} // closed at the next change for which Drain waits
	lines    []func()      // of the log, to be written by unlock

	awaitedOf map[[16]byte]int // the number of awaited requests by the incarnation that has sent them
	lastEpoch uint64
	clock     *time.Timer  // of the leases and the forgotten handles; nil if there are neither
	ticked    time.Time    // when the clock has ticked last, or was started
	handles   atomic.Int64 // handles of the application that are not released
	forgotten forgottenCores
	leases    atomic.Int64                         // holders and owners
	users     atomic.Pointer[map[[16]byte]*holder] // a copy of holders, read without mu
	headers   atomic.Int64                         // of these: how many have messages with leaseHeader to send
	draining  bool                                 // Drain has begun

	here    *ownerState // this worker
	unwatch func()      // ends the events of members
	stop    context.CancelFunc
	base    context.Context
	work    sync.WaitGroup
}

type logger interface {
	Debug(msg string, args ...any)
	Info(msg string, args ...any)
	Warn(msg string, args ...any)
}

// refsKey is the key of the extension.
type refsKey struct{}

// New returns the references of a worker, for agent.Config.Extensions. It copies nothing of o.
func New(o Options) *Refs {
	if o.Lease <= 0 {
		o.Lease = 30 * time.Second
	}
	if o.MaxReferences <= 0 {
		o.MaxReferences = 1 << 20
	}
	if o.MaxPending <= 0 {
		o.MaxPending = 1 << 10
	}
	r := &Refs{
		options: o,
		values:  map[*value]struct{}{}, forks: map[forkID]*fork{}, holders: map[[16]byte]*holder{},
		epochs: map[uint64]*holder{}, awaited: map[forkID][]*awaiting{}, awaitedOf: map[[16]byte]int{},
		cores: map[forkID]*core{}, owners: map[[16]byte]*ownerState{}, children: map[forkID]*child{},
		arriving: map[forkID]*core{}, changed: make(chan struct{}),
	}
	r.users.Store(&map[[16]byte]*holder{})
	return r
}

// Of returns the references of the agent a. The error matches ErrNoAgent if a is nil or has none.
func Of(a *agent.Agent) (*Refs, error) {
	if a != nil {
		if r, ok := a.Extension(refsKey{}).(*Refs); ok {
			return r, nil
		}
	}
	return nil, fmt.Errorf("%w: list rref.New in Config.Extensions", ErrNoAgent)
}

// Key implements agent.Extension.
func (r *Refs) Key() any { return refsKey{} }

// Configure implements agent.Extension: it adds the handlers and the interceptor of references.
func (r *Refs) Configure(c *agent.Config) error {
	if r.log != nil {
		return fmt.Errorf("%w: a Refs serves one agent", agent.ErrConfig)
	}
	r.log, r.config = c.Logger.With("worker", c.Name), c
	for typ, h := range r.handlers() {
		if _, taken := c.Handlers[typ]; taken {
			return fmt.Errorf("%w: handler of type %s: it belongs to package rref", agent.ErrConfig, typ)
		}
		c.Handlers[typ] = h
	}
	for name, err := range registered {
		if err := c.Registry.RegisterError(name, err); err != nil {
			return err
		}
	}
	for name, sample := range map[string]error{
		"rref.CreationError": &CreationError{}, "rref.OwnerError": &OwnerError{}, "rref.UseError": &UseError{},
	} {
		if err := c.Registry.Register(name, sample); err != nil {
			return err
		}
	}
	c.Interceptors = append(c.Interceptors, agent.Interceptor{
		Encoding: r.encoding,
		Received: func(ctx context.Context, m *agent.Message) (context.Context, error) {
			r.received(m)
			m.SetState(messageKey{}, m)
			return ctx, nil
		},
		Decoded: r.decoded,
	})
	return r.options.Methods.check()
}

// AddMethods adds methods to Options.Methods, for an extension that is built on references. Its Configure
// calls it. The error matches agent.ErrConfig if a method is served twice for the same type.
func (r *Refs) AddMethods(m ...ServedMethod) error {
	all := append(slices.Clip(r.options.Methods), m...)
	if err := all.check(); err != nil {
		return err
	}
	r.options.Methods = all
	return nil
}

// registered are the errors that keep their identity when another worker returns them.
var registered = map[string]error{
	"rref.ErrFenced": ErrFenced, "rref.ErrOwnerGone": ErrOwnerGone, "rref.ErrReleased": ErrReleased, "rref.ErrNotOwner": ErrNotOwner,
	"rref.ErrShared": ErrShared, "rref.ErrNoValue": ErrNoValue, "rref.ErrNoMethod": ErrNoMethod, "rref.ErrType": ErrType, "rref.ErrCreation": ErrCreation,
}

// Start implements agent.Extension.
func (r *Refs) Start(a *agent.Agent) error {
	r.agent = a
	self := a.Self()
	r.self = worker{Name: self.Name, Rank: self.Rank, Incarnation: a.Incarnation()}
	r.here = &ownerState{worker: r.self}
	r.base, r.stop = context.WithCancel(context.Background())
	r.unwatch = a.Watch(r.memberChanged)
	return nil
}

// Close implements agent.Extension: it ends all messages about references. References are then of no
// use: their methods fail with errors that match ErrClosed or agent.ErrClosed.
func (r *Refs) Close() error {
	r.mu.Lock()
	r.closed = true
	var values []*value
	for v := range r.values {
		if v.ready { // complete drops the others
			values = append(values, v)
		}
	}
	r.values, r.forks = map[*value]struct{}{}, map[forkID]*fork{}
	awaited := r.awaited
	r.awaited = map[forkID][]*awaiting{}
	if r.clock != nil {
		r.clock.Stop()
	}
	r.notify()
	r.mu.Unlock()
	r.unwatch()
	r.stop()
	for _, all := range awaited {
		for _, w := range all {
			w.stop()
			w.found(nil, ErrClosed)
		}
	}
	dropAll(values)
	r.work.Wait()
	return nil
}

// notify wakes Drain. The caller holds r.mu.
func (r *Refs) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// logLater has log called with msg and args by unlock: a handler of the log may use this Refs, for
// example its Metrics, so it must not run with r.mu. The caller holds r.mu.
func (r *Refs) logLater(log func(msg string, args ...any), msg string, args ...any) {
	r.lines = append(r.lines, func() { log(msg, args...) })
}

// unlock unlocks r.mu and then writes the lines of logLater to the log.
func (r *Refs) unlock() {
	lines := r.lines
	r.lines = nil
	r.mu.Unlock()
	for _, write := range lines {
		write()
	}
}

// newLabel returns a label that no other reference of this worker has.
func (r *Refs) newLabel() Label {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := Label{r.self.Rank, r.lastID}
	r.lastID++
	return l
}

// spawn runs f on a goroutine for which Close waits, unless the references are closed.
func (r *Refs) spawn(f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.work.Go(f)
	return true
}
