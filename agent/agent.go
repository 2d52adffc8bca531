// Package agent forms groups of named workers, which call each other's functions with tensors.
//
//	var Add = agent.NewFunc[AddArgs, *tensor.Tensor]("example.add")
//
//	a, err := agent.Join(ctx, agent.Config{
//		Name: "worker0", Rank: 0, WorldSize: 2,
//		Rendezvous: "tcp://127.0.0.1:29500",
//		Funcs:      agent.Funcs{Add.Serve(add)},
//	})
//	sum, err := Add.Call(ctx, a, "worker1", AddArgs{A: x, B: y})
//	later := Add.Go(ctx, a, "worker1", AddArgs{A: x, B: y})
//
// Workers find each other through a store (package store). Two workers that call each other
// share one pipe, over the best path between them. A worker serves the functions listed in its
// Config. Arguments and results are Go values (package codec); tensors in them are sent as
// tensors of the pipe.
//
// # Calls
//
// A call returns the result or an error; all calls to a worker that dies fail. The deadline of
// the caller's context applies to the handler too, whose context ends when the caller no longer
// waits.
//
// A handler runs on a goroutine of its own; at most Config.MaxHandlers run at once. A handler
// that waits for its own calls does not count: pass its context to these calls.
//
// # Streams
//
// A streaming call sends many values in place of one argument or one result: ServerStream to the
// caller, ClientStream from the caller, BidiStream both ways.
//
//	var Generate = agent.NewServerStream[Prompt, Token]("example.generate")
//
//	for token, err := range Generate.Call(ctx, a, "worker1", prompt) {
//
// Leaving the loop cancels the call. Send blocks while the receiver has Limits.StreamBytes of
// values that it has not used; other calls go on. The timeout is for idleness. A stream has one
// handler, and Shutdown waits for it, as for any call.
//
// # Members
//
// Agent.Watch reports the members of the group and their changes: workers that join, are lost,
// leave, restart or are removed. Agent.WatchAll also keeps a pipe to each of them, by which a loss
// is noticed without a call. Inspect returns the status of all members, without joining the group.
//
// # Memory of tensors
//
// Received tensors are in memory of Config.Allocator. WithInto receives those of one result into
// memory that the caller has, and WithArgsInto those of the arguments of a function into memory
// that the worker chooses for each request, such as pages of a pool. AfterReply reports when the
// memory of a result is free at the worker that was called.
//
// # Extending
//
// Extensions use the exported API: a Handler serves messages of a new type, an Interceptor sees
// all messages and adds sections to them, a codec.Hook replaces the encoding of values.
package agent

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// Agent is one worker's membership in a group. Its methods may be called from any goroutine.
type Agent struct {
	self        WorkerInfo
	incarnation roster.Incarnation
	group       string
	token       []byte

	pipes        *pipe.Context
	listener     *pipe.Listener
	handshakes   handshakeTable
	store        store.Store
	ownStore     bool
	route        string // see routeTo: the address from which this worker reaches a store over TCP
	roster       *roster.Roster
	peers        peers
	members      peerStates
	outsideCalls outsideCalls
	selfPeer     *peer         // this worker, as the target of its own calls
	joined       chan struct{} // closed when the members are known

	handlers     *handlers
	interceptors []Interceptor
	extensions   []Extension // those that were started; they do not change after Join
	faultHook    func(*Message) Fault
	values       Codec
	devices      *devices
	outMessages  outMessages
	inMessages   inMessages
	callPool     sync.Pool // of *call
	retries      retryTracker
	events       Events
	callCount    atomic.Uint64 // calls in events
	requestCount atomic.Uint64 // requests in events
	slots        slots
	paces        paces
	rounds       rounds
	activity     activity
	conns        sync.Map // of *conn: the open ones
	limits       Limits
	registry     *codec.Registry
	labels       bool         // set profile labels for handlers
	timeout      atomic.Int64 // in ns, 0 is none
	stats        stats
	log          *slog.Logger
	onPanic      func(*future.PanicError) // logs the panic of a callback of a future

	handshakeTimeout time.Duration

	base       context.Context // parent of the contexts of handlers and of the agent's goroutines; ends with Close
	cancel     context.CancelCauseFunc
	mu         sync.Mutex
	closed     atomic.Bool   // set under mu
	shutdownOp *shutdownOp   // set by the first Shutdown
	closeDone  chan struct{} // closed when Close has returned
	work       sync.WaitGroup
}

