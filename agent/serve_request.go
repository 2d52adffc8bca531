package agent

import (
	"context"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Handler serves the requests of one type, or of one function.
type Handler interface {
	// Open decodes the values of a request and returns the task that replies to it. If it returns
	// an error, that is the reply. Open must not block: for small requests it runs on the
	// goroutine that reads the messages of the caller, see WithShort.
	Open(r *Request) (Task, error)
}

// Task is the work for one request.
type Task interface {
	// Run must reply to the request with Reply or Fail, before it returns or later from any
	// goroutine. ctx is cancelled when the caller does not wait for the reply any more. If Run
	// panics the reply is a *PanicError.
	Run(ctx context.Context, r *Request)
}

// Request is a call by another worker, or by this one. It is the context of its handler.
type Request struct {
	callContext
	conn         *conn
	id           uint64
	flags        byte
	charge       int        // part of conn.servingBytes
	largeCharge  int        // taken from conn.largeBudget
	nestedCharge int        // part of conn.nestedLargeBytes
	message      *inMessage // until its values are decoded
	handler      handlerEntry
	task         Task
	borrowed     []*tensor.Storage // released after the reply was sent
	begun        time.Time
	ctx          context.Context             // of the handler: the request, with values that interceptors added
	hold         func(context.Context) error // set by an interceptor: the handler starts after it returns
	key          string                      // of a request whose handler runs once, see WithOnce
	number       uint64                      // of the key, 0 for a key of the application
	ended        uint64                      // all calls of the caller up to this number have ended
	once         *onceRun                    // the run that this request started, if it has a key

	event    *ServeEndedInfo // nil without Events.ServeEnded
	answered atomic.Bool     // Reply or Fail was called
	stage    atomic.Uint32   // a ServedState, except those that state derives
	slot     slotState
}

// Value implements context.Context.
func (r *Request) Value(key any) any {
	switch key.(type) {
	case requestKey:
		return r
	case future.WaiterKey:
		return (*requestWaiter)(r)
	case leaderKey:
		return nil // its slotState has the leader
	}
	return r.callContext.Value(key)
}

// Agent returns the agent that serves the request.
func (r *Request) Agent() *Agent { return r.conn.agent }

// From returns the worker that made the call.
func (r *Request) From() WorkerInfo { return r.conn.peer }

// Type returns the type of the message, empty for the call of a function.
func (r *Request) Type() string { return r.handler.typ }

// Name returns the name of the function, or the name in a message of another type.
func (r *Request) Name() string { return r.handler.name }

// Decode decodes the next value of the request to the value to which ptr points. The error is that
// of the codec. Only Handler.Open may call Decode; after Open the error matches ErrArguments.
func (r *Request) Decode(ptr any) error {
	if r.message == nil {
		return r.wrapError(fmt.Errorf("%w: values are decoded before Open returns", ErrArguments))
	}
	return r.conn.agent.values.Decode(r.message.decoder, ptr)
}

func (r *Request) wrapError(err error) error {
	return &Error{Op: "serve", Func: r.Name(), Worker: r.conn.peer.Name, Err: err}
}

// claim makes the calling goroutine the only one that may reply. The error matches ErrResult if
// claim has succeeded before.
func (r *Request) claim() error {
	if r.answered.Swap(true) {
		return r.wrapError(fmt.Errorf("%w: the request has been answered", ErrResult))
	}
	return nil
}

// goexit is the value of a PanicError for runtime.Goexit.
const goexit = "runtime.Goexit"

var errGoexit error = &PanicError{Value: goexit}

// run runs the task of the request on this goroutine. A panic or the end of the goroutine becomes
// the reply. It reports whether the request still has the slot in which it was started, which the
// caller then passes on.
func (r *Request) run() (held bool) {
	returned := false
	defer func() {
		v := recover()
		if v == nil && !returned {
			v = goexit
		}
		if v != nil {
			err := &PanicError{Value: fmt.Sprint(v), Stack: string(debug.Stack())}
			r.conn.agent.log.Error("handler panicked", "function", r.Name(), "caller", r.conn.peer.Name, "panic", err.Value, "stack", err.Stack)
			_ = r.Fail(err) // fails if the task has replied; then only the log has the panic
		}
		r.stage.Store(uint32(ServedDeferred))
		if held = r.slot.finish(); held && !returned && v == goexit {
			r.conn.agent.slots.release() // this goroutine ends
		}
	}()
	r.stage.Store(uint32(ServedRunning))
	if r.event != nil {
		r.event.Queued = time.Since(r.event.Start)
	}
	switch {
	case r.handler.invoked != nil && r.Err() != nil:
		// The caller does not wait any more. Handlers of types run nevertheless: they may have to
		// see all of their messages.
		_ = r.Fail(context.Cause(r)) // nothing else replies
	case r.conn.agent.labels && !r.short():
		labels := pprof.Labels("function", displayName(r.handler.typ, r.handler.name), "caller", r.conn.peer.Name)
		pprof.Do(r.ctx, labels, func(ctx context.Context) { r.task.Run(ctx, r) })
	default:
		r.task.Run(r.ctx, r)
	}
	returned = true
	return
}

// catchPanic runs f and returns its error, or a *PanicError if it panics. It does not catch
// runtime.Goexit.
func catchPanic(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: fmt.Sprint(v), Stack: string(debug.Stack())}
		}
	}()
	return f()
}

// close ends a request after its reply was sent or lost: it removes the request from those that
// are served, returns its charges and releases its context.
func (r *Request) close() {
	c := r.conn
	c.agent.reportServeEnded(r)
	c.mu.Lock()
	if c.serving[r.id] == r {
		delete(c.serving, r.id)
		c.servingBytes -= r.charge
	}
	c.mu.Unlock()
	r.freeMemory()
	r.finish()
}

// freeMemory returns the charges of a large request, and releases the storages that its handler
// borrowed. Further calls do nothing.
func (r *Request) freeMemory() {
	c := r.conn
	if r.largeCharge > 0 {
		c.largeBudget.Release(r.largeCharge)
	}
	if r.nestedCharge > 0 {
		c.mu.Lock()
		c.nestedLargeBytes -= r.nestedCharge
		c.mu.Unlock()
	}
	for _, s := range r.borrowed {
		s.Release()
	}
	r.largeCharge, r.nestedCharge, r.borrowed = 0, 0, nil
}

type requestKey struct{}

// requestOf returns the request whose handler has ctx, nil if ctx is not that of a handler.
func requestOf(ctx context.Context) *Request {
	r, _ := ctx.Value(requestKey{}).(*Request)
	return r
}

// Caller returns the worker that called the handler with context ctx. It returns false if ctx is
// not the context of a handler.
func Caller(ctx context.Context) (WorkerInfo, bool) {
	if r := requestOf(ctx); r != nil {
		return r.conn.peer, true
	}
	return WorkerInfo{}, false
}

// FromContext returns the agent that serves the call whose handler has ctx, for calls that the
// handler makes. It returns nil if ctx is not the context of a handler.
func FromContext(ctx context.Context) *Agent {
	if r := requestOf(ctx); r != nil {
		return r.conn.agent
	}
	return nil
}
