package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// Agent is one worker's part in a group. All methods may be called from any
// goroutine.
type Agent struct {
	self        WorkerInfo
	incarnation roster.Incarnation
	group       string
	token       []byte

	pipes     *pipe.Context
	listener  *pipe.Listener
	greetings greetings
	store     store.Store
	ownStore  bool
	roster    *roster.Roster
	peers     peers
	aside     aside
	own       *peer         // this worker as its own callee
	joined    chan struct{} // closed when the members are known

	handlers     *handlers
	interceptors []Interceptor
	outgoing     func(*Message) Fate
	values       Codec
	devices      *devices
	envelopes    envelopes
	arrivals     arrivals
	callPool     sync.Pool // of *call
	retried      retriedCalls
	slots        slots
	rounds       rounds
	activity     activity
	conns        sync.Map // of *conn: those that are up
	limits       Limits
	labels       bool         // of handlers in profiles
	timeout      atomic.Int64 // nanoseconds, 0 is none
	stats        stats
	log          *slog.Logger
	onPanic      func(*future.PanicError) // callbackPanicked, for all futures

	handshakeTimeout time.Duration

	base   context.Context // of handlers, and of what runs for the agent
	cancel context.CancelCauseFunc
	mu     sync.Mutex
	closed atomic.Bool   // set under mu
	ending *ending       // begun by Shutdown
	gone   chan struct{} // closed when Close is through
	work   sync.WaitGroup
}

type stats struct {
	late       atomic.Uint64 // answers for which nobody waited any more
	turnedAway atomic.Uint64 // pipes
	repeated   atomic.Uint64 // requests that came again while they were served
}

// Join makes this process a worker of a group, and returns when all workers of a
// static group are there. The agent serves calls until it is closed.
//
// The error is an *Error. It matches ErrConfig, one of the errors about joining, as
// ErrDuplicateName, those of package store, or the error of ctx.
func Join(ctx context.Context, c Config) (*Agent, error) {
	fail := func(err error) error { return &Error{Op: "join", Worker: c.Name, Err: err} }
	if err := c.check(); err != nil {
		return nil, fail(err)
	}
	c.setDefaults()
	a, err := newAgent(&c)
	if err != nil {
		return nil, fail(err)
	}
	if err := a.join(ctx, &c); err != nil {
		return nil, fail(errors.Join(err, a.Close()))
	}
	return a, nil
}

// newAgent makes an agent that is in no group yet.
func newAgent(c *Config) (*Agent, error) {
	h, err := newHandlers(c)
	if err != nil {
		return nil, err
	}
	if err := prepare(c.Registry); err != nil {
		return nil, err
	}
	a := &Agent{
		self:  WorkerInfo{Name: c.Name, Rank: c.Rank},
		group: c.Group, token: c.Token,
		handlers: h, interceptors: c.Interceptors, outgoing: c.Outgoing,
		limits: c.Limits, labels: c.ProfileLabels, log: c.Logger.With("worker", c.Name),
		handshakeTimeout: c.HandshakeTimeout,
		joined:           make(chan struct{}),
		gone:             make(chan struct{}),
	}
	if _, err := rand.Read(a.incarnation[:]); err != nil {
		return nil, err
	}
	a.rounds.init(a)
	h.types[groupType] = entry{typ: groupType, Handler: &a.rounds, short: true}
	a.values = c.Codec
	if a.devices, err = newDevices(c); err != nil {
		return nil, err
	}
	a.onPanic = a.callbackPanicked
	a.slots.max = c.MaxHandlers
	a.timeout.Store(int64(max(c.Timeout, 0)))
	a.envelopes.init(c.Registry, c.Limits.Codec)
	a.arrivals.init(c.Registry, c.Limits.Codec, c.Allocator, a.devices)
	a.callPool.New = func() any { return &call{woken: make(chan struct{}, 1)} }
	a.base, a.cancel = context.WithCancelCause(context.Background())
	return a, nil
}

// Self is this worker.
func (a *Agent) Self() WorkerInfo { return a.self }

// DefaultTimeout is the limit of calls that have none of their own; 0 is none.
func (a *Agent) DefaultTimeout() time.Duration { return time.Duration(a.timeout.Load()) }

// SetDefaultTimeout changes the limit of the calls that are made from now on; 0 is
// none. The error matches ErrConfig if d is negative.
func (a *Agent) SetDefaultTimeout(d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("%w: RPC Timeout must be non-negative, got %v", ErrConfig, d)
	}
	a.timeout.Store(int64(d))
	return nil
}

// spawn runs f on a goroutine that Close waits for. It reports false if the agent is
// closed.
func (a *Agent) spawn(f func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed.Load() {
		return false
	}
	a.work.Go(f)
	return true
}

// callbackPanicked is told of panics in callbacks of futures.
func (a *Agent) callbackPanicked(p *future.PanicError) {
	a.log.Error("callback panicked", "panic", p)
}

func (a *Agent) isClosed() bool { return a.closed.Load() }

// Close leaves the group. Calls that wait, of this worker and to it, end with ErrClosed
// here and with ErrUnreachable there; the contexts of handlers end. It waits for what the
// agent itself runs, and some seconds at most for workers that do not answer. A store
// that does not answer within a second, or is gone, is no error: the log says that it
// still lists this worker, whom a static group then has no place for any more. Another
// Close waits for the first one and does nothing. It waits for no function of the
// application, and may be called by any: handlers, Short ones too, interceptors,
// callbacks of futures.
func (a *Agent) Close() error { return a.close(a.vanish) }

// close ends everything, and tells the store by leave.
func (a *Agent) close(leave func() error) error {
	a.mu.Lock()
	closed := a.closed.Swap(true)
	a.mu.Unlock()
	if closed {
		<-a.gone
		return nil
	}
	defer close(a.gone)
	a.cancel(ErrClosed)
	var err error
	if a.pipes != nil {
		err = a.pipes.Close()
	}
	// Not before: others end the pipe to a worker that has left, whatever is on its way.
	err = errors.Join(err, leave())
	a.awaitWork()
	if a.ownStore && a.store != nil {
		err = errors.Join(err, a.store.Close())
	}
	return err
}