type stats struct {
	lateReplies       atomic.Uint64 // replies to calls that had ended
	rejectedPipes     atomic.Uint64
	duplicateRequests atomic.Uint64 // requests received again while they were served
	sentBytes         atomic.Uint64 // in pipes that have ended
	receivedBytes     atomic.Uint64
}

// Join makes this process a worker of the group that c describes, and returns the agent of the
// worker. In a static group it returns once all workers have joined. While Join waits for them, or
// for the store, it writes to the log that it waits. The agent serves calls until it is closed; ctx
// and Config.JoinTimeout bound Join only. The agent keeps the slices, maps and functions in c,
// which must not change after Join.
//
// The error is an *Error, and the agent is then nil: Join has closed the store, the listener and
// the pipes that it opened. The error matches ErrConfig or one of the errors about joining, such as
// ErrDuplicateName, or ErrTimeout after Config.JoinTimeout or the deadline of ctx, or wraps an
// error of Config.NewContext, of package store, of package pipe or of ctx.
func Join(ctx context.Context, c Config) (*Agent, error) {
	fail := func(err error) error { return &Error{Op: "join", Worker: c.Name, Err: err} }
	if err := c.check(); err != nil {
		return nil, fail(err)
	}
	c.setDefaults()
	if err := c.configureExtensions(); err != nil {
		return nil, fail(err)
	}
	a, err := newAgent(&c)
	if err != nil {
		return nil, fail(err)
	}
	limited, cancel := ctx, func() {}
	if c.JoinTimeout != NoTimeout {
		limited, cancel = context.WithTimeout(ctx, c.JoinTimeout)
	}
	defer cancel()
	if err := a.join(limited, &c); err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			err = joinTimeoutError(c.JoinTimeout, err)
		}
		return nil, fail(errtext.Join(ctxerr.Wrap(err), a.Close()))
	}
	return a, nil
}

// joinTimeoutError returns the error of Join after JoinTimeout, here limit, has ended it with err.
// Its text is that of err and names the limit. It matches err and, as after a deadline, ErrTimeout.
func joinTimeoutError(limit time.Duration, err error) error {
	ended := fmt.Sprintf("JoinTimeout of %v exceeded", limit)
	text, replaced := err.Error(), context.DeadlineExceeded.Error()
	if strings.Contains(text, replaced) {
		text = strings.Replace(text, replaced, ended, 1)
	} else {
		text = ended + ": " + text
	}
	return errtext.New(text, err, ctxerr.Wrap(context.DeadlineExceeded))
}

// newAgent returns an agent with the configuration c that has not opened a store or a listener and
// has not joined its group. c must have passed its methods check and setDefaults. newAgent
// registers the errors of agents in c.Registry. The error matches ErrConfig if the functions,
// handlers or device kinds of c are invalid, or if c.Registry has other errors or types under the
// names that agents use.
func newAgent(c *Config) (*Agent, error) {
	h, err := newHandlers(c)
	if err != nil {
		return nil, err
	}
	if err := registerErrors(c.Registry); err != nil {
		return nil, err
	}
	a := &Agent{
		self:  WorkerInfo{Name: c.Name, Rank: c.Rank},
		group: c.Group, token: c.Token,
		handlers: h, interceptors: c.Interceptors, faultHook: c.FaultHook,
		limits: c.Limits, labels: c.ProfileLabels, log: c.Logger.With("worker", c.Name),
		handshakeTimeout: c.HandshakeTimeout,
		members:          peerStates{watches: map[*watch]struct{}{}},
		joined:           make(chan struct{}),
		closeDone:        make(chan struct{}),
	}
	if _, err := rand.Read(a.incarnation[:]); err != nil {
		return nil, err
	}
	a.rounds = rounds{agent: a, next: map[roundKey]uint64{}, open: map[roundKey]*round{}}
	h.types[wire.GroupType] = handlerEntry{typ: wire.GroupType, Handler: &a.rounds, short: true}
	a.values = c.Codec
	if a.devices, err = newDevices(c); err != nil {
		return nil, err
	}
	if c.Events != nil {
		a.events = *c.Events
	}
	a.onPanic = func(p *future.PanicError) { a.log.Error("callback panicked", "panic", p) }
	a.slots.max = c.MaxHandlers
	a.timeout.Store(int64(max(c.Timeout, 0)))
	registry, limits := c.Registry, c.Limits.Codec
	a.registry = registry
	a.outMessages.pool.New = func() any { return &outMessage{encoder: codec.NewEncoder(registry, limits)} }
	a.inMessages.alloc, a.inMessages.devices, a.outMessages.devices = c.Allocator, a.devices, a.devices
	a.inMessages.pool.New = func() any { return &inMessage{decoder: codec.NewDecoder(registry, limits)} }
	a.callPool.New = func() any { return &call{completed: make(chan struct{}, 1)} }
	a.base, a.cancel = context.WithCancelCause(context.Background())
	return a, nil
}

// Self returns the name and the rank of this worker.
func (a *Agent) Self() WorkerInfo { return a.self }

// Incarnation returns the incarnation of this worker, by which other workers tell it from an earlier
// one of the same name.
func (a *Agent) Incarnation() Incarnation { return Incarnation(a.incarnation) }

// DefaultTimeout returns the timeout of calls that are made without WithTimeout. 0 means that such
// calls have no timeout.
func (a *Agent) DefaultTimeout() time.Duration { return time.Duration(a.timeout.Load()) }

// SetDefaultTimeout makes d the timeout of calls that begin from now on without WithTimeout. With 0
// they have no timeout. If d is negative, nothing changes and the error matches ErrConfig.
func (a *Agent) SetDefaultTimeout(d time.Duration) error {
	if d < 0 {
		return &ConfigError{Field: "Timeout", Value: d}
	}
	a.timeout.Store(int64(d))
	return nil
}

// spawn starts f on a new goroutine, for which Close waits, and returns true. If the agent is
// closed, it returns false and does not run f. The caller must not hold a.mu.
func (a *Agent) spawn(f func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed.Load() {
		return false
	}
	a.work.Go(f)
	return true
}

func (a *Agent) isClosed() bool { return a.closed.Load() }

// Close leaves the group and closes the agent. Pending calls of this worker fail with ErrClosed,
// calls of other workers to it with ErrUnreachable; the contexts of handlers end. Close waits for
// the agent's own goroutines and for the extensions, and at most some seconds for workers that do
// not answer.
//
// It is no error if the store does not answer within a second: the store then still lists this
// worker, whose rank in a static group stays taken, and Close logs a warning. The returned error is
// that of closing the pipe context or the extensions, or of closing the store if Join opened the
// store. A second Close waits for the first and returns nil.
//
// Close does not wait for functions of the application, and may be called from any of them:
// handlers, also short ones, interceptors, callbacks of futures.
func (a *Agent) Close() error { return a.close(a.leaveOnClose) }

// close closes the agent, for Close and Shutdown. It marks the agent as closed, ends the context
// a.base with the cause ErrClosed, closes the pipes, calls leave, which leaves the group, closes
// the extensions, and waits for the agent's goroutines. Then it closes the store if Join opened it,
// and calls Events.Closed. It returns the joined errors of the pipes, of leave, of the extensions
// and of the store. Only the first call does this; later ones wait for the first and return nil.
func (a *Agent) close(leave func() error) error {
	a.mu.Lock()
	closed := a.closed.Swap(true)
	a.mu.Unlock()
	if closed {
		<-a.closeDone
		return nil
	}
	defer close(a.closeDone)
	a.cancel(ErrClosed)
	var err error
	if a.pipes != nil {
		err = a.pipes.Close()
	}
	// After the pipes are closed: other workers abort the pipe to a worker that has left.
	err = errtext.Join(err, leave(), a.closeExtensions())
	a.conns.Range(func(key, _ any) bool {
		if c := key.(*conn); c.reader.dispatching.Load() > 0 {
			c.releaseReader() // the handler of the message may have called Close
		}
		return true
	})
	a.work.Wait()
	if a.ownStore && a.store != nil {
		err = errtext.Join(err, a.store.Close())
	}
	if a.events.Closed != nil {
		a.events.Closed(ClosedInfo{err})
	}
	return err
}
